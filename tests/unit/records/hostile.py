# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A tree full of what a reader of records must survive."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._records.schema import MAX_BYTES, Record

from .conftest import make

JINJA = "{{ lookup('ansible.builtin.pipe', 'touch OWNED') }}"


def _with(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


def _record(**fields: object) -> Record:
    record, _text = make()
    return record | fields


def _huge(path: Path) -> None:
    with path.open("wb") as handle:
        handle.truncate(MAX_BYTES + 1)


MAKERS: list[Callable[[Path], object]] = [
    _with("not JSON"),
    _with(""),
    _with("plugin: ansible.builtin.host_list\n"),
    _with("[all]\nhostile ansible_connection=local\n"),
    _with("[" * 100_000),
    _with(json.dumps(_record(results={"x": 7})).replace("7}", "[" * 50 + "]" * 50 + "}")),
    _with(json.dumps(_record(results={"x": float("nan")}))),
    _with(json.dumps(_record(results={"x": float("inf")}))),
    _with('{"schema": "socle.record/1", "schema": "socle.record/1"}'),
    _with(json.dumps(_record(schema="socle.record/99"))),
    _with(json.dumps(_record(results=[], host={}))),
    _with(json.dumps(_record(host=JINJA))),
    _with(json.dumps(_record(instance="../../../etc"))),
    _with(json.dumps(_record(kind=JINJA))),
    _with(json.dumps({"all": {"hosts": {"intruder": {"x": JINJA}}, "children": {"intruders": {}}}})),
    lambda path: path.write_bytes(b"\xff\xfe\x00"),
    _huge,
    lambda path: path.symlink_to("/etc/passwd"),
    lambda path: path.symlink_to(path),
    os.mkfifo,
    Path.mkdir,
    lambda path: path.with_name(f"{path.stem}\n[intruders]\nx.json").write_text("x"),
    lambda path: path.with_name(f"{path.stem}{{{{ 1 + 1 }}}}.yml").write_text("x"),
]


def plant(root: Path, count: int) -> int:
    """Put *count* hostile entries where records of gpu1 belong; returns the count."""
    folder = root / "gpu1" / "chat"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        day, rest = divmod(number, 86400)
        stamp = f"202501{day + 1:02d}T{rest // 3600:02d}{rest // 60 % 60:02d}{rest % 60:02d}Z"
        MAKERS[number % len(MAKERS)](folder / f"{stamp}-acceptance.json")
    return count
