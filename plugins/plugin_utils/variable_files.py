# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names the files of an inventory's variables that are no YAML, which Ansible 2.19 refuses without naming them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import short

FOLDERS = ("group_vars", "host_vars")
SHOWN = 120
"""Characters of the parser's words, which repeat what it met."""

SUFFIXES = ("", ".yml", ".yaml", ".json")
"""Those that Ansible's plugin host_group_vars reads, by its default."""

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """Takes any tag, such as !vault, for nothing: only whether the text can be read counts."""


_Loader.add_multi_constructor("", lambda _loader, _tag, _node: None)


def faults(folder: Path, names: Collection[str]) -> list[str]:
    """A sentence for each file of variables of the hosts and groups *names* below *folder* that is no YAML."""
    found = []
    for path in sorted(_files(folder, names)):
        try:
            yaml.load(path.read_bytes(), Loader=_Loader)
        except yaml.YAMLError as error:
            found.append(f"{path} is not valid YAML{_where(error)}; correct it.")
        except (OSError, ValueError, TypeError, OverflowError, LookupError, AttributeError, RecursionError):
            # Ansible says it better, or takes it.
            continue
    return found


def _where(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    line = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    reason = short(getattr(error, "problem", None) or str(error).partition("\n")[0], SHOWN)
    if "unhashable" in reason:
        reason = "a map where a key is expected, as '{{ NAME }}' without quotes is"
    return f"{line}: {reason}"


def _files(folder: Path, names: Collection[str]) -> Iterator[Path]:
    for kind in FOLDERS:
        try:
            entries = list((folder / kind).iterdir())
        except OSError:
            continue
        for entry in entries:
            if entry.name in names and entry.is_dir():
                for root, below, inside in os.walk(entry):
                    below[:] = [name for name in below if not name.startswith(".")]
                    yield from (Path(root, name) for name in inside if _read(Path(name)))
            elif entry.is_file() and _read(entry) and {entry.name, entry.stem} & set(names):
                yield entry


def _read(path: Path) -> bool:
    return path.suffix in SUFFIXES and not path.name.startswith(".") and not path.name.endswith("~")
