# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a model's own template is looked for, how the new one is kept, and the module as a playbook runs it."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.socle.inference.plugins.module_utils._engine.chat_template import keep, own_template
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._plan.template_overlay import (
    MAX_BYTES,
    digest,
    file_name,
    overlay,
)

from tests.support.effort_model import LEVELS, THREE_LEVELS, XHIGH
from tests.support.playbook import play

ROOT = Path(__file__).parents[3]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    return folder


def test_the_file_of_its_own_comes_before_what_the_tokeniser_says(model: Path) -> None:
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": "old"}), encoding="utf-8")
    assert (own_template(model, Files()).text, own_template(model, Files()).source) == ("old", "tokenizer_config.json")
    (model / "chat_template.json").write_text(json.dumps({"chat_template": "newer"}), encoding="utf-8")
    assert own_template(model, Files()).text == "newer"
    (model / "chat_template.jinja").write_text("newest", encoding="utf-8")
    assert (own_template(model, Files()).text, own_template(model, Files()).source) == ("newest", "chat_template.jinja")


def test_a_single_named_template_is_the_one(model: Path) -> None:
    named = [{"name": "default", "template": "t"}]
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}), encoding="utf-8")
    assert own_template(model, Files()).text == "t"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "has no chat template of its own"),
        ({"tokenizer_config.json": "{}"}, "has no chat template of its own"),
        ({"tokenizer_config.json": "[1]"}, "has no chat template of its own"),
        ({"tokenizer_config.json": "{"}, "is no JSON .*verify the model"),
        (
            {"tokenizer_config.json": json.dumps({"chat_template": [{"name": n, "template": "t"} for n in "ab"]})},
            "has 2 chat templates",
        ),
        ({"chat_template.jinja": "t", "additional_chat_templates/tool_use.jinja": "u"}, "has several chat templates"),
        ({"chat_template.jinja": "x" * (MAX_BYTES + 1)}, "bytes, more than"),
    ],
)
def test_a_model_without_one_template_is_refused(model: Path, files: dict[str, str], said: str) -> None:
    for name, text in files.items():
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(text, encoding="utf-8")
    with pytest.raises(EngineError, match=said):
        own_template(model, Files())


def test_a_template_that_is_no_text_is_told_as_such(model: Path) -> None:
    (model / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(EngineError, match="no UTF-8"):
        own_template(model, Files())


def test_it_is_written_once_and_readable_for_the_engine(tmp_path: Path) -> None:
    first = keep(tmp_path, "text", Files(), check=True)
    assert first["changed"] and not Path(first["path"]).exists()
    assert keep(tmp_path, "text", Files())["changed"]
    again = keep(tmp_path, "text", Files())
    assert not again["changed"]
    written = Path(again["path"])
    assert written.read_text(encoding="utf-8") == "text"
    assert (written.stat().st_mode & 0o777, written.parent.stat().st_mode & 0o777) == (0o644, 0o755)
    assert [path.name for path in written.parent.iterdir()] == [written.name]


def test_one_that_was_changed_by_hand_is_put_right(tmp_path: Path) -> None:
    written = Path(keep(tmp_path, "text", Files())["path"])
    written.write_text("other", encoding="utf-8")
    found = keep(tmp_path, "text", Files())
    assert (found["changed"], found["before"]) == (True, "other")
    written.chmod(0o600)
    assert keep(tmp_path, "text", Files())["changed"]
    assert written.stat().st_mode & 0o777 == 0o644


DAY_S = 24 * 3600


def an_old_overlay(state: Path, text: str, aliases: dict[str, str] = XHIGH, age_s: float = 2 * DAY_S) -> Path:
    """A template that was made *age_s* ago."""
    made = overlay(text, aliases)
    path = state / "chat_templates" / file_name(digest(made))
    Files().write(path, made)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def a_generation(state: Path, instance: str, number: int, template: Path) -> None:
    folder = state / "instances" / instance / "generations" / str(number)
    folder.mkdir(parents=True)
    plan = {"mounts": [{"kind": "chat_template", "source": str(template), "target": "/t", "read_only": True}]}
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")


def test_templates_that_no_generation_has_are_removed_and_all_others_stay(tmp_path: Path) -> None:
    forgotten, used, earlier, fresh = (
        an_old_overlay(tmp_path, "a"),
        an_old_overlay(tmp_path, "b"),
        an_old_overlay(tmp_path, "c"),
        an_old_overlay(tmp_path, "d", age_s=60),
    )
    a_generation(tmp_path, "agents", 1, earlier)
    a_generation(tmp_path, "chat", 7, used)
    own = tmp_path / "chat_templates" / "0123456789ab.jinja"
    own.write_text("a template of the site", encoding="utf-8")
    odd = tmp_path / "chat_templates" / "0123456789ac.jinja"
    odd.write_bytes(b"\xff\xfe")
    for path in (own, odd):
        os.utime(path, (0, 0))

    ahead = keep(tmp_path, overlay("d", XHIGH), Files(), check=True)
    assert (ahead["changed"], ahead["removed"], forgotten.exists()) == (True, [str(forgotten)], True)
    found = keep(tmp_path, overlay("d", XHIGH), Files())
    assert (found["changed"], found["removed"]) == (True, [str(forgotten)])
    assert not forgotten.exists()
    assert all(path.exists() for path in (used, earlier, fresh, own, odd))
    assert keep(tmp_path, overlay("d", XHIGH), Files()) == {**found, "changed": False, "removed": []}


def test_one_that_is_made_again_is_not_removed_before_it_is_launched(tmp_path: Path) -> None:
    old = an_old_overlay(tmp_path, "a")
    found = keep(tmp_path, overlay("a", XHIGH), Files())
    assert (found["changed"], found["removed"]) == (False, [])
    assert keep(tmp_path, overlay("b", XHIGH), Files())["removed"] == []
    assert old.exists()


def test_a_plan_that_cannot_be_read_keeps_everything(tmp_path: Path) -> None:
    old = an_old_overlay(tmp_path, "a")
    folder = tmp_path / "instances" / "chat" / "generations" / "1"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_bytes(b"\xff\xfe")
    assert keep(tmp_path, overlay("b", XHIGH), Files())["removed"] == []
    assert old.exists()


@pytest.fixture
def site(tmp_path: Path, model: Path) -> Path:
    task = {
        "model_path": str(model),
        "model": "org/Test",
        "levels": list(LEVELS),
        "aliases": XHIGH,
        "state_dir": str(tmp_path / "state"),
    }
    plays = [{"hosts": "all", "gather_facts": False, "tasks": [{"socle.inference.vllm_chat_template": task}] * 2}]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(plays), encoding="utf-8")
    (tmp_path / "hosts").write_text(
        f"localhost ansible_connection=local ansible_python_interpreter={sys.executable}\n", encoding="utf-8"
    )
    (tmp_path / "ansible.cfg").write_text("[defaults]\n", encoding="utf-8")
    return tmp_path


def results(site: Path, *options: str) -> list[dict[str, Any]]:
    _done, tasks = play(site, "play.yml", "-i", "hosts", *options, timeout_s=120)
    return [task["hosts"]["localhost"] for task in tasks]


def test_the_module_makes_one_and_leaves_the_model_alone(site: Path, model: Path) -> None:
    (model / "chat_template.jinja").write_text(THREE_LEVELS, encoding="utf-8")
    model.chmod(0o555)
    ahead, _again = results(site, "--check", "--diff")
    assert ahead["changed"] and ahead["diff"]["after"] == overlay(THREE_LEVELS, XHIGH)
    assert not (site / "state").exists()

    first, again = results(site)
    assert (first["changed"], again["changed"]) == (True, False)
    assert first["digest"] == ahead["digest"] == again["digest"]
    assert Path(first["path"]).read_text(encoding="utf-8") == overlay(THREE_LEVELS, XHIGH)
    assert first["source"] == "chat_template.jinja"
    assert [path.name for path in model.iterdir()] == ["chat_template.jinja"]
    assert (model / "chat_template.jinja").read_text(encoding="utf-8") == THREE_LEVELS


def test_a_template_that_is_refused_leaves_nothing_behind(site: Path, model: Path) -> None:
    (model / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    (refused,) = results(site)
    assert refused["failed"]
    assert refused["msg"].startswith("The chat template of org/Test knows no levels of effort")
    assert not (site / "state").exists()


def test_a_template_that_takes_too_much_is_refused_and_leaves_nothing_behind(site: Path, model: Path) -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}much text{% endfor %}{% endfor %}"
    (model / "chat_template.jinja").write_text(endless + THREE_LEVELS, encoding="utf-8")
    (refused,) = results(site)
    assert refused["msg"].startswith("The chat template of org/Test cannot be rendered on the controller: it writes")
    assert not (site / "state").exists()


def test_check_mode_before_the_model_is_there(site: Path, model: Path) -> None:
    model.rmdir()
    first, _again = results(site, "--check")
    assert (first["changed"], first["path"], first["digest"]) == (True, None, None)
    (refused,) = results(site)
    assert "is no folder" in refused["msg"]


def test_deployment_makes_the_template_before_it_seals() -> None:
    tasks = yaml.safe_load((ROOT / "playbooks/tasks/launch_instance.yml").read_text(encoding="utf-8"))
    names = [task["name"] for task in tasks]
    made = next(task for task in tasks if "socle.inference.vllm_chat_template" in task)
    seal = tasks[names.index("Seal the plan")]["socle.inference.vllm_plan"]["seal"]
    assert names.index(made["name"]) < names.index("Seal the plan")
    for key in ("digest", "path"):
        assert f"{made['register']}.{key}" in seal[f"chat_template_{key}"]
