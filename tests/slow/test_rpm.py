# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The roles on hosts that look like Rocky Linux 9 and 10: Debian with Debian's own dnf and rpm, and dummy packages.

Real are DNF with its module streams, version locks, signatures and transactions; simulated are the hardware, the kernel
and what the packages hold.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import bare, lab
from tests.support.bare import BareHost

PROGRAMS = "dnf dnf-plugins-core createrepo-c rpm gnupg"
KERNELS = {"9": "5.14.0-570.12.1.el9_6.x86_64", "10": "6.12.0-55.9.1.el10_0.x86_64"}
VENDOR = "/srv/rpm"
MODPROBE = ("modprobe", "rmmod", "lsmod", "modinfo", "depmod", "mokutil")


class RpmHost(BareHost):
    """A host of the RHEL family, as far as its packages go."""

    release: str

    def install_system(self, release: str) -> None:
        self.release = release
        install = "DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends"
        self.sh(f"apt-get -q update && {install} {PROGRAMS}")
        self.plug_in("a100_sxm4_80g_x2", KERNELS[release])
        for name in MODPROBE:
            self.sh(f"ln -sf {bare.HARDWARE}/hardware.py /usr/local/sbin/{name}")
        self.send(bare.SIMULATOR / "files", "/srv/vendor")
        self.send(lab.PROJECT / "tests/simulators/rpm_repo/build.py", "/srv/vendor")
        self.sh(f"python3 /srv/vendor/build.py {release} {VENDOR} /srv/vendor/files")

    def packages(self) -> dict[str, str]:
        """Installed packages with versions."""
        return dict(line.split() for line in self.sh("rpm -qa --qf '%{NAME} %{VERSION}\\n'").splitlines())

    def locks(self) -> str:
        return self.sh("cat /etc/dnf/plugins/versionlock.list 2>/dev/null || true")

    def driver(self, *arguments: str, **variables: object) -> lab.Run:
        return super().driver(
            *arguments, **{"gpu_driver_repository_url": f"file://{VENDOR}/compute/cuda/repos", **variables}
        )


def make(name: str, port: int, release: str, factory: pytest.TempPathFactory) -> RpmHost:
    bare.require_lab()
    host = RpmHost(name, port, factory.mktemp(name))
    host.create()
    host.install_system(release)
    return host


@pytest.fixture(scope="module")
def rocky9(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RpmHost]:
    host = make("sim-rocky9", 2222, "9", tmp_path_factory)
    yield host
    host.remove()


@pytest.fixture(scope="module")
def rocky10(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RpmHost]:
    host = make("sim-rocky10", 2223, "10", tmp_path_factory)
    yield host
    host.remove()


def message(run: lab.Run, host: RpmHost) -> str:
    assert host.name in run.failures, run.output[-3000:]
    return str(run.failures[host.name]["msg"])


def test_check_mode_tells_the_driver_and_changes_nothing(rocky9: RpmHost) -> None:
    before = rocky9.packages()
    run = rocky9.driver("--check", "--diff").expect_success()
    assert "driver 580.178.04 would be installed" in run.output
    assert rocky9.packages() == before
    assert rocky9.sh("ls /etc/yum.repos.d").split() == ["rocky.repo"]


def test_an_unreachable_mirror_changes_nothing(rocky9: RpmHost) -> None:
    before = rocky9.packages()
    said = message(rocky9.driver(gpu_driver_repository_url="http://127.0.0.1:9/repos"), rocky9)
    assert "http://127.0.0.1:9/repos/rhel9/x86_64/" in said
    assert "did not answer" in said
    assert rocky9.packages() == before


def test_a_version_that_is_not_there_is_refused_with_those_that_are(rocky9: RpmHost) -> None:
    said = message(rocky9.driver(gpu_driver_version="580.99.99"), rocky9)
    assert "580.99.99" in said
    assert "580.178.04" in said


def test_the_branch_is_installed_from_its_stream_and_locked(rocky9: RpmHost) -> None:
    rocky9.driver(gpu_driver_version="580.159.03").expect_success()
    packages = rocky9.packages()
    assert packages["nvidia-driver-cuda"] == packages["kmod-nvidia-open-dkms"] == "580.159.03"
    assert {"dkms", "epel-release", "kernel-devel-matched"} <= set(packages)
    assert "nvidia-fabricmanager" not in packages
    assert "stream=580-open" in rocky9.sh("cat /etc/dnf/modules.d/nvidia-driver.module")
    assert "gpgcheck=1" in rocky9.sh("cat /etc/yum.repos.d/socle-nvidia-cuda.repo")
    for name in ("nvidia-driver-cuda", "kmod-nvidia-open-dkms", "libnvidia-ml", "nvidia-kmod-common"):
        assert f"{name}-3:580.159.03-1.el9.*" in rocky9.locks()
    rocky9.sh("dnf --assumeyes --best upgrade")
    assert rocky9.packages() == packages


def test_the_second_run_changes_nothing(rocky9: RpmHost) -> None:
    assert rocky9.driver(gpu_driver_version="580.159.03").expect_success().changed == 0
    assert rocky9.driver().expect_success().changed == 0


def test_an_upgrade_moves_every_part_and_every_lock(rocky9: RpmHost) -> None:
    rocky9.driver(gpu_driver_upgrade=True).expect_success()
    packages = rocky9.packages()
    versions = {packages[name] for name in ("nvidia-driver-cuda", "kmod-nvidia-open-dkms", "libnvidia-ml")}
    assert versions == {"580.178.04"}
    assert "580.159.03" not in rocky9.locks()


def test_a_downgrade_is_refused(rocky9: RpmHost) -> None:
    """DNF itself would go back without a word."""
    said = message(rocky9.driver(gpu_driver_version="580.159.03"), rocky9)
    assert "Driver 580.178.04 is installed, and 580.159.03 is older" in said
    assert rocky9.packages()["nvidia-driver-cuda"] == "580.178.04"


def test_a_lock_of_somebody_else_is_respected(rocky9: RpmHost) -> None:
    rocky9.sh("rm /var/lib/socle/gpu_driver.json")
    said = message(rocky9.driver(gpu_driver_branch="595"), rocky9)
    assert "locked at 3:580.178.04-1.el9, and not by this role; release with 'dnf versionlock delete" in said
    rocky9.sh("dnf versionlock clear")
    rocky9.driver().expect_success()


def test_another_branch_resets_the_stream(rocky9: RpmHost) -> None:
    rocky9.driver(gpu_driver_branch="595").expect_success()
    assert "stream=595-open" in rocky9.sh("cat /etc/dnf/modules.d/nvidia-driver.module")
    assert rocky9.packages()["nvidia-driver-cuda"] == "595.91.07"
    assert "580." not in rocky9.locks()


def test_another_packager_is_refused(rocky9: RpmHost) -> None:
    rocky9.sh(f"cd {VENDOR}/distribution && rpm -i akmod-nvidia-*.rpm")
    said = message(rocky9.driver(gpu_driver_branch="595"), rocky9)
    rocky9.sh("rpm -e akmod-nvidia")
    assert "has a driver of another packager (akmod-nvidia" in said


def test_removal_takes_driver_locks_and_repository(rocky9: RpmHost) -> None:
    rocky9.driver(gpu_driver_state="absent").expect_success()
    assert not [name for name in rocky9.packages() if "nvidia" in name]
    assert "nvidia" not in rocky9.locks()
    assert "socle-nvidia-cuda.repo" not in rocky9.sh("ls /etc/yum.repos.d")
    assert "nvidia-driver" not in rocky9.sh("ls /etc/dnf/modules.d")
    assert rocky9.driver(gpu_driver_state="absent").expect_success().changed == 0


def test_release_10_needs_no_stream_and_gets_its_own_key(rocky10: RpmHost) -> None:
    rocky10.driver().expect_success()
    packages = rocky10.packages()
    assert packages["nvidia-driver-cuda"] == packages["kmod-nvidia-open-dkms"] == "580.178.04"
    assert "rhel10/x86_64" in rocky10.sh("cat /etc/yum.repos.d/socle-nvidia-cuda.repo")
    assert rocky10.sh("ls /etc/dnf/modules.d") == ""
    assert "nvidia-driver-cuda-3:580.178.04-1.el10.*" in rocky10.locks()
    rocky10.sh("dnf --assumeyes --best upgrade")
    assert rocky10.packages() == packages
    assert "crb" in rocky10.sh("dnf --quiet repolist --enabled")
    assert rocky10.driver().expect_success().changed == 0


TOOLKIT = """\
- hosts: all
  gather_facts: false
  vars:
    facts: {gpus: [{}], os: {id: rocky, version_id: "9.6", codename: null, id_like: [rhel, centos, fedora]}}
  tasks:
    - name: Choose the packages
      socle.inference.gpu_container_toolkit_plan:
        version: "{{ toolkit_version }}"
        facts: "{{ facts }}"
        state: "{{ toolkit_state }}"
        repository_url: file:///srv/rpm/libnvidia-container
      register: toolkit_plan

    - name: Install them
      ansible.builtin.include_role:
        name: socle.inference.gpu_container_toolkit
        tasks_from: "{{ 'install_redhat' if toolkit_state == 'present' else 'remove_redhat' }}"
        rolespec_validate: false
      vars:
        __gpu_container_toolkit_plan: "{{ toolkit_plan }}"
        gpu_container_toolkit_repository_url: file:///srv/rpm/libnvidia-container
      when: toolkit_plan.due
"""


def test_the_toolkit_comes_at_one_locked_version(rocky9: RpmHost) -> None:
    """The packages only: what containers then see is tried on Debian."""
    names = (
        "nvidia-container-toolkit",
        "nvidia-container-toolkit-base",
        "libnvidia-container-tools",
        "libnvidia-container1",
    )

    def bring(version: str, state: str = "present") -> lab.Run:
        return rocky9.play(TOOLKIT, toolkit_version=version, toolkit_state=state)

    bring("1.19.1").expect_success()
    assert {rocky9.packages()[name] for name in names} == {"1.19.1"}
    assert all(f"{name}-0:1.19.1-1.*" in rocky9.locks() for name in names)
    rocky9.sh("dnf --assumeyes --best upgrade")
    assert bring("1.19.1").expect_success().changed == 0
    bring("1.20.0").expect_success()
    assert {rocky9.packages()[name] for name in names} == {"1.20.0"}
    assert "older 1.19.1" in message(bring("1.19.1"), rocky9)
    bring("1.20.0", "absent").expect_success()
    assert not set(names) & set(rocky9.packages())
    assert "nvidia-container" not in rocky9.locks()


ENGINE = """\
- hosts: all
  gather_facts: false
  vars:
    facts: {gpus: [{}], os: {id: rocky, version_id: "9.6", codename: null, id_like: [rhel, centos, fedora]}}
  tasks:
    - name: Choose the engine
      socle.inference.container_engine_plan:
        facts: "{{ facts }}"
      register: engine_plan

    - name: Install it
      ansible.builtin.include_role:
        name: socle.inference.container_engine
        tasks_from: install_redhat
        rolespec_validate: false
      vars:
        __container_engine_plan: "{{ engine_plan }}"
      when: engine_plan.packages | length > 0
"""


def test_podman_of_the_distribution_is_the_engine(rocky9: RpmHost) -> None:
    """The packages only: an engine that runs is tried on Debian."""
    rocky9.play(ENGINE).expect_success()
    assert {"podman", "crun", "netavark", "aardvark-dns", "passt", "catatonit"} <= set(rocky9.packages())
    assert rocky9.play(ENGINE).expect_success().changed == 0
