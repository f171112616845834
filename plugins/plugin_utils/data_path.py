# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Data files on the controller: profiles, suites, workloads, experiments.

The folders of ``socle_data_path`` are searched first, in their order, then the collection itself; the first file of a
name wins as a whole. ``data_path(option, task_vars)`` gives a DataPath, whose ``names(folder)`` and
``read(folder, name)`` serve every kind of document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError

COLLECTION = Path(__file__).resolve().parents[2]

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):  # type: ignore[misc]
    """Refuses a key that is written twice, of which YAML would silently keep the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key_node, _value in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str):
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key!r} is written twice", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


class DataPath:
    """Documents by folder ("profiles/models") and name, from the user's folders and then the collection."""

    def __init__(self, folders: Iterable[Path], collection: Path = COLLECTION) -> None:
        self.folders = [*folders, collection]
        self._collection = collection

    def names(self, folder: str) -> list[str]:
        """Names of all documents in *folder*, sorted."""
        return sorted({path.stem for root in self.folders for path in (root / folder).glob("*.yml")})

    def read(self, folder: str, name: str) -> tuple[str, Any]:
        """(file name for a person, content); raises PlanError if there is none or it is no YAML."""
        path = self.find(f"{folder}/{name}.yml")
        if path is None:
            raise PlanError(
                f"{folder}/{name}.yml was looked for in {self.describe()} and not found; "
                f"the names there are {', '.join(self.names(folder)) or 'none'}."
            )
        shown = self.show(path)
        try:
            content = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)  # a safe loader
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(f"{shown} cannot be read ({error}); correct the file or its permissions.") from error
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f" in line {mark.line + 1}" if mark else ""
            reason = getattr(error, "problem", None) or str(error).splitlines()[0]
            raise PlanError(f"{shown} is not valid YAML{line}: {reason}; correct it.") from error
        return shown, content

    def find(self, relative: str) -> Path | None:
        """The first file of that name, of any kind."""
        for root in self.folders:
            if (root / relative).is_file():
                return root / relative
        return None

    def show(self, path: Path) -> str:
        """A name that is the same on every controller: relative to the collection or a user folder's parent."""
        for root in self.folders:
            if path.is_relative_to(root):
                return str(path.relative_to(root if root == self._collection else root.parent))
        return str(path)

    def describe(self) -> str:
        """The user's folders and the collection, for messages."""
        return ", ".join([*(str(folder) for folder in self.folders[:-1]), "the collection"])


def data_path(option: Any, task_vars: Mapping[str, Any]) -> DataPath:
    """From an option, else the variable socle_data_path, else ``site_data/`` beside the folder of the inventories.

    What is not absolute starts at the folder of the inventory.
    """
    given = option if option else task_vars.get("socle_data_path")
    if given:
        wanted = [given] if isinstance(given, str) else list(given)
        base = Path(str(task_vars.get("inventory_dir") or task_vars.get("playbook_dir") or "."))
        folders = [base / Path(str(entry)).expanduser() for entry in wanted]
        for folder in folders:
            if not folder.is_dir():
                raise PlanError(f"socle_data_path names {folder}, which is no folder; correct it or create the folder.")
        return DataPath(folders)
    inventory = task_vars.get("inventory_dir")
    default = Path(str(inventory)).resolve().parent.parent / "site_data" if inventory else None
    return DataPath([default] if default and default.is_dir() else [])
