# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the modules of the driver say in check mode, as a gate before a run reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.socle.inference.plugins.modules import gpu_driver_plan, gpu_driver_repository

from .fake_host import FakeHost, facts

BASE = "https://mirror.example.org/cuda/repos"


@pytest.fixture
def fake(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def checked(
    module: Any,
    fake: FakeHost,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    told: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    monkeypatch.setattr(module, "host_of", lambda _module: fake.host())
    given = {"repository_url": BASE, "architecture": "ampere", **settings}
    options = {"facts": told or facts(), "settings": given, "_ansible_check_mode": True}
    with patch_module_args(options), pytest.raises(SystemExit):
        module.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_a_pin_that_does_not_exist_fails(
    fake: FakeHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.add_source()
    result = checked(gpu_driver_repository, fake, monkeypatch, capsys, version="580.999.01")
    assert result["failed"] and result["msg"].startswith("Driver 580.999.01 is not in https://mirror.example.org/")
    assert result["msg"].endswith("set gpu_driver_version to one of these. Nothing was changed.")
    fake.failures["update"] = "E: Could not connect to mirror.example.org:443\n"
    result = checked(gpu_driver_repository, fake, monkeypatch, capsys, version="580.999.01")
    assert result["failed"] and "could not be read anew" in result["msg"]


def test_a_repository_that_is_yet_to_be_added_is_warned_of(
    fake: FakeHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], warned: list[str]
) -> None:
    result = checked(gpu_driver_repository, fake, monkeypatch, capsys, version="580.999.01")
    assert not result.get("failed") and not fake.said("update")
    assert "whether it has driver 580.999.01 is not known" in " ".join(warned)
    assert any("(the repository's key)" in one["after"] for one in result["diff"])


def test_a_plan_that_holds_is_not_warned_of(
    fake: FakeHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], warned: list[str]
) -> None:
    fake.add_source()
    result = checked(gpu_driver_repository, fake, monkeypatch, capsys, version="580.178.04")
    assert result["plan"]["final"] and not warned and not fake.said("update")


def test_an_upgrade_that_a_pin_forbids_is_a_warning(
    fake: FakeHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], warned: list[str]
) -> None:
    fake.add_source()
    fake.install("580.126.09", held=True, pin="580.126.09")
    checked(gpu_driver_plan, fake, monkeypatch, capsys, version="580.126.09", upgrade=True)
    assert "gpu_driver_version pins 580.126.09: change or empty the pin." in " ".join(warned)
