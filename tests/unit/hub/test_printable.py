# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names that are no text, in what modules return: Ansible refuses an answer that holds one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.socle.inference.plugins.module_utils._hub import removal
from ansible_collections.socle.inference.plugins.module_utils._hub.printable import printable
from ansible_collections.socle.inference.plugins.modules import model_store_gc, model_store_info, model_store_remove

from tests.support.model_store import WEIGHTS, finish

NO_TEXT = os.fsdecode(b"\xff")


def as_text(answer: Any) -> str:
    """As Ansible reads it; raises UnicodeEncodeError where it would not."""
    return json.dumps(answer, ensure_ascii=False).encode().decode()


def test_only_what_is_no_text_is_spelled_out() -> None:
    answer = {NO_TEXT: [f"a{NO_TEXT}", "\u00e4\n", 1, None, True, ("x",)]}
    assert printable(answer) == {r"\udcff": [r"a\udcff", "\u00e4\n", 1, None, True, ["x"]]}


@pytest.mark.parametrize("module", [model_store_info, model_store_gc, model_store_remove])
def test_links_and_folders_of_others_may_be_called_what_they_like(
    ensure: Callable[..., dict[str, Any]],
    store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
) -> None:
    # Where the tests run in a container, its root may not look at all processes.
    monkeypatch.setattr(removal, "find_holders", lambda *_arguments: {})
    path = Path(ensure()["path"])
    (store / NO_TEXT).symlink_to(path)
    (store / ".store" / "modelscope" / NO_TEXT).mkdir()
    args: dict[str, Any] = {"store": str(store), "state_dir": str(tmp_path), "_ansible_check_mode": True}
    if module is model_store_remove:
        args["repo"] = "Org/Model"
    with patch_module_args(args), pytest.raises(SystemExit) as ended:
        module.main()
    answer = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0, answer
    assert r"\udcff" in as_text(answer)


def test_folders_to_adopt_from_may_be_called_what_they_like(
    start: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "caches" / NO_TEXT
    shutil.copytree(folder, cache)
    (cache / WEIGHTS).write_bytes(bytes((folder / WEIGHTS).stat().st_size))
    answer = finish(start(adopt_from=[str(cache.parent)], allow_volatile_fs=True))
    assert answer["changed"]
    assert rf"\\udcff/{WEIGHTS} has the name and size of {WEIGHTS}" in as_text(answer)
