# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is stopped around a change of the driver runs again, whichever run comes to that."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.socle.inference.plugins.module_utils._driver.services import NOTE, Services, noted_units
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.modules import gpu_driver_plan, gpu_driver_services

from tests.support.commands import Commands

from .fake_host import FakeHost, facts

CHAT, CODE = "vllm-chat.service", "vllm-code.service"


class Systemd(Commands):
    """systemctl with some units: name -> ActiveState."""

    def __init__(self, **units: str) -> None:
        super().__init__()
        self.units = {f"vllm-{name}.service": state for name, state in units.items()}
        self.do("systemctl", "show", then=self._show)
        self.do("systemctl", "stop", then=lambda argv: self._set(argv, "inactive"))
        self.do("systemctl", "start", then=lambda argv: self._set(argv, "activating"))

    def _show(self, argv: list[str]) -> tuple[int, str, str]:
        blocks = []
        for name in argv[argv.index("--") + 1 :]:
            load = "loaded" if name in self.units else "not-found"
            blocks.append(f"Id={name}\nLoadState={load}\nActiveState={self.units.get(name, 'inactive')}\n")
        return 0, "\n".join(blocks), ""

    def _set(self, argv: list[str], state: str) -> tuple[int, str, str]:
        self.units.update(dict.fromkeys(argv[argv.index("--") + 1 :], state))
        return 0, "", ""


def test_units_are_noted_before_they_are_stopped(tmp_path: Path) -> None:
    host = Systemd(chat="active")

    def died(_argv: list[str]) -> tuple[int, str, str]:
        raise KeyboardInterrupt

    host.do("systemctl", "stop", then=died)
    with pytest.raises(KeyboardInterrupt):
        Services(host, Files(), tmp_path).stop([CHAT])
    assert noted_units(Files(), tmp_path) == [CHAT]
    assert stat.S_IMODE((tmp_path / NOTE).stat().st_mode) == 0o600


def test_a_later_run_starts_what_an_interrupted_one_had_stopped(tmp_path: Path) -> None:
    host = Systemd(chat="active", code="active")
    Services(host, Files(), tmp_path).stop([CHAT])
    # The next run stops what runs now, and is interrupted as well.
    Services(host, Files(), tmp_path).stop([CODE])
    assert set(host.units.values()) == {"inactive"}
    host.units[CODE] = "active"
    result = Services(host, Files(), tmp_path).start()
    assert result == {"changed": True, "units": [CHAT], "gone": []}
    assert host.units == {CHAT: "activating", CODE: "active"}
    assert not (tmp_path / NOTE).exists()
    assert Services(host, Files(), tmp_path).start()["changed"] is False


def test_a_unit_that_is_gone_is_told_and_keeps_no_other_from_its_start(tmp_path: Path) -> None:
    host = Systemd(chat="active", code="active")
    Services(host, Files(), tmp_path).stop([CHAT, CODE])
    del host.units[CODE]
    assert Services(host, Files(), tmp_path).start() == {"changed": True, "units": [CHAT], "gone": [CODE]}
    assert not (tmp_path / NOTE).exists()


def test_a_start_that_fails_is_one_sentence_and_tried_again(tmp_path: Path) -> None:
    host = Systemd(chat="active")
    Services(host, Files(), tmp_path).stop([CHAT])
    host.on("systemctl", "start", rc=1, err="Failed to start.\nSee logs.\n")
    with pytest.raises(
        SocleError, match=r"^Cannot start vllm-chat.service again, .*: Failed to start\. See logs; see "
    ):
        Services(host, Files(), tmp_path).start()
    assert noted_units(Files(), tmp_path) == [CHAT]


def test_a_stop_that_fails_is_one_sentence_and_leaves_its_note(tmp_path: Path) -> None:
    host = Systemd(chat="active")
    host.on("systemctl", "stop", rc=1, err="Access denied\n")
    with pytest.raises(
        SocleError, match=r"^Cannot stop vllm-chat.service for the change of the driver: Access denied; "
    ):
        Services(host, Files(), tmp_path).stop([CHAT])
    assert noted_units(Files(), tmp_path) == [CHAT]


def test_nothing_is_stopped_that_cannot_be_noted(tmp_path: Path) -> None:
    host = Systemd(chat="active")
    (tmp_path / NOTE).mkdir(parents=True)
    with pytest.raises(SocleError, match="Cannot note which units are stopped: Is a directory"):
        Services(host, Files(), tmp_path).stop([CHAT])
    assert host.units == {CHAT: "active"}


@pytest.mark.parametrize("text", ["{", "[]", '{"units": 1}', '{"units": ["--force", 1, ""]}'])
def test_a_damaged_note_names_no_unit(tmp_path: Path, text: str) -> None:
    (tmp_path / NOTE).parent.mkdir(parents=True)
    (tmp_path / NOTE).write_text(text, encoding="utf-8")
    assert noted_units(Files(), tmp_path) == []


def test_check_mode_stops_starts_and_notes_nothing(tmp_path: Path) -> None:
    host = Systemd(chat="active")
    services = Services(host, Files(), tmp_path)
    assert services.stop([CHAT], check=True) == {"changed": True, "units": [CHAT], "gone": []}
    assert not (tmp_path / NOTE).exists() and host.units == {CHAT: "active"}
    services.stop([CHAT])
    assert services.start(check=True)["units"] == [CHAT]
    services.forget(check=True)
    assert noted_units(Files(), tmp_path) == [CHAT] and host.units == {CHAT: "inactive"}
    services.forget()
    assert not (tmp_path / NOTE).exists() and host.units == {CHAT: "inactive"}


def run_module(module: Any, options: dict[str, Any], root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    with patch_module_args({**options, "root": str(root)}), pytest.raises(SystemExit):
        module.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_the_plan_tells_what_is_noted_and_the_module_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], warned: list[str]
) -> None:
    host = Systemd(chat="active", code="active")
    monkeypatch.setattr(gpu_driver_services, "run", host)
    run_module(gpu_driver_services, {"state": "stopped", "units": [CHAT, CODE]}, tmp_path, capsys)
    del host.units[CODE]
    monkeypatch.setattr(gpu_driver_plan, "host_of", lambda _module: FakeHost(tmp_path).host())
    planned = run_module(gpu_driver_plan, {"facts": facts(gpus=[])}, tmp_path, capsys)
    assert planned["stopped"] == [CHAT, CODE]
    started = run_module(gpu_driver_services, {"state": "started"}, tmp_path, capsys)
    assert started["units"] == [CHAT] and host.units == {CHAT: "activating"}
    assert f"{CODE} was stopped for a change of the driver and is not started again" in str(warned)
