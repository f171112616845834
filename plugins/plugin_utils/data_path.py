# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Data files on the controller: profiles, suites, workloads, experiments.

The folders of ``socle_data_path`` are searched first, in their order, then the collection itself; the first file of a
name wins as a whole. ``data_path(option, task_vars)`` gives a DataPath, whose ``names(folder)`` and
``read(folder, name)`` serve every kind of document.
"""

from __future__ import annotations

import functools
import os
import pickle
import stat
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import describe, known_list, quoted, short

_SHOWN_PATH = 120
_SHOWN_REASON = 120
"""Characters of a path, and of the words of a library, within a sentence."""

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
                        None, None, f"the key {quoted(key)} is written twice", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


Made = TypeVar("Made")

_MADE: dict[Hashable, Any] = {}
"""What was made of documents, by maker and version of the file. As many as there are files."""

MAX_DEPTH = 50
"""Levels of maps and lists in a document; what people write has about six."""


def _measure(content: Any) -> None:
    """Raise RecursionError for what is nested too deep, of which a map that holds itself is one case."""
    level = [content]
    for _depth in range(MAX_DEPTH):
        # By identity, so that aliases of one value are walked once.
        inner = (
            {
                id(item): item
                for value in level
                for item in (value.values() if isinstance(value, dict) else value)
                if isinstance(item, (dict, list))
            }
            if isinstance(content, (dict, list))
            else {}
        )
        level = list(inner.values())
        if not level:
            return
    raise RecursionError


@functools.lru_cache(maxsize=512)
def _parsed(path: Path, changed_ns: int, size: int) -> bytes:
    """A document that was read once, in a form of which each reader makes its own copy. Raises what reading raises."""
    content = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)  # a safe loader
    _measure(content)
    return pickle.dumps(content)


def _reason(error: Exception) -> str:
    return short((error.strerror if isinstance(error, OSError) else None) or error, _SHOWN_REASON)


def _short(path: Path) -> str:
    return short(path, _SHOWN_PATH)


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"


def _refuse_other_suffix(path: Path) -> None:
    if path.suffix != ".yml":
        return
    other = path.with_suffix(".yaml")
    try:
        found = os.path.lexists(other)
    except ValueError:
        return
    if found:
        raise PlanError(f"{other} is not read, since data files end in .yml; rename to .yml, or remove it.")


class DataPath:
    """Documents by folder ("profiles/models") and name, from the user's folders and then the collection."""

    def __init__(self, folders: Iterable[Path], collection: Path = COLLECTION) -> None:
        self.folders = [*folders, collection]
        self._collection = collection

    def names(self, folder: str) -> list[str]:
        """Names of all documents in *folder*, sorted."""
        for root in self.folders:
            for path in (root / folder).glob("*.yaml"):
                _refuse_other_suffix(path.with_suffix(".yml"))
        return sorted({path.stem for root in self.folders for path in (root / folder).glob("*.yml")})

    def read(self, folder: str, name: str) -> tuple[str, Any]:
        """(file name for a person, content); raises PlanError if there is none or it is no YAML."""
        path = self.find(f"{folder}/{name}.yml")
        if path is None:
            raise PlanError(
                f"{folder}/{short(name)}.yml was looked for in {self.describe()} and not found; "
                f"the names there are {known_list(self.names(folder))}."
            )
        shown = self.show(path)
        try:
            status = path.stat()
            content = pickle.loads(_parsed(path, status.st_mtime_ns, status.st_size))
        except UnicodeDecodeError as error:
            raise PlanError(f"{shown} is not UTF-8 text; save it as UTF-8.") from error
        except OSError as error:
            raise PlanError(
                f"{shown} cannot be read ({error.strerror}); correct the file or its permissions."
            ) from error
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f" in line {mark.line + 1}" if mark else ""
            reason = short(getattr(error, "problem", None) or str(error).partition("\n")[0], _SHOWN_REASON)
            raise PlanError(f"{shown} is not valid YAML{line}: {reason}; correct it.") from error
        except RecursionError as error:
            raise PlanError(
                f"{shown} is nested more than {MAX_DEPTH} levels deep, or holds an alias of itself; correct it."
            ) from error
        except (ValueError, TypeError, OverflowError, AttributeError, LookupError) as error:
            # What the loader meets in a date, a number or a tag that looks like one and is none.
            reason = short(" ".join(str(error).split()), _SHOWN_REASON)
            raise PlanError(
                f"{shown} holds a value that cannot be a date, a number or what its tag says ({reason}); "
                "quote it to make it a string, or correct it."
            ) from error
        return shown, content

    def made(self, folder: str, name: str, make: Callable[[str, Any], Made]) -> Made:
        """What *make* makes of a document's file name and content, once for each version of the file.

        *make* must be a function of a module, and nobody may change what it made: others get the same.
        """
        path = self.find(f"{folder}/{name}.yml")
        try:
            status = None if path is None else path.stat()
        except OSError:
            status = None
        if path is None or status is None:
            return make(*self.read(folder, name))
        key = (make, path, self.show(path), status.st_mtime_ns, status.st_size)
        if key not in _MADE:
            _MADE[key] = make(*self.read(folder, name))
        found: Made = _MADE[key]
        return found

    def find(self, relative: str) -> Path | None:
        """The first file of that name; raises PlanError where something of that name is no file.

        A link to nothing must not give way to the collection's file in silence.
        """
        for root in self.folders:
            path = root / relative
            _refuse_other_suffix(path)
            try:
                path.lstat()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, ValueError) as error:
                raise PlanError(f"{_short(path)} cannot be looked up ({_reason(error)}); correct the name.") from error
            try:
                mode = path.stat().st_mode
            except OSError as error:
                raise PlanError(
                    f"{self.show(path)} is a link that leads to no file ({_reason(error)}); correct or remove it."
                ) from error
            if stat.S_ISREG(mode):
                return path
            raise PlanError(f"{self.show(path)} is {_kind(mode)}, but must be a file; correct or remove it.")
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
        wanted = [given] if isinstance(given, str) else given
        if not isinstance(wanted, (list, tuple)) or not all(isinstance(entry, str) and entry for entry in wanted):
            raise PlanError(
                f"socle_data_path must be a folder or a list of folders, but is {describe(given)}; correct it."
            )
        base = Path(str(task_vars.get("inventory_dir") or task_vars.get("playbook_dir") or "."))
        return DataPath([_folder(base, entry) for entry in wanted])
    inventory = task_vars.get("inventory_dir")
    if not inventory:
        return DataPath([])
    default = Path(str(inventory)).resolve().parent.parent / "site_data"
    if not os.path.lexists(default):
        return DataPath([])
    if not default.is_dir():
        raise PlanError(f"{default}, where the site's data files belong, is no folder; correct or remove it.")
    return DataPath([default])


def _folder(base: Path, entry: str) -> Path:
    folder = user_path(base, entry, "socle_data_path")
    if not folder.is_dir():
        raise PlanError(f"socle_data_path names {_short(folder)}, which is no folder; correct it or create the folder.")
    return folder


def user_path(base: Path, entry: str, variable: str) -> Path:
    """*entry* of *variable* as a path that can be asked for, from *base* when it is not absolute."""
    try:
        path = base / Path(entry).expanduser()
        os.path.lexists(path)
        path.is_file()
    except (OSError, RuntimeError, ValueError) as error:
        # A home folder of nobody, a name that is too long, a NUL.
        raise PlanError(
            f"{variable} names {short(entry, _SHOWN_PATH)!r}, which cannot be a path ({_reason(error)}); correct it."
        ) from error
    return path
