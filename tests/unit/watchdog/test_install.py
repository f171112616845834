# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A watchdog on its host: what is written, when it is started anew, and what is left when it goes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._watchdog import units
from ansible_collections.socle.inference.plugins.module_utils._watchdog.install import Installer, program_files
from ansible_collections.socle.inference.plugins.module_utils._watchdog.settings import Settings, from_mapping

from tests.support.commands import Commands


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands = Commands()
        self.commands.on("-c", out="3.9\n")
        self.state("disabled", "inactive")
        (folder / "units").mkdir()
        self.settings = Settings("chat", "gpu1", state_dir=str(folder / "state"))

    def state(self, enabled: str, active: str) -> None:
        self.commands.on("show", out=f"UnitFileState={enabled}\nActiveState={active}\n")

    def installer(self, check: bool = False) -> Installer:
        return Installer(
            self.commands,
            Files(),
            program_dir=self.folder / "opt/watchdog",
            python="/usr/bin/python3",
            check=check,
            unit_dir=self.folder / "units",
        )

    def present(self, check: bool = False, **settings: Any) -> dict[str, Any]:
        values = {**json.loads(self.settings.text()), **settings}
        result = self.installer(check).present(from_mapping(values))
        if not check:
            self.state("enabled", "active")
        return result

    def files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_first_time_all_is_written_and_it_is_started(site: Site) -> None:
    result = site.present()
    assert result["changed"] and result["unit"] == "socle-watchdog@chat.service"
    assert site.commands.ran("systemctl", "daemon-reload") == 1
    assert site.commands.ran("systemctl", "enable", "socle-watchdog@chat.service") == 1
    assert site.commands.ran("systemctl", "restart", "socle-watchdog@chat.service") == 1
    settings = site.folder / "state/watchdog/chat/settings.json"
    assert from_mapping(json.loads(settings.read_text())) == site.settings
    assert settings.stat().st_mode & 0o777 == 0o640


def test_a_second_time_nothing_happens(site: Site) -> None:
    site.present()
    before = len(site.commands.calls)
    assert site.present() == {"changed": False, "changes": [], "unit": "socle-watchdog@chat.service"}
    assert [call for call in site.commands.calls[before:] if call[0] == "systemctl" and call[1] != "show"] == []


def test_other_settings_or_a_newer_program_start_it_anew(site: Site) -> None:
    site.present()
    assert site.present(restarts_per_hour=1)["changes"] == ["settings", "started"]
    stale = site.folder / "opt/watchdog/ansible_collections/socle/old.py"
    stale.write_text("gone")
    (site.folder / "opt/watchdog/__main__.py").write_text("older")
    assert site.present(restarts_per_hour=1)["changes"] == ["program", "started"]
    assert not stale.exists()


def test_one_that_does_not_run_is_started(site: Site) -> None:
    site.present()
    site.state("enabled", "failed")
    assert site.present()["changes"] == ["started"]


def test_check_mode_says_what_would_change_and_changes_nothing(site: Site) -> None:
    assert site.present(check=True)["changed"]
    assert site.files() == set()
    assert all(call[1] == "show" for call in site.commands.calls if call[0] == "systemctl")


def test_the_program_goes_with_the_last_instance(site: Site) -> None:
    site.present()
    site.present(instance="other")
    state = site.folder / "state"
    assert "program" not in site.installer().absent("chat", state)["changes"]
    assert (site.folder / "opt/watchdog/__main__.py").exists()
    site.installer().absent("other", state)
    assert site.files() == set()
    site.state("", "inactive")
    assert not site.installer().absent("chat", state)["changed"]


def test_what_somebody_else_keeps_there_stays(site: Site) -> None:
    site.present()
    note = site.folder / "opt/watchdog/note.txt"
    note.write_text("mine")
    site.installer().absent("chat", site.folder / "state")
    assert note.read_text() == "mine"


def test_a_python_that_is_too_old_is_refused_before_anything_is_written(site: Site) -> None:
    site.commands.on("-c", out="3.6\n")
    with pytest.raises(EngineError, match=r"found 3\.6.*set watchdog_host_python"):
        site.present()
    assert site.files() == set()


def test_the_program_is_complete_and_needs_no_ansible(tmp_path: Path) -> None:
    for path, text in program_files().items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", tmp_path, tmp_path / "none.json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": os.environ["PATH"]},
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("<3>The watchdog cannot read its settings")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"instance": "chat"}, "lack host"),
        ({"instance": "chat", "host": "h", "window_s": 0}, "window_s is 0, expected a whole number, 1 or more"),
        ({"instance": "chat", "host": "h", "restart": "yes"}, "restart is 'yes', expected true or false"),
        ({"instance": "chat", "host": "h", "speed": 1}, "speed is 1, expected no such setting"),
        ({"instance": "chat", "host": ""}, "host is '', expected a text"),
    ],
)
def test_wrong_settings_say_what_is_expected(values: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError) as caught:
        from_mapping(values)
    assert words in caught.value.message


def test_a_path_that_a_unit_cannot_hold_is_refused() -> None:
    with pytest.raises(EngineError, match="state folder"):
        units.template_text("/usr/bin/python3", "/opt/socle/watchdog", "/var/lib/so cle")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    (tmp_path / units.service("chat")).write_text(
        units.template_text(sys.executable, "/opt/socle/watchdog", "/var/lib/s")
    )
    (tmp_path / units.alarm("chat")).write_text(units.alarm_text())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *sorted(tmp_path.iterdir())],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
