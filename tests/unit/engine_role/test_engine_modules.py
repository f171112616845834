# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules that plan and bring an engine's settings, as Ansible runs them, on a root folder like a host's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible_collections.socle.inference.plugins.module_utils._toolkit.engine_config import EngineConfig
from ansible_collections.socle.inference.plugins.modules import container_engine_config, container_engine_plan

from tests.support.commands import Commands

PLAN = {"engine": "docker", "version": "26.1.5", "fresh": False, "packages": []}
MODULES = [(container_engine_plan, {"facts": {}}), (container_engine_config, {"engine": "docker"})]


def damage(file: Path, how: str) -> None:
    if how == "folder":
        file.mkdir(parents=True)
        return
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\xff")


@pytest.mark.parametrize(("module", "options"), MODULES)
@pytest.mark.parametrize(("how", "words"), [("folder", "Is a directory"), ("bytes", "its byte 0 is no UTF-8 text")])
def test_a_daemon_json_that_cannot_be_read_is_one_sentence_with_its_path(
    module: Any,
    options: dict[str, Any],
    how: str,
    words: str,
    commands: Commands,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def config(_run: Any, files: Any, state_dir: Path) -> EngineConfig:
        return EngineConfig(commands, files, tmp_path, state_dir, lambda name: f"/usr/sbin/{name}")

    monkeypatch.setattr(module, "EngineConfig", config)
    monkeypatch.setattr(module, "engine_version", lambda _run, _engine: "26.1.5")
    monkeypatch.setattr(container_engine_plan, "plan", lambda *_given, **_options: dict(PLAN))
    file = tmp_path / "etc/docker/daemon.json"
    damage(file, how)
    with patch_module_args({**options, "state_dir": str(tmp_path / "state")}), pytest.raises(SystemExit):
        module.main()
    result = json.loads(capsys.readouterr().out)
    assert result["failed"]
    assert f": {words} ({file}); " in result["msg"] and result["msg"].endswith(", then repeat the run.")


def bring_docker(
    commands: Commands,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    **options: Any,
) -> dict[str, Any]:
    """The result of container_engine_config for the Docker of a folder like a host's."""

    def config(_run: Any, files: Any, state_dir: Path) -> EngineConfig:
        return EngineConfig(commands, files, root, state_dir, lambda name: f"/usr/sbin/{name}")

    monkeypatch.setattr(container_engine_config, "EngineConfig", config)
    monkeypatch.setattr(container_engine_config, "engine_version", lambda _run, _engine: "26.1.5")
    given = {"engine": "docker", "state_dir": str(root / "state"), "_ansible_diff": True, **options}
    with patch_module_args(given), pytest.raises(SystemExit):
        container_engine_config.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_a_diff_shows_a_docker_that_is_started_and_enabled(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.on("systemctl", "show", out="ActiveState=inactive\nUnitFileState=disabled\n")
    result = bring_docker(commands, tmp_path, monkeypatch, capsys)
    assert result["changed"] and result["enabled"]
    assert result["diff"][-1] == {
        "before_header": "docker.service",
        "after_header": "docker.service",
        "before": "disabled, inactive\n",
        "after": "enabled, active\n",
    }


@pytest.mark.parametrize(("running", "told"), [("", False), ("vllm-chat\tchat\n", True)])
def test_a_restart_is_warned_of_only_where_containers_ran(
    running: str,
    told: bool,
    warned: list[str],
    commands: Commands,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    commands.on("systemctl", "show", out="ActiveState=active\nUnitFileState=enabled\n")
    commands.on("docker", "ps", out=running)
    result = bring_docker(commands, tmp_path, monkeypatch, capsys, log_max_size="50m")
    assert result["action"] == "restart"
    assert ("containers that run on it: 1" in str(warned)) is told


@pytest.mark.parametrize("engine", ["podman", "docker"])
@pytest.mark.parametrize("proxy", ["proxy.example.org:3128", "http://proxy.example.org:3128"])
def test_a_proxy_without_a_password_is_shown(
    engine: str,
    proxy: str,
    commands: Commands,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = bring_docker(commands, tmp_path, monkeypatch, capsys, engine=engine, proxy={"https": proxy})
    assert proxy in result["diff"][0]["after"] and "****" not in str(result)


@pytest.mark.parametrize(
    "proxy",
    [
        "http://joe:hunter2@proxy.example.org:3128",
        "http://joe:hun@ter2@proxy.example.org:3128",
        "joe:hunter2@proxy.example.org:3128",
        "http://hunter2@proxy.example.org:3128",
        "http://joe:hun/ter2@proxy.example.org:3128",
    ],
)
@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_a_proxys_password_is_in_no_result_no_argument_and_no_log(
    engine: str,
    proxy: str,
    commands: Commands,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(AnsibleModule, "log", lambda _self, msg, log_args=None: logged.append(f"{msg} {log_args}"))
    result = bring_docker(commands, tmp_path, monkeypatch, capsys, engine=engine, proxy={"https": proxy})
    assert result["invocation"]["module_args"]["proxy"]["https"].endswith("********proxy.example.org:3128")
    assert "Invoked with" in str(logged)
    for shown in (str(result), str(logged)):
        assert "hun" not in shown and "ter2" not in shown


def test_a_password_that_was_withdrawn_is_in_no_diff(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "joe:hunter2@proxy.example.org:3128"
    bring_docker(commands, tmp_path, monkeypatch, capsys, proxy={"https": secret})
    result = bring_docker(commands, tmp_path, monkeypatch, capsys, engine="podman")
    assert "proxy.example.org:3128" in result["diff"][-1]["before"] and "hunter2" not in str(result)
