# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules that plan engine and toolkit ask a repository, before the driver, only where something of it is due."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.socle.inference.plugins.module_utils._toolkit.toolkit_plan import PACKAGES
from ansible_collections.socle.inference.plugins.modules import container_engine_plan, gpu_container_toolkit_plan

NOWHERE = "http://127.0.0.1:1/mirror"
DEBIAN = {"os": {"id": "debian", "codename": "trixie", "id_like": []}}
REPOSITORY = {"name": "docker", "folder": "linux/debian", "key": "linux/debian/gpg", "suites": "trixie"}
DOCKER = {"engine": "docker", "version": "28.1.1", "fresh": False, "packages": {}, "repository": REPOSITORY}
PLAYBOOK = Path(__file__).parents[3] / "playbooks/provision.yml"


class NoConfig:
    def __init__(self, *_given: Any, **_options: Any) -> None:
        pass

    def bring(self, *_given: Any, **_options: Any) -> None:
        pass


def run(module: Any, capsys: pytest.CaptureFixture[str], **options: Any) -> dict[str, Any]:
    with patch_module_args({"facts": DEBIAN, **options}), pytest.raises(SystemExit):
        module.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.parametrize(
    ("version", "held", "state", "asked"),
    [
        ("1.18.2-1", True, "present", True),
        # Only a hold is missing.
        ("1.20.0-1", False, "present", False),
        ("1.20.0-1", True, "present", False),
        ("1.18.2-1", False, "absent", False),
    ],
)
@pytest.mark.parametrize("check", [False, True])
def test_the_toolkits_repository_is_asked_where_packages_change(
    version: str,
    held: bool,
    state: str,
    asked: bool,
    check: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    there = {name: {"version": version, "status": "installed", "held": held} for name in PACKAGES}
    monkeypatch.setattr(gpu_container_toolkit_plan, "read_packages", lambda *_given: there)
    monkeypatch.setattr(gpu_container_toolkit_plan.Holds, "own", lambda _self: set(PACKAGES))
    options = {"version": "1.20.0", "state": state, "repository_url": NOWHERE, "_ansible_check_mode": check}
    result = run(gpu_container_toolkit_plan, capsys, **options)
    assert bool(result.get("failed")) is asked
    if asked:
        assert f"Cannot fetch the signing key {NOWHERE}/gpgkey: " in result["msg"]
        assert "gpu_container_toolkit_repository_url" in result["msg"] and result["msg"].endswith(
            "Nothing was changed."
        )


@pytest.mark.parametrize("repository", [REPOSITORY, None])
def test_dockers_repository_is_asked_where_something_of_it_is_due(
    repository: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(container_engine_plan, "EngineConfig", NoConfig)
    monkeypatch.setattr(container_engine_plan, "engine_version", lambda _run, _engine: "28.1.1")
    planned = {**DOCKER, "repository": repository}
    monkeypatch.setattr(container_engine_plan, "plan", lambda *_given, **_options: planned)
    result = run(container_engine_plan, capsys, docker_repository_url=NOWHERE)
    assert bool(result.get("failed")) is (repository is not None)
    if repository:
        assert f"Cannot fetch the signing key {NOWHERE}/linux/debian/gpg: " in result["msg"]
        assert "container_engine_docker_repository_url" in result["msg"]


def test_both_are_asked_before_the_driver() -> None:
    (play,) = yaml.safe_load(PLAYBOOK.read_text(encoding="utf-8"))
    names = [task["name"] for task in play["tasks"]]
    driver = names.index("Install the driver")
    options = {"container_engine_plan": "docker_repository_url", "gpu_container_toolkit_plan": "repository_url"}
    for module, option in options.items():
        (place,) = [at for at, task in enumerate(play["tasks"]) if f"socle.inference.{module}" in task]
        assert place < driver and option in play["tasks"][place][f"socle.inference.{module}"]
