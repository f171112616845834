# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Role gpu_driver with Debian's own driver: real packages, a real DKMS build, and a GPU that only sysfs shows.

The proprietary modules build; the open ones of the same version do not, since this kernel's pci_resize_resource() has
an argument more. Four minutes of compiling on two idle cores. Nothing can be loaded in a container, and nouveau
"holds" the GPU, so that the role must ask for a reboot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.support import bare
from tests.support.bare import BareHost

SETTINGS = {
    "gpu_driver_source": "distribution",
    "gpu_driver_branch": "550",
    "gpu_driver_cuda": "12",
    "gpu_driver_reboot": "never",
}
BROKEN = "dpkg-query -W -f='${db:Status-Status} ${Package}\\n' | grep -vE '^(installed|config-files) ' || true"
DRIVER_PACKAGES = (
    "dpkg-query -W -f='${db:Status-Status} ${Package}\\n' '*nvidia*' 'libcuda*' 2>/dev/null | grep -v ^not-inst || true"
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareHost]:
    bare.require_lab()
    made = BareHost("sim-dkms", 2221, tmp_path_factory.mktemp("dkms"))
    made.create()
    made.sh("apt-get -q update")
    yield made
    made.remove()


@pytest.fixture(scope="module")
def kernel(host: BareHost) -> str:
    """The kernel that linux-headers-cloud-amd64 stands for today, as the running one, with an A100 and nouveau."""
    shown = host.sh("apt-cache depends linux-headers-cloud-amd64")
    found = re.search(r"Depends: linux-headers-(\S+-cloud-amd64)", shown)
    assert found, shown
    host.plug_in("a100_sxm4_80g_x2", found.group(1), nouveau=True)
    return found.group(1)


def say_version(host: BareHost, kernel: str, release: str) -> None:
    """What /proc/version says of the kernel; Debian names its upstream release there."""
    host.sh(f"echo 'Linux version {kernel} (gcc-14) #1 SMP Debian {release}-1' >/srv/socle-sim/proc/version")


def test_open_modules_that_cannot_build_are_refused_before_anything_is_installed(host: BareHost, kernel: str) -> None:
    say_version(host, kernel, kernel.partition("+")[0])
    run = host.driver(**SETTINGS, gpu_driver_flavour="open")
    message = run.failures[host.name]["msg"]
    assert "Cannot build the open modules of driver 550." in message
    assert "take 580.126.09 or newer" in message
    assert host.sh(DRIVER_PACKAGES) == ""


def test_a_failed_build_is_told_by_its_first_error_and_leaves_nothing_behind(host: BareHost, kernel: str) -> None:
    """The kernel claims to be one that the sources fit, so that DKMS finds out."""
    say_version(host, kernel, "6.12.90")
    run = host.driver(**SETTINGS, gpu_driver_flavour="open")
    message = run.failures[host.name]["msg"]
    assert f"DKMS could not build module 550.163.01 for kernel {kernel}:" in message
    assert "nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'" in message
    assert "580.126.09 or newer" in message
    assert "\n" not in message
    assert message.count(". ") <= 1
    assert host.sh(BROKEN) == ""
    assert host.sh(DRIVER_PACKAGES) == ""
    assert host.sh("apt-mark showhold") == ""
    assert host.sh("dkms status 2>/dev/null || true") == ""
    assert host.sh("find /lib/modules -name 'nvidia*.ko*'") == ""


def test_the_proprietary_modules_are_built_and_verified(host: BareHost, kernel: str) -> None:
    say_version(host, kernel, kernel.partition("+")[0])
    run = host.driver(**SETTINGS, gpu_driver_flavour="proprietary")
    message = run.failures[host.name]["msg"]
    assert message.startswith("The driver does not run yet: a reboot is needed because nouveau is loaded")
    assert host.sh("dkms status").strip() == f"nvidia-current/550.163.01, {kernel}, x86_64: installed"
    assert host.sh(f"modinfo -k {kernel} -F version nvidia-current").strip() == "550.163.01"
    assert host.sh(BROKEN) == ""
    held = host.sh("apt-mark showhold").split()
    assert {"nvidia-kernel-dkms", "nvidia-smi", "libcuda1", "nvidia-kernel-support"} <= set(held)
    assert "blacklist nouveau" in host.sh("cat /etc/modprobe.d/*.conf /usr/lib/modprobe.d/*.conf")
    assert "linux-headers-cloud-amd64" in host.sh("dpkg-query -W -f='${Package}\\n' 'linux-headers*'")


def test_the_second_run_changes_nothing_and_still_asks_for_the_reboot(host: BareHost, kernel: str) -> None:
    run = host.driver(**SETTINGS, gpu_driver_flavour="proprietary")
    assert run.changed == 0
    assert "a reboot is needed because" in run.failures[host.name]["msg"]
