# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module host_checks as Ansible runs it, on a root folder like a host's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.socle.inference.plugins.modules import host_checks

from .support import Host, cpu_host


def run(capsys: pytest.CaptureFixture[str], root: Path, facts: dict[str, Any], **options: Any) -> dict[str, Any]:
    roots = {"root": str(root), "sys_root": str(root / "sys"), "proc_root": str(root / "proc")}
    with patch_module_args({"facts": facts, **roots, **options}), pytest.raises(SystemExit):
        host_checks.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.fixture(autouse=True)
def no_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine of the test has software of its own."""
    monkeypatch.setattr(host_checks.AnsibleModule, "get_bin_path", lambda *_args, **_options: None)


def test_a_healthy_host_without_gpus_passes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = run(capsys, tmp_path, cpu_host().facts)
    assert not result.get("failed")
    assert result["changed"] is False
    assert result["findings"] == []
    assert "SOC-H78" in result["checked"]
    assert "SOC-H71" not in result["checked"]
    assert result["stack"]["schema"] == "socle.host_stack/1"


def test_errors_fail_with_a_line_each_and_the_whole_result(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    host = Host()
    host.gpu.update(remapped_failure=True, recovery_action="reset", bar1_mib=256)
    result = run(capsys, tmp_path, host.facts, stage="before")
    assert result["failed"]
    assert [line.split(":")[0] for line in result["msg"].splitlines()] == ["SOC-H49", "SOC-H50"]
    assert [one["id"] for one in result["findings"]] == ["SOC-H49", "SOC-H50", "SOC-H53"]
    assert result["checked"]


def test_ignored_checks_and_a_run_that_must_not_fail(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    host = Host()
    host.gpu.update(remapped_failure=True, recovery_action="reset")
    result = run(capsys, tmp_path, host.facts, stage="before", fail=False, ignore=["SOC-H50"])
    assert not result.get("failed")
    assert [one["id"] for one in result["findings"]] == ["SOC-H49"]
    assert "SOC-H50" not in result["checked"]


def test_files_of_the_given_root_are_judged(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "etc/docker/daemon.json"
    path.parent.mkdir(parents=True)
    path.write_text("{'debug': true}", encoding="utf-8")
    result = run(capsys, tmp_path, cpu_host().facts)
    assert result["msg"].startswith("SOC-H78: /etc/docker/daemon.json is no valid JSON object")


def test_no_password_of_an_address_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "etc/apt/sources.list.d/local.list"
    path.parent.mkdir(parents=True)
    address = "https://bob:top@secret@mirror.example/cuda/repos"
    path.write_text(f"deb {address}/debian12/x86_64/ /\ndeb {address}/debian13/x86_64/ /\n", encoding="utf-8")
    host = Host()
    host.driver["error"] = "no answer from http://bob:secret@proxy.example"
    result = run(capsys, tmp_path, host.facts, stage="all", intent={"class_problem": f"{address} is down; wait."})
    assert {"SOC-H22", "SOC-H41", "SOC-H90"} <= {one["id"] for one in result["findings"]}
    assert "https://mirror.example/cuda/repos/debian12/x86_64/" in result["msg"]
    # What the caller gave comes back as it was given.
    del result["invocation"]
    assert "secret" not in json.dumps(result)


def test_the_stage_decides_whether_what_is_there_counts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    host = Host()
    host.facts["toolkit"] = {"version": "1.19.0"}
    before = run(capsys, tmp_path, host.facts, stage="before")
    after = run(capsys, tmp_path, host.facts, stage="after")
    assert "SOC-H02" in before["checked"]
    assert "SOC-H02" not in [one["id"] for one in before["findings"]]
    assert "SOC-H02" in [one["id"] for one in after["findings"]]


def test_an_intent_with_holes_is_taken(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    intent = {"driver_branch": "580", "toolkit_version": "1.19.0", "class": None}
    result = run(capsys, tmp_path, Host().facts, stage="before", intent=intent)
    assert result["msg"].startswith("SOC-H02: ")


@pytest.mark.parametrize("stage", ["before", "after"])
def test_a_driver_of_somebody_else_may_come_from_anywhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, stage: str
) -> None:
    for name in ("etc/apt/sources.list.d/g.list", "usr/bin/nvidia-uninstall"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(
            "deb https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu noble main\n", encoding="utf-8"
        )
    upkeep = {"SOC-H22", "SOC-H65"} if stage == "before" else {"SOC-H65"}
    for state, expected in (("present", upkeep), ("unmanaged", set())):
        result = run(capsys, tmp_path, Host().facts, stage=stage, intent={"driver_state": state})
        assert {one["id"] for one in result["findings"]} & {"SOC-H22", "SOC-H65"} == expected


def test_what_is_asked_to_be_absent_is_not_missed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    host = Host()
    host.set_driver(None)
    host.facts["toolkit"] = {"version": None}

    def found(**intent: str) -> set[str]:
        result = run(capsys, tmp_path, host.facts, stage="after", intent={"engine": "podman", **intent})
        return {one["id"] for one in result["findings"]} & {"SOC-H09", "SOC-H93"}

    assert found() == {"SOC-H09", "SOC-H93"}
    assert found(driver_state="absent") == {"SOC-H09"}
    assert found(toolkit_state="absent") == {"SOC-H93"}
    assert found(driver_state="absent", toolkit_state="absent") == set()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"facts": {"schema": "socle.gpu_facts/1"}}, "expected 'socle.gpu_facts/2'"),
        ({"facts": {}}, "give what gpu_facts returned"),
        ({"ignore": ["SOC-H00"]}, "Cannot ignore SOC-H00: there is no such check"),
        ({"stage": "during"}, "stage"),
        ({"intent": {"driver_brunch": "580"}}, "driver_brunch"),
    ],
)
def test_wrong_input_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    facts = options.pop("facts", cpu_host().facts)
    result = run(capsys, tmp_path, facts, **options)
    assert result["failed"]
    assert words in result["msg"]
