# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver's settings: files of its own, and what is enabled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._driver import files
from ansible_collections.socle.inference.plugins.module_utils._driver.files import Settler, Wishes
from ansible_collections.socle.inference.plugins.module_utils._driver.model import DriverError
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files

UBUNTU_UNIT = (
    "[Service]\nType=forking\n"
    "ExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --no-persistence-mode --verbose\n"
)
DEBIAN_UNIT = "[Service]\nExecStart=/usr/bin/nvidia-persistenced --user nvpd\n[Install]\nWantedBy=multi-user.target\n"


class Units:
    """systemctl of a host; *states* are what is-enabled says."""

    def __init__(self, **states: str) -> None:
        self.states = {f"{name.replace('_', '-')}.service": state for name, state in states.items()}
        self.calls: list[str] = []
        self.legacy: list[Any] = []
        """What docker inspect says of a running container."""

    def __call__(self, argv: Sequence[str]) -> tuple[int, str, str]:
        self.calls.append(" ".join(argv))
        if argv[0] == "docker":
            answers = {"ps": "c0ffee\n" if self.legacy else "", "info": "systemd\n"}
            return 0, answers.get(argv[1], f"{json.dumps(self.legacy)}\n"), ""
        if argv[1] == "is-enabled":
            return 0, self.states[argv[2]] + "\n", ""
        if argv[1] in ("enable", "disable"):
            self.states[argv[-1]] = f"{argv[1]}d"
        return 0, "", ""


def wishes(**changes: Any) -> Wishes:
    default: dict[str, Any] = {
        "present": True,
        "persistence": True,
        "options": {},
        "nvswitch": False,
        "nvlink5": False,
        "deb": True,
    }
    return Wishes(**{**default, **changes})


def put(root: Path, path: str, text: str) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")


def settle(root: Path, units: Units, wished: Wishes, check: bool = False) -> dict[str, Any]:
    return Settler(units, root, Files()).settle(wished, check)


def test_files_are_written_once(tmp_path: Path) -> None:
    result = settle(tmp_path, Units(), wishes())
    assert result["changed"] and files.UNATTENDED in result["files"] and files.NOUVEAU in result["files"]
    assert "nvidia-uvm\n" in (tmp_path / files.MODULES[1:]).read_text()
    assert '"^linux-modules-nvidia-";' in (tmp_path / files.UNATTENDED[1:]).read_text()
    assert not settle(tmp_path, Units(), wishes())["changed"]


def test_check_mode_shows_and_writes_nothing(tmp_path: Path) -> None:
    result = settle(tmp_path, Units(), wishes(), check=True)
    assert result["changed"] and list(tmp_path.iterdir()) == []
    assert any("--persistence-mode" in diff["after"] for diff in result["diff"])
    assert files.NOUVEAU not in result["files"], "the packages to come bring such a file"
    put(tmp_path, "usr/lib/x86_64-linux-gnu/libcuda.so.580.178.04", "")
    (tmp_path / "usr/lib/x86_64-linux-gnu/libcuda.so.1").symlink_to("libcuda.so.580.178.04")
    assert files.NOUVEAU in settle(tmp_path, Units(), wishes(), check=True)["files"]


def test_check_mode_names_no_user_of_a_unit_that_is_not_there(tmp_path: Path) -> None:
    result = settle(tmp_path, Units(), wishes(), check=True)
    (shown,) = (one["after"] for one in result["diff"] if one["after_header"] == files.PERSISTENCE)
    assert "ExecStart=\nExecStart=(program and user of the package's unit) --persistence-mode\n" in shown
    assert "--user" not in shown
    put(tmp_path, "/usr/lib/systemd/system/nvidia-persistenced.service", DEBIAN_UNIT)
    result = settle(tmp_path, Units(nvidia_persistenced="enabled"), wishes(), check=True)
    assert any("--user nvpd --persistence-mode\n" in one["after"] for one in result["diff"])


@pytest.mark.parametrize(
    ("path", "text", "blocked"),
    [
        ("etc/modprobe.d/nvidia-graphics-drivers.conf", "blacklist nouveau\n", True),
        ("usr/lib/modprobe.d/nvidia.conf", "# x\n  blacklist   nouveau\n", True),
        ("etc/modprobe.d/x.conf", "install nouveau /bin/false\n", True),
        ("etc/modprobe.d/x.conf", "# blacklist nouveau\n", False),
        ("etc/modprobe.d/x.conf", "blacklist nouveau_other\n", True),
    ],
)
def test_nouveau_is_blocked_only_where_no_package_does_it(tmp_path: Path, path: str, text: str, blocked: bool) -> None:
    put(tmp_path, path, text)
    settle(tmp_path, Units(), wishes())
    if "nouveau_other" in text:
        blocked = False
    assert (tmp_path / files.NOUVEAU[1:]).exists() is not blocked


def test_persistence_keeps_program_and_user_of_the_unit(tmp_path: Path) -> None:
    text = files.persistence_text(UBUNTU_UNIT)
    assert (
        "ExecStart=\nExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --verbose --persistence-mode\n"
        in text
    )
    assert "ConditionPathExistsGlob=\n" in text
    assert "--user nvpd --persistence-mode" in files.persistence_text(DEBIAN_UNIT)
    settle(tmp_path, Units(), wishes(persistence=False))
    assert not (tmp_path / files.PERSISTENCE[1:]).exists()


@pytest.mark.parametrize(("state", "done"), [("disabled", True), ("static", False), ("enabled", False)])
def test_persistenced_is_enabled_where_it_can_be(tmp_path: Path, state: str, done: bool) -> None:
    put(tmp_path, "usr/lib/systemd/system/nvidia-persistenced.service", DEBIAN_UNIT)
    units = Units(nvidia_persistenced=state)
    assert bool(settle(tmp_path, units, wishes())["units"]) is done
    assert ("systemctl enable nvidia-persistenced.service" in units.calls) is done
    assert not settle(tmp_path, units, wishes())["changed"]


def test_fabric_manager_by_nvswitch_and_never_by_name(tmp_path: Path) -> None:
    put(tmp_path, "usr/lib/systemd/system/nvidia-fabricmanager.service", "[Service]\n")
    units = Units(nvidia_fabricmanager="disabled")
    assert settle(tmp_path, units, wishes(nvswitch=True))["units"] == ["enable nvidia-fabricmanager.service"]
    result = settle(tmp_path, units, wishes())
    assert result["units"] == ["disable nvidia-fabricmanager.service"]
    assert "no NVSwitch" in result["warnings"][0]
    assert units.calls[-2:] == [f"systemctl {verb} nvidia-fabricmanager.service" for verb in ("disable", "stop")]
    assert settle(tmp_path, units, wishes())["units"] == []


def test_nvlink5_loads_what_its_switches_need(tmp_path: Path) -> None:
    settle(tmp_path, Units(), wishes(nvlink5=True))
    assert "mlx5_ib\nib_umad\n" in (tmp_path / files.MODULES[1:]).read_text()


def test_module_options(tmp_path: Path) -> None:
    settle(tmp_path, Units(), wishes(options={"NVreg_EnableStreamMemOPs": True, "NVreg_X": "0x2"}))
    text = (tmp_path / files.OPTIONS[1:]).read_text()
    assert "options nvidia NVreg_EnableStreamMemOPs=1 NVreg_X=0x2\n" in text
    settle(tmp_path, Units(), wishes())
    assert not (tmp_path / files.OPTIONS[1:]).exists()


@pytest.mark.parametrize("options", [{"modeset": 1}, {"NVreg_X": "a b"}, {"NVreg_X": 'a"b'}, {"NVreg_X; rm": 1}])
def test_module_options_that_are_none(options: dict[str, Any]) -> None:
    with pytest.raises(DriverError, match="gpu_driver_module_options has"):
        files.option_values(options)


def test_options_are_read_back_from_the_loaded_module() -> None:
    params = 'EnableStreamMemOPs: 0\nDeviceFileMode: 438\nRegistryDwords: ""\n'
    assert files.options_that_differ({"NVreg_EnableStreamMemOPs": 1}, params) == ["NVreg_EnableStreamMemOPs"]
    assert files.options_that_differ({"NVreg_EnableStreamMemOPs": False, "NVreg_DeviceFileMode": "0x1b6"}, params) == []
    assert files.options_that_differ({"NVreg_Unknown": 1}, params) == []


def test_the_initramfs_holds_what_changed(tmp_path: Path) -> None:
    put(tmp_path, "boot/initrd.img-6.12.118", "")
    units = Units()
    settle(tmp_path, units, wishes())
    assert "update-initramfs -u -k all" in units.calls
    units.calls.clear()
    settle(tmp_path, units, wishes())
    assert "update-initramfs -u -k all" not in units.calls


def test_removal_leaves_nothing(tmp_path: Path) -> None:
    settle(tmp_path, Units(), wishes(options={"NVreg_X": 1}))
    settle(tmp_path, Units(), wishes(present=False))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not (tmp_path / files.PERSISTENCE[1:]).parent.exists()


def test_no_reload_takes_the_gpus_from_containers_of_the_legacy_hook(tmp_path: Path) -> None:
    put(tmp_path, "usr/lib/systemd/system/nvidia-persistenced.service", DEBIAN_UNIT)
    units = Units(nvidia_persistenced="disabled")
    settle(tmp_path, units, wishes())
    assert "systemctl daemon-reload" in units.calls and "systemctl enable nvidia-persistenced.service" in units.calls
    (tmp_path / files.PERSISTENCE[1:]).unlink()
    units = Units(nvidia_persistenced="disabled")
    put(tmp_path, "run/docker.pid", "812")
    units.legacy = ["/tgi", "nvidia", None, ["NVIDIA_VISIBLE_DEVICES=all"]]
    result = settle(tmp_path, units, wishes(toolkit="1.17.8"))
    assert "would take the GPUs from tgi" in result["warnings"][0]
    assert "systemctl enable --no-reload nvidia-persistenced.service" in units.calls
    assert "systemctl daemon-reload" not in units.calls
    assert not settle(tmp_path, units, wishes(toolkit="1.17.8"))["changed"]
