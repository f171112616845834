# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages come at exact versions in one transaction of DNF, and what others locked or need stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import PackageError
from ansible_collections.socle.inference.plugins.module_utils._packages.dnf import Rpm
from ansible_collections.socle.inference.plugins.module_utils._packages.dnf_exact import (
    Exact,
    Request,
    has_version,
    removals,
)
from ansible_collections.socle.inference.plugins.module_utils._packages.holds import LEDGER, Holds

from tests.unit.driver.rpm_host import Interrupted, RpmHost

NAMES = ("nvidia-container-toolkit", "libnvidia-container1")
TABLE = """\
Dependencies resolved.
================================================================================
 Package                  Arch    Version              Repository           Size
================================================================================
Removing:
 kmod-nvidia-open-dkms    noarch  3:580.159.03-1.el9  @cuda-rhel9-x86_64    0
Removing dependent packages:
 cockpit-gpu              noarch  1-1.el9             @baseos               0

Transaction Summary
================================================================================
Remove  2 Packages
"""


@pytest.fixture
def host(tmp_path: Path) -> RpmHost:
    made = RpmHost(tmp_path)
    for version in ("1.19.1", "1.20.0"):
        made.offered += [Rpm(name, "0", version, "1", "x86_64", "toolkit") for name in NAMES]
    return made


def exact(host: RpmHost) -> Exact:
    return Exact(host.run, Files(), host.root, Holds(Files(), host.root))


def wanted(version: str, **changes: object) -> Request:
    return Request(dict.fromkeys(NAMES, f"{version}-1"), **{"hold": True, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("version", ["", "580.178.04", "580.178.04-1.el9", "3:580.178.04-1.el9"])
def test_a_version_may_be_given_with_or_without_release_and_epoch(version: str) -> None:
    package = Rpm("nvidia-driver-cuda", "3", "580.178.04", "1.el9", "x86_64")
    assert has_version(package, version)
    assert not has_version(package, "580.178")


def test_everything_that_would_go_is_read_from_dnfs_table() -> None:
    assert removals(TABLE) == ["kmod-nvidia-open-dkms", "cockpit-gpu"]


def test_a_name_that_fills_its_column_is_one_package() -> None:
    table = (
        "Removing:\n"
        " kmod-nvidia-580.95.05-5.14.0-570.12.1\n"
        "                         x86_64 3:580.95.05-3.el9 @socle-nvidia-cuda   60 M\n"
        "\nTransaction Summary\n"
    )
    assert removals(table) == ["kmod-nvidia-580.95.05-5.14.0-570.12.1"]


def test_the_second_run_carries_out_no_transaction(host: RpmHost) -> None:
    first = exact(host).install(wanted("1.20.0"))
    assert first.changed
    assert host.locks == "libnvidia-container1-0:1.20.0-1.*\nnvidia-container-toolkit-0:1.20.0-1.*\n"
    host.calls.clear()
    assert not exact(host).install(wanted("1.20.0")).changed
    assert not [call for call in host.calls if call[0] == "dnf"]


def test_an_upgrade_passes_its_own_locks_and_leaves_those_of_others(host: RpmHost) -> None:
    exact(host).install(wanted("1.19.1"))
    host.lock_list.write_text(host.locks + "bash-0:5.1.8-9.el9.*\n")
    exact(host).install(wanted("1.20.0"))
    assert "1.19.1" not in host.locks
    assert "bash-0:5.1.8-9.el9.*\n" in host.locks


def test_a_lock_of_somebody_else_is_respected(host: RpmHost) -> None:
    exact(host).install(wanted("1.19.1", hold=None))
    lock = f"{NAMES[0]}-0:1.19.1-1.*\n"
    host.lock_list.write_text(lock)
    said = rf"{NAMES[0]} is held, and not by socle; .*'dnf versionlock delete {NAMES[0]}'.*as they were"
    for check in (True, False):
        with pytest.raises(PackageError, match=said):
            exact(host).install(wanted("1.20.0"), check=check)
        with pytest.raises(PackageError, match=said):
            exact(host).remove(NAMES, check=check)
    assert host.locks == lock and host.installed[NAMES[0]].version == "1.19.1"
    (host.root / LEDGER).mkdir(parents=True)
    with pytest.raises(PackageError, match=r"package_holds\.json, which notes .*cannot be read \(it is a folder\)"):
        exact(host).install(wanted("1.20.0"))


def test_a_lock_of_somebody_else_at_the_right_version_stays_theirs(host: RpmHost) -> None:
    exact(host).install(wanted("1.20.0", hold=None))
    lock = f"{NAMES[0]}-0:1.20.0-1.*\n"
    host.lock_list.write_text(lock)
    exact(host).install(wanted("1.20.0"))
    assert Holds(Files(), host.root).own() == {NAMES[1]}
    exact(host).install(wanted("1.20.0", hold=False))
    assert host.locks == lock and Holds(Files(), host.root).own() == set()


def test_going_back_needs_a_word(host: RpmHost) -> None:
    exact(host).install(wanted("1.20.0"))
    with pytest.raises(PackageError, match=r"1\.20\.0 is installed, and 1\.19\.1 is older"):
        exact(host).install(wanted("1.19.1"))
    exact(host).install(wanted("1.19.1", downgrade=True))
    assert host.installed["libnvidia-container1"].version == "1.19.1"


def test_locks_are_lifted_or_left_alone_as_asked(host: RpmHost) -> None:
    exact(host).install(wanted("1.20.0"))
    before = host.locks
    assert not exact(host).install(wanted("1.20.0", hold=None)).changed
    assert host.locks == before
    assert exact(host).install(wanted("1.20.0", hold=False)).actions == [
        "unlock libnvidia-container1, nvidia-container-toolkit"
    ]
    assert host.locks == ""


def test_check_mode_tries_the_transaction_and_changes_nothing(host: RpmHost) -> None:
    outcome = exact(host).install(wanted("1.20.0"), check=True)
    assert outcome.changed
    assert outcome.after == dict.fromkeys(NAMES, "1.20.0-1")
    assert host.installed == {}
    assert host.locks == ""
    assert any("--assumeno" in call for call in host.calls)
    host.refusal = "Error: \n Problem: package a conflicts with b\n"
    with pytest.raises(PackageError, match="package a conflicts with b"):
        exact(host).install(wanted("1.20.0"), check=True)


def test_a_removal_that_takes_others_along_is_refused(host: RpmHost) -> None:
    exact(host).install(wanted("1.20.0"))
    host.removes = [*NAMES, "cockpit-gpu"]
    with pytest.raises(PackageError, match="that would also remove cockpit-gpu"):
        exact(host).remove(NAMES)
    assert set(NAMES) <= set(host.installed)
    host.removes = list(NAMES)
    assert exact(host).remove(NAMES).changed
    assert host.installed == {}
    assert host.locks == ""
    assert not exact(host).remove(NAMES).changed


def test_no_trace_of_the_trial_is_left(host: RpmHost) -> None:
    exact(host).install(wanted("1.20.0"))
    assert list((host.root / "run").iterdir()) == []


def interrupted(host: RpmHost, name: str) -> Exact:
    files = Interrupted(name)
    return Exact(host.run, files, host.root, Holds(files, host.root))


def ledger(host: RpmHost) -> Path:
    return host.root / LEDGER


@pytest.mark.parametrize("name", ["versionlock.list", "package_holds.json"])
def test_a_removal_that_was_interrupted_leaves_no_note_after_the_next_run(host: RpmHost, name: str) -> None:
    exact(host).install(wanted("1.20.0"))
    with pytest.raises(KeyboardInterrupt):
        interrupted(host, name).remove(NAMES)
    assert host.installed == {} and ledger(host).exists()
    assert exact(host).remove(NAMES, check=True).changed and ledger(host).exists()
    assert exact(host).remove(NAMES).changed
    assert host.locks == "" and not ledger(host).exists()
    assert not exact(host).remove(NAMES).changed


def test_an_interruption_while_locks_are_lifted_leaves_no_note_after_the_next_run(host: RpmHost) -> None:
    exact(host).install(wanted("1.20.0"))
    with pytest.raises(KeyboardInterrupt):
        interrupted(host, "package_holds.json").install(wanted("1.20.0", hold=False))
    assert host.locks == "" and ledger(host).exists()
    assert exact(host).install(wanted("1.20.0", hold=False)).actions == ["note anew which packages are held"]
    assert not ledger(host).exists()
    assert not exact(host).install(wanted("1.20.0", hold=False)).changed


@pytest.mark.parametrize("text", ["[[", "[" * 200_000, "{}", '{"held": [1]}', '{"held": "bash"}'])
def test_a_damaged_note_of_locks_takes_nothing_for_ours_and_is_written_anew(host: RpmHost, text: str) -> None:
    exact(host).install(wanted("1.20.0"))
    locks = host.locks
    ledger(host).write_text(text)
    assert exact(host).install(wanted("1.20.0"), check=True).changed and ledger(host).read_text() == text
    assert exact(host).install(wanted("1.20.0")).changed
    assert host.locks == locks and Holds(Files(), host.root).own() == set() and not ledger(host).exists()
    assert not exact(host).install(wanted("1.20.0")).changed


def test_a_damaged_note_of_locks_goes_with_packages_that_are_gone(host: RpmHost) -> None:
    ledger(host).parent.mkdir(parents=True)
    ledger(host).write_text("[[")
    assert exact(host).remove(NAMES).changed
    assert not ledger(host).exists()
    assert not exact(host).remove(NAMES).changed


def test_a_package_that_was_replaced_is_no_longer_noted(host: RpmHost) -> None:
    host.install(Rpm("nvidia-docker2", "0", "2.14.0", "1", "noarch"))
    exact(host).install(Request({"nvidia-docker2": ""}, hold=True))
    host.removes = ["nvidia-docker2"]
    exact(host).install(wanted("1.20.0", replaces=("nvidia-docker2",)))
    assert "nvidia-docker2" not in host.locks and Holds(Files(), host.root).own() == set(NAMES)
    assert not exact(host).install(wanted("1.20.0", replaces=("nvidia-docker2",))).changed
