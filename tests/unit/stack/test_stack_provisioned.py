# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The line at the end of provision.yml, and what of the checks is shown again."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._stack.provisioned import news, provision_line

IDLE: dict[str, dict[str, Any]] = {
    "driver": {"version": "580.178.04", "flavour": "open", "reboot": False, "changed": False, "state": "present"},
    "engine": {"engine": "podman", "version": "5.4.2", "action": "none", "enabled": False, "changed": False},
    "toolkit": {"version": "1.20.0", "changed": False, "state": "present"},
}


def facts(
    driver: str | None = "580.178.04",
    flavour: str = "open",
    podman: str | None = "5.4.2",
    docker: str | None = None,
    toolkit: str | None = "1.20.0",
) -> dict[str, Any]:
    return {
        "driver": {"version": driver, "flavour": flavour if driver else None},
        "engines": {"podman": podman, "docker": docker},
        "toolkit": {"version": toolkit},
    }


def finding(identity: str = "SOC-H47", severity: str = "warning", message: str = "It is hot.") -> dict[str, Any]:
    return {"id": identity, "severity": severity, "title": "Heat", "message": message, "remedy": "Cool it."}


def line(
    before: dict[str, Any],
    after: dict[str, Any],
    check: bool = False,
    findings: tuple[dict[str, Any], ...] = (),
    known: tuple[dict[str, Any], ...] = (),
    **done: dict[str, Any],
) -> str:
    results = {name: {**IDLE[name], **done.get(name, {})} for name in IDLE}
    checked = {"findings": list(findings), "checked": ["SOC-H47"]}
    return provision_line(after, "sim-a100", {"facts": before, "findings": list(known)}, results, checked, check)


CHANGED = {"changed": True}
REBOOT = {"changed": True, "reboot": True}


def test_an_upgrade_with_a_reboot_says_both_versions() -> None:
    said = line(facts("580.126.09"), facts(), findings=(finding(),), driver=REBOOT)
    assert said == (
        "sim-a100: driver 580.126.09 -> 580.178.04 (open), podman 5.4.2, toolkit 1.20.0, rebooted; 1 warning"
    )


def test_a_bare_host_gets_everything() -> None:
    bare = facts(None, podman=None, toolkit=None)
    said = line(bare, facts(), driver=CHANGED, engine=CHANGED, toolkit=CHANGED)
    assert said == "sim-a100: driver none -> 580.178.04 (open), podman none -> 5.4.2, toolkit none -> 1.20.0"


@pytest.mark.parametrize(("check", "words"), [(False, "nothing changed"), (True, "nothing would change")])
def test_a_run_without_work_says_what_is_there(check: bool, words: str) -> None:
    said = line(facts(), facts(), check)
    assert said == f"sim-a100: driver 580.178.04 (open), podman 5.4.2, toolkit 1.20.0, {words}"


def test_check_mode_says_what_would_be() -> None:
    was = facts("580.126.09", toolkit=None)
    said = line(was, was, True, driver=REBOOT, toolkit=CHANGED)
    assert said == (
        "sim-a100 would be: driver 580.126.09 -> 580.178.04 (open), podman 5.4.2, toolkit none -> 1.20.0, with a reboot"
    )
    unknown = line(was, was, True, driver={"version": None, "changed": True})
    assert "driver 580.126.09 -> the newest on offer (open)" in unknown


@pytest.mark.parametrize("check", [False, True])
def test_what_is_removed_ends_in_none(check: bool) -> None:
    absent = {"changed": True, "state": "absent", "version": None, "flavour": None}
    gone = facts() if check else facts(None, toolkit=None)
    said = line(facts(), gone, check, driver=absent, toolkit=absent)
    assert said.endswith(": driver 580.178.04 -> none, podman 5.4.2, toolkit 1.20.0 -> none")


def test_changes_of_the_same_version_are_told() -> None:
    said = line(facts(), facts(flavour="proprietary"), driver=CHANGED, engine=CHANGED)
    assert said == (
        "sim-a100: driver 580.178.04 (open -> proprietary), podman 5.4.2 (settings changed), toolkit 1.20.0"
    )


def test_a_docker_that_was_off_is_told() -> None:
    docker = {"engine": "docker", "version": "26.1.5", "action": "start", "enabled": True, "changed": True}
    was = facts(docker="26.1.5")
    assert "docker 26.1.5 (started, enabled), toolkit" in line(was, was, engine=docker)
    assert "docker none -> 26.1.5, toolkit" in line(facts(), was, engine=docker)
    # A client alone was there.
    assert "docker none -> 26.1.5, toolkit" in line(was, was, engine={**docker, "fresh": True})


def test_a_host_that_gives_everything_up_names_no_engine() -> None:
    absent = {"changed": True, "state": "absent", "version": None, "flavour": None}
    before = {"facts": facts(podman=None), "findings": []}
    done: dict[str, Any] = {"driver": absent, "engine": {}, "toolkit": absent}
    after = facts(None, podman=None, toolkit=None)
    said = provision_line(after, "sim-a100", before, done, {"findings": []})
    assert said == "sim-a100: driver 580.178.04 -> none, toolkit 1.20.0 -> none"


def test_a_host_without_gpus_names_its_engine_only() -> None:
    done: dict[str, Any] = {"driver": {}, "engine": IDLE["engine"], "toolkit": {}}
    was = facts(None, toolkit=None)
    before = {"facts": was, "findings": []}
    assert provision_line(was, "cpu-1", before, done, {"findings": []}) == "cpu-1: podman 5.4.2, nothing changed"


def test_findings_are_counted_once_and_earlier_ones_stay() -> None:
    known = (finding(), finding("SOC-H96"))
    said = line(facts(), facts(), findings=(finding(), finding("SOC-H97", "error")), known=known)
    assert said.endswith("; 1 error, 2 warnings")
    # What was made right by the run is not counted.
    assert line(facts(), facts(), known=(finding(),)).endswith("nothing changed")


def test_findings_that_were_shown_are_left_out_but_for_errors_and_new_words() -> None:
    known = [finding(), finding("SOC-H01", "error")]
    after = [finding(message="It is hotter."), *known]
    assert news(after, known) == [after[0], known[1]]
    assert news(after, []) == after
