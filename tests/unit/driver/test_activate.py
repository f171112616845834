# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Making the installed driver the running one, and proving it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._driver.activate import Activator, Expected, Roots
from ansible_collections.socle.inference.plugins.module_utils._driver.model import DriverError

KERNEL = "6.12.118"
GPU = """<gpu id="{bus}"><product_name>NVIDIA H200</product_name><uuid>GPU-{number}</uuid>
<pci><pci_bus_id>{bus}</pci_bus_id></pci><fabric><state>{fabric}</state><status>Success</status></fabric></gpu>"""


class Machine:
    """A host below a folder, with two GPUs; modprobe acts on its /sys and /proc."""

    def __init__(self, root: Path) -> None:
        self.root, self.disk, self.flavour, self.fabric = root, "580.178.04", "open", "N/A"
        self.shown = 2
        self.complaint = ""
        self.active: set[str] = set()
        self.refuses: dict[str, str] = {}
        self.calls: list[str] = []
        self.now = 0.0
        self.idle_at: float | None = None
        self.put("proc/sys/kernel/osrelease", KERNEL)
        for number in (1, 2):
            device = f"sys/bus/pci/devices/0000:0{number}:00.0"
            for name, text in {"vendor": "0x10de", "class": "0x030200", "device": "0x2335"}.items():
                self.put(f"{device}/{name}", text)
        self.library(self.disk)

    def put(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n", encoding="utf-8")

    def library(self, version: str) -> None:
        folder = self.root / "usr/lib/x86_64-linux-gnu"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"libnvidia-ml.so.{version}").touch()
        link = folder / "libnvidia-ml.so.1"
        link.unlink(missing_ok=True)
        link.symlink_to(f"libnvidia-ml.so.{version}")

    def load(self, version: str, flavour: str = "open", users: int = 0) -> None:
        kind = "Open Kernel Module" if flavour == "open" else "Kernel Module"
        self.put("sys/module/nvidia/version", version)
        self.put("sys/module/nvidia/refcnt", str(users + 1))
        self.put("sys/module/nvidia_uvm/refcnt", "0")
        self.put("proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX {kind} for x86_64  {version}  Release Build")
        self.put("proc/driver/nvidia/params", "EnableStreamMemOPs: 0")

    def unit(self, name: str, active: bool = True) -> None:
        self.put(f"usr/lib/systemd/system/{name}", "[Service]")
        if active:
            self.active.add(name)

    def loaded(self) -> str | None:
        path = self.root / "sys/module/nvidia/version"
        return path.read_text().strip() if path.exists() else None

    def activator(self) -> Activator:
        roots = Roots(self.root, self.root / "sys", self.root / "proc")
        return Activator(self.run, roots, self.sleep, lambda: self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.idle_at is not None and self.now >= self.idle_at:
            self.put("sys/module/nvidia/refcnt", "1")
        if self.now > 10 and self.fabric == "In Progress":
            self.fabric = "Completed"

    def run(self, argv: Sequence[str]) -> tuple[int, str, str] | None:
        command = " ".join(argv)
        self.calls.append(command)
        if command in self.refuses:
            return 1, "", self.refuses[command]
        answer = getattr(self, f"_{argv[0].replace('-', '_')}", None)
        return answer(list(argv)) if answer else None

    def _modinfo(self, argv: list[str]) -> tuple[int, str, str]:
        if argv[-1] != "nvidia" or not self.disk:
            return 1, "", "not found"
        return 0, self.disk if "version" in argv else {"open": "Dual MIT/GPL"}.get(self.flavour, "NVIDIA"), ""

    def _modprobe(self, argv: list[str]) -> tuple[int, str, str]:
        if argv[1] == "-r":
            for path in (self.root / "sys/module" / argv[2]).iterdir():
                path.unlink()
        elif argv[1] == "nvidia":
            self.load(self.disk, self.flavour)
        return 0, "", ""

    def _systemctl(self, argv: list[str]) -> tuple[int, str, str]:
        if argv[1] == "is-active":
            return (
                (0, "active", "")
                if argv[2] in self.active
                else (3, "failed" if "failed" in self.active else "inactive", "")
            )
        if argv[1] == "stop":
            self.active.discard(argv[2])
        if argv[1] in ("start", "restart"):
            self.active.add(argv[2])
        return 0, "", ""

    def _nvidia_smi(self, argv: list[str]) -> tuple[int, str, str]:
        if self.complaint:
            return 9, self.complaint, ""
        if argv[1] != "-q":
            return (
                0,
                "".join(f"{number - 1}, 00000000:0{number}:00.0, 9.0\n" for number in range(1, self.shown + 1)),
                "",
            )
        gpus = "".join(
            GPU.format(bus=f"00000000:0{number}:00.0", number=number, fabric=self.fabric)
            for number in range(1, self.shown + 1)
        )
        version = f"<driver_version>{self.loaded()}</driver_version>"
        return 0, f"<nvidia_smi_log>{version}{gpus}</nvidia_smi_log>", ""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def expected(**changes: Any) -> Expected:
    default: dict[str, Any] = {
        "version": "580.178.04",
        "flavour": "open",
        "options": {},
        "nvswitch": False,
    }
    return Expected(**{**default, **changes})


def activate(machine: Machine, check: bool = False, **changes: Any) -> dict[str, Any]:
    return machine.activator().activate(expected(**changes), check)


def test_a_driver_that_runs_is_only_proven(machine: Machine) -> None:
    machine.load("580.178.04", users=7)
    result = activate(machine)
    assert not result["changed"] and result["gpus"] == ["GPU-1", "GPU-2"]
    assert not any(call.startswith(("modprobe", "systemctl")) for call in machine.calls)


def test_a_fresh_driver_is_loaded_and_cdi_written_after_it(machine: Machine) -> None:
    machine.unit("nvidia-persistenced.service", active=False)
    machine.unit("nvidia-cdi-refresh.service", active=False)
    machine.unit("nvidia-fabricmanager.service", active=False)
    result = activate(machine)
    assert "nvidia-fabricmanager.service" not in machine.active, "without an NVSwitch it fails"
    assert result["action"] == "load" and machine.loaded() == "580.178.04"
    order = ["modprobe nvidia", "modprobe nvidia-uvm", "systemctl start nvidia-persistenced.service"]
    order.append("systemctl restart nvidia-cdi-refresh.service")
    assert [call for call in machine.calls if call in order] == order


def test_cdi_is_written_although_its_units_gave_up_meanwhile(machine: Machine) -> None:
    machine.load("580.126.09")
    machine.unit("nvidia-cdi-refresh.service", active=False)
    activate(machine)
    order = ["systemctl reset-failed nvidia-cdi-refresh.service nvidia-cdi-refresh.path"]
    order += ["systemctl restart nvidia-cdi-refresh.service", "systemctl start nvidia-cdi-refresh.path"]
    assert [call for call in machine.calls if call in order] == order


def test_another_version_is_loaded_in_place(machine: Machine) -> None:
    machine.load("580.126.09")
    machine.unit("nvidia-persistenced.service")
    result = activate(machine)
    assert result["changed"] and machine.loaded() == "580.178.04"
    order = ["systemctl stop nvidia-persistenced.service", "modprobe -r nvidia_uvm", "modprobe -r nvidia"]
    assert [call for call in machine.calls if call in order] == order
    assert "nvidia-persistenced.service" in machine.active


def test_modules_in_use_need_a_reboot_and_stay(machine: Machine) -> None:
    machine.load("580.126.09", users=3)
    machine.unit("nvidia-persistenced.service")
    result = activate(machine)
    assert result["reboot_required"] and "in use: nvidia (3)" in result["reason"]
    assert machine.loaded() == "580.126.09" and "nvidia-persistenced.service" in machine.active
    with pytest.raises(DriverError, match=r"a reboot is needed because .*gpu_driver_reboot is never"):
        activate(machine, reboot="never")


def test_what_uses_the_modules_for_a_moment_only_costs_no_reboot(machine: Machine) -> None:
    machine.load("580.126.09", users=1)
    machine.idle_at = 3.0
    result = activate(machine)
    assert result["action"] == "load" and machine.loaded() == "580.178.04"
    machine.load("580.178.04", users=1)
    machine.idle_at = machine.now + 3.0
    assert machine.activator().unload(check=False)["changed"] and machine.loaded() is None


def test_check_mode_touches_nothing(machine: Machine) -> None:
    machine.load("580.126.09")
    machine.unit("nvidia-persistenced.service")
    result = activate(machine, check=True)
    assert result["action"] == "load" and result["changed"]
    assert not any(call.startswith(("modprobe", "systemctl stop")) for call in machine.calls)


def test_nouveau_needs_a_reboot(machine: Machine) -> None:
    machine.put("sys/module/nouveau/refcnt", "1")
    assert "nouveau" in activate(machine)["reason"]


def test_no_module_for_this_kernel(machine: Machine) -> None:
    machine.disk = ""
    with pytest.raises(DriverError, match=r"Cannot load the driver: no module is installed for kernel 6\.12\.118"):
        activate(machine)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("modprobe: ERROR: could not insert 'nvidia': Key was rejected by service", "Secure Boot refuses the module"),
        ("modprobe: ERROR: could not insert 'nvidia': No such device", "found no GPU that it can drive"),
    ],
)
def test_a_module_that_cannot_be_loaded(machine: Machine, words: str, remedy: str) -> None:
    machine.refuses["modprobe nvidia"] = words
    with pytest.raises(DriverError, match=rf"Cannot load module nvidia: {words}; .*{remedy}"):
        activate(machine)


def test_parts_of_different_versions(machine: Machine) -> None:
    machine.load("580.178.04")
    machine.library("580.126.09")
    with pytest.raises(DriverError, match=r"different versions: loaded module 580\.178\.04.*libraries 580\.126\.09"):
        activate(machine)
    machine.library("580.178.04")
    with pytest.raises(DriverError, match=r"packages 580\.95\.05"):
        activate(machine, version="580.95.05")


def test_a_gpu_that_the_driver_does_not_show(machine: Machine) -> None:
    machine.load("580.178.04")
    machine.shown = 1
    with pytest.raises(DriverError, match=r"shows 1 of 2 GPUs; not 0000:02:00\.0 \(10de:2335\)"):
        activate(machine)
    (machine.root / "sys/bus/drivers/vfio-pci").mkdir(parents=True)
    (machine.root / "sys/bus/pci/devices/0000:02:00.0/driver").symlink_to(machine.root / "sys/bus/drivers/vfio-pci")
    assert activate(machine)["gpus"] == ["GPU-1"], "one that is reserved for virtual machines is not missed"


def test_nvidia_smi_that_does_not_answer(machine: Machine) -> None:
    machine.load("580.178.04")
    machine.complaint = "Failed to initialize NVML: Driver/library version mismatch"
    with pytest.raises(DriverError, match=r"does not answer: Failed to initialize NVML.*; reboot the host"):
        activate(machine)


def test_the_wrong_flavour(machine: Machine) -> None:
    machine.load("580.178.04", "proprietary")
    machine.flavour = "proprietary"
    with pytest.raises(DriverError, match=r"The proprietary module is loaded, and the open one was installed"):
        activate(machine)


def test_options_are_applied_by_loading_anew(machine: Machine) -> None:
    machine.load("580.178.04")
    result = activate(machine, options={"NVreg_EnableStreamMemOPs": 1}, check=True)
    assert result["action"] == "load" and "NVreg_EnableStreamMemOPs" in result["reason"]
    assert activate(machine, options={"NVreg_EnableStreamMemOPs": 0})["action"] == "none"


def test_options_that_take_no_effect(machine: Machine) -> None:
    machine.load("580.178.04")
    with pytest.raises(DriverError, match=r"has other values of NVreg_EnableStreamMemOPs than"):
        activate(machine, options={"NVreg_EnableStreamMemOPs": 1})


def test_the_fabric_is_waited_for(machine: Machine) -> None:
    machine.load("580.178.04")
    machine.unit("nvidia-fabricmanager.service")
    machine.fabric = "In Progress"
    assert not activate(machine, nvswitch=True)["changed"] and machine.now > 10
    machine.refuses["systemctl start nvidia-fabricmanager.service"] = "it broke"
    machine.active = {"failed"}
    with pytest.raises(DriverError, match=r"fabric is not ready: nvidia-fabricmanager\.service is failed.*error 802"):
        activate(machine, nvswitch=True)


def test_modules_are_unloaded_before_their_packages_go(machine: Machine) -> None:
    machine.load("580.178.04", users=2)
    with pytest.raises(DriverError, match=r"nvidia \(2\) is in use"):
        machine.activator().unload(check=False)
    assert machine.loaded()
    machine.load("580.178.04")
    assert machine.activator().unload(check=True)["changed"] and machine.loaded()
    assert machine.activator().unload(check=False)["changed"] and machine.loaded() is None
    assert not machine.activator().unload(check=False)["changed"]


def test_units_that_were_stopped_by_hand_run_again(machine: Machine) -> None:
    machine.load("580.178.04")
    machine.unit("nvidia-fabricmanager.service", active=False)
    machine.unit("nvidia-persistenced.service", active=False)
    machine.put("etc/systemd/system/nvidia-persistenced.service.d/socle.conf", "")
    assert activate(machine, nvswitch=True, check=True)["changed"] and machine.active == set()
    assert activate(machine, nvswitch=True)["changed"]
    assert machine.active == {"nvidia-fabricmanager.service", "nvidia-persistenced.service"}
    assert not activate(machine, nvswitch=True)["changed"]


def process(machine: Machine, pid: int, unit: str) -> None:
    """A process that has a GPU open."""
    machine.put(f"proc/{pid}/comm", "python3")
    machine.put(f"proc/{pid}/cgroup", f"0::/system.slice/{unit}")
    folder = machine.root / f"proc/{pid}/fd"
    folder.mkdir()
    (folder / "5").symlink_to("/dev/nvidia0")


def test_no_reload_and_no_reboot_ends_what_somebody_else_runs(machine: Machine) -> None:
    machine.load("580.126.09", users=2)
    machine.unit("nvidia-persistenced.service")
    process(machine, 77, "train.service")
    for check in (True, False):
        with pytest.raises(DriverError, match=r"process 77 \(python3 of train\.service\) would be ended.*: force"):
            activate(machine, check=check)
    assert machine.loaded() == "580.126.09" and not any("stop" in call for call in machine.calls)
    assert activate(machine, reboot="force")["reboot_required"]
    assert activate(machine, reboot="force", check=True)["reboot_required"]


def test_check_mode_says_what_the_run_will_do_once_units_are_stopped(machine: Machine) -> None:
    machine.load("580.126.09", users=2)
    machine.unit("nvidia-persistenced.service")
    process(machine, 8, "nvidia-persistenced.service")
    process(machine, 9, "vllm-chat.service")
    result = activate(machine, check=True, stopped=("vllm-chat.service",))
    assert (result["action"], result["reboot_required"]) == ("load", False)
    machine.active.clear()
    assert activate(machine, check=True, reboot="force")["reboot_required"], "nothing is stopped, and they go on"


def test_a_driver_of_somebody_else_is_proven_and_left_alone(machine: Machine) -> None:
    with pytest.raises(DriverError, match="No driver is loaded, and gpu_driver_state is unmanaged"):
        machine.activator().verify(expected(version=None, flavour=None))
    machine.load("580.178.04")
    machine.unit("nvidia-persistenced.service", active=False)
    machine.put("etc/systemd/system/nvidia-persistenced.service.d/socle.conf", "")
    result = machine.activator().verify(expected(version=None, flavour=None))
    assert not result["changed"] and result["gpus"] == ["GPU-1", "GPU-2"]
    machine.disk = "580.126.09"
    with pytest.raises(DriverError, match=r"module on disk 580\.126\.09"):
        machine.activator().verify(expected(version=None, flavour=None))
    assert not any(call.startswith(("modprobe", "systemctl")) for call in machine.calls)


def test_rubbish_of_nvidia_smi_is_cut_to_what_can_be_read(machine: Machine) -> None:
    machine.load("580.178.04")
    machine.complaint = "\x1b[31m\x00 broken " + "x" * 5000
    with pytest.raises(DriverError, match=r"^nvidia-smi does not answer: .*broken x") as raised:
        activate(machine)
    assert str(raised.value).isprintable() and len(str(raised.value)) < 400


def test_the_words_of_systemctl_end_without_their_full_stop(machine: Machine) -> None:
    machine.unit("nvidia-cdi-refresh.service", active=False)
    words = 'Job failed. See "journalctl -xeu nvidia-cdi-refresh.service" for details.'
    machine.refuses["systemctl restart nvidia-cdi-refresh.service"] = words
    with pytest.raises(DriverError, match=r"for details; read the journal of that unit\.$"):
        activate(machine)


@pytest.mark.parametrize("refused", ["", "modprobe nvidia"])
def test_no_refresh_of_cdi_gets_in_the_way_of_a_reload(machine: Machine, refused: str) -> None:
    machine.load("580.126.09")
    for unit in ("nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service", "nvidia-persistenced.service"):
        machine.unit(unit)
    if refused:
        machine.refuses[refused] = "No such device"
        with pytest.raises(DriverError, match="Cannot load module nvidia"):
            activate(machine)
    else:
        activate(machine)
    order = ["systemctl stop nvidia-cdi-refresh.path", "systemctl stop nvidia-cdi-refresh.service"]
    order += ["modprobe -r nvidia", "modprobe nvidia", "systemctl start nvidia-cdi-refresh.path"]
    assert [call for call in machine.calls if call in order] == order
    assert {"nvidia-cdi-refresh.path", "nvidia-persistenced.service"} <= machine.active


def test_the_watch_of_cdi_alone_does_not_keep_other_units_down(machine: Machine) -> None:
    machine.load("580.126.09")
    machine.unit("nvidia-cdi-refresh.path")
    machine.unit("nvidia-persistenced.service", active=False)
    activate(machine)
    assert machine.active == {"nvidia-cdi-refresh.path", "nvidia-persistenced.service"}


def test_the_watch_of_cdi_runs_again_where_a_reboot_is_needed(machine: Machine) -> None:
    machine.load("580.126.09", users=3)
    machine.unit("nvidia-cdi-refresh.path")
    assert activate(machine)["reboot_required"]
    assert machine.calls.count("systemctl start nvidia-cdi-refresh.path") == 1


def test_modules_that_cannot_be_unloaded_leave_the_units_running(machine: Machine) -> None:
    machine.load("580.178.04")
    running = {"nvidia-cdi-refresh.path", "nvidia-persistenced.service"}
    for unit in running:
        machine.unit(unit)
    machine.refuses["modprobe -r nvidia_uvm"] = "Module nvidia_uvm is in use."
    with pytest.raises(DriverError, match="Cannot remove module nvidia_uvm: Module nvidia_uvm is in use;"):
        machine.activator().unload(check=False)
    assert machine.active == running
