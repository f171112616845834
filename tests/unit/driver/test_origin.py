# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A driver of Ubuntu's archive is known for what it is, and stays as somebody chose it there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._driver import decide
from ansible_collections.socle.inference.plugins.module_utils._driver.decide import Settings
from ansible_collections.socle.inference.plugins.module_utils._driver.model import DriverError
from ansible_collections.socle.inference.plugins.module_utils._driver.origin import parse_policy, ubuntu_origins
from ansible_collections.socle.inference.plugins.module_utils._driver.plan import Plan, plan

from .fake_host import FakeHost, facts

KERNEL = "7.0.0-12-generic"
UBUNTU = {"id": "ubuntu", "version_id": "26.04", "codename": "resolute", "id_like": ["debian"]}
ARCHIVE = "http://archive.ubuntu.com/ubuntu"
NVIDIA = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2604/x86_64"
POLICY = """\
{name}:
  Installed: {version}
  Candidate: 595.91.07-1ubuntu1
  Version table:
     595.91.07-1ubuntu1 600
        600 https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2604/x86_64  Packages
 *** {version} 500
        500 {uri} resolute/restricted amd64 Packages
        100 /var/lib/dpkg/status
"""
RELEASE = "580.126.09-0ubuntu3"
"""A revision that came with a release, and says nothing of it."""


class Ubuntu(FakeHost):
    """Its packages come from one address."""

    uri = ARCHIVE

    def _apt_cache(self, command: list[str]) -> tuple[int, str, str]:
        if command[1] != "policy":
            return super()._apt_cache(command)
        blocks = (
            POLICY.format(name=name, version=self.packages[name]["version"], uri=self.uri)
            for name in command[2:]
            if name in self.packages
        )
        return 0, "".join(blocks), ""

    def put(self, *names: str, version: str = RELEASE) -> None:
        for name in names:
            self.packages[name] = {"version": version, "status": "installed", "held": False}


@pytest.fixture
def fake(tmp_path: Path) -> Ubuntu:
    made = Ubuntu(tmp_path)
    made.put("linux-headers-generic", version="7.0.0-12.12")
    return made


def planned(fake: Ubuntu, **changes: Any) -> Plan:
    told = facts(os=UBUNTU, kernel=KERNEL, **changes.pop("told", {}))
    wanted = {"architecture": "ampere", "source": "distribution", "hold": False, **changes}
    return plan(fake.host(), Settings(**wanted), told)


def headless(*flavours: str, branch: str = "580") -> list[str]:
    return [f"{name}-{branch}" for name in ("nvidia-utils", "nvidia-compute-utils")] + [
        f"{name}-{branch}{'-open' if 'open' in flavours else ''}" for name in ("nvidia-headless-no-dkms", "nvidia-dkms")
    ]


@pytest.mark.parametrize("branch", ["580", "580-server"])
@pytest.mark.parametrize("version", [RELEASE, "580.126.09-0ubuntu0.26.04.1"])
def test_the_archives_driver_is_kept_as_it_is(fake: Ubuntu, branch: str, version: str) -> None:
    fake.put(*headless("open", branch=branch), version=version)
    found = planned(fake)
    assert (found.action, found.version, found.changed_needed) == ("none", "580.126.09", False)


def test_the_desktops_driver_stands_for_the_one_without_a_desktop(fake: Ubuntu) -> None:
    names = [name for name in headless("open") if "headless" not in name]
    fake.put(*names, "nvidia-driver-580-open")
    assert planned(fake).changed_needed is False


def test_ubuntus_own_modules_are_kept_without_secure_boot(fake: Ubuntu) -> None:
    names = [name for name in headless("open", branch="580-server") if "nvidia-dkms" not in name]
    fake.put(*names)
    fake.put("linux-modules-nvidia-580-server-open-generic", version="7.0.0-12.12")
    fake.put(f"linux-modules-nvidia-580-server-open-{KERNEL}", version="7.0.0-12.12")
    assert planned(fake).changed_needed is False
    offers = {name: ["580.159.03-0ubuntu0.26.04.1"] for name in names}
    fake.offers = {**offers, "linux-modules-nvidia-580-server-open-generic": ["7.0.0-13.13"]}
    found = planned(fake, upgrade=True)
    assert found.action == "upgrade"
    assert found.remove == [], "the modules of a kernel go with it"


def test_the_drivers_source_is_asked_for_only_where_no_version_tells_it(fake: Ubuntu) -> None:
    fake.put(*headless("open"), version="580.126.09-0ubuntu0.26.04.1")
    planned(fake)
    assert not fake.said("apt-cache", "policy")


def test_nvidias_packages_of_the_same_form_are_nvidias(fake: Ubuntu) -> None:
    fake.uri = NVIDIA
    fake.put(*headless("open"))
    with pytest.raises(DriverError, match=r"source is distribution, but driver 580\.126\.09 of source nvidia"):
        planned(fake)


def test_the_role_installs_the_branch_for_servers_on_a_bare_host(fake: Ubuntu) -> None:
    fake.offers = {name: ["580.159.03-0ubuntu0.26.04.1"] for name in headless("open", branch="580-server")}
    fake.distribution = {"linux-headers-generic": "7.0.0-12.12", f"linux-headers-{KERNEL}": "7.0.0-12.12"}
    assert any(argument.startswith("nvidia-utils-580-server=") for argument in planned(fake).install)


def test_only_the_address_of_the_installed_version_counts() -> None:
    text = POLICY.format(name="nvidia-utils-580", version=RELEASE, uri=ARCHIVE)
    assert parse_policy(text) == {"nvidia-utils-580": [ARCHIVE]}


@pytest.mark.parametrize(
    ("uri", "base", "origin"),
    [
        (ARCHIVE, "", "distribution"),
        ("http://mirror.example.org/ubuntu", "", "distribution"),
        (NVIDIA, "", "nvidia"),
        ("https://mirror.example.org/gpu/ubuntu2604/x86_64", "https://me:pw@mirror.example.org/gpu", "nvidia"),
        ("file:/var/nvidia-driver-local-repo-ubuntu2604", "", "nvidia"),
    ],
)
def test_sources_by_their_address(uri: str, base: str, origin: str) -> None:
    def run(_argv: Sequence[str]) -> tuple[int, str, str]:
        return 0, POLICY.format(name="nvidia-utils-580", version=RELEASE, uri=uri), ""

    assert ubuntu_origins(run, ["nvidia-utils-580"], base) == {"nvidia-utils-580": origin}


def test_a_pin_tells_that_the_driver_is_nvidias() -> None:
    package = {"version": RELEASE, "status": "installed", "held": False}
    assert decide.of_unclear_origin(UBUNTU, {"nvidia-utils-580": package}) == ["nvidia-utils-580"]
    assert decide.of_unclear_origin(UBUNTU, {"nvidia-utils-580": package, "nvidia-driver-pinning-580": package}) == []
    assert decide.of_unclear_origin({"id": "debian"}, {"nvidia-smi": package}) == []
