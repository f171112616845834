# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carrying out a plan: all of it, or back to what was there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._driver import dkms
from ansible_collections.socle.inference.plugins.module_utils._driver.decide import Settings
from ansible_collections.socle.inference.plugins.module_utils._driver.model import DriverError
from ansible_collections.socle.inference.plugins.module_utils._driver.plan import LEDGER, plan, plan_as_is
from ansible_collections.socle.inference.plugins.module_utils._driver.transaction import Transaction
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError

from .fake_host import KERNEL, FakeHost, facts

BASE = "https://mirror.example.org/cuda/repos"
FIXTURES = Path(__file__).parent / "fixtures"
FAILED_BUILD = (FIXTURES / "make_open_550.163.01_on_6.12.118.log").read_text(encoding="utf-8")


@pytest.fixture
def fake(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path)
    host.add_source()
    host.dkms = f"nvidia/580.178.04, {KERNEL}, x86_64: installed\n"
    return host


def run(fake: FakeHost, *, check: bool = False, **settings: Any) -> dict[str, Any]:
    wanted = Settings(**{"repository_url": BASE, "architecture": "ampere", **settings})
    made = plan(fake.host(), wanted, facts()).as_dict()
    return Transaction(fake.host(), made, KERNEL, wanted.hold, Files()).carry_out(check)


def ledger(fake: FakeHost) -> list[str]:
    path = fake.root / LEDGER
    return json.loads(path.read_text(encoding="utf-8"))["held"] if path.exists() else []


def test_an_installation_is_pinned_held_and_noted(fake: FakeHost) -> None:
    result = run(fake)
    assert result["changed"] and fake.installed()["nvidia-driver-cuda"] == "580.178.04-1"
    assert fake.held() == ledger(fake) == result["held"]
    assert {"nvidia-driver-pinning-580", "nvidia-kernel-open-dkms"} <= set(fake.held())
    assert not any(name.startswith("linux-headers") for name in fake.held())
    steps = [call for call in fake.said("install") if "-s" not in call]
    assert "--download-only" in steps[0]
    assert steps[1][steps[1].index("install") + 1 :] == ["nvidia-driver-pinning-580"]
    assert "nvidia-driver-cuda=580.178.04-1" in steps[2]
    assert not run(fake)["changed"]


def test_check_mode_changes_nothing_and_shows_it(fake: FakeHost) -> None:
    result = run(fake, check=True)
    assert result["changed"] and fake.packages == {}
    assert "nvidia-driver-cuda 580.178.04-1 (held)\n" in result["diff"]["after"] and result["diff"]["before"] == ""


def shown(fake: FakeHost, made: Any) -> list[str]:
    """The lines of check mode's diff for what would be there."""
    result = Transaction(fake.host(), made.as_dict(), KERNEL, True, Files()).carry_out(True)
    return str(result["diff"]["after"]).splitlines()


def test_the_diff_has_the_pin_and_what_comes_along_as_they_will_be(fake: FakeHost) -> None:
    fake.extra_installs = {"libcuda1": "580.178.04-1"}
    after = shown(fake, plan(fake.host(), Settings(repository_url=BASE, architecture="ampere"), facts()))
    assert "nvidia-driver-pinning-580 580-1 (held)" in after
    assert "libcuda1 580.178.04-1 (held)" in after and "nvidia-persistenced 580.178.04-1 (held)" in after
    assert "linux-headers-cloud-amd64 6.12.118-1" in after


def test_the_diff_of_a_repository_that_nobody_read_invents_nothing(fake: FakeHost) -> None:
    (fake.root / "etc/apt/sources.list.d/socle-nvidia-cuda.sources").unlink()
    wanted = Settings(repository_url=BASE, architecture="ampere")
    after = shown(fake, plan_as_is(fake.host(), replace(wanted, version="580.999.01"), facts()))
    assert "nvidia-driver-cuda (580.999.01 if the repository has it)" in after
    assert "nvidia-driver-pinning-580.999.01 (if the repository has it)" in after
    assert "nvidia-modprobe (580.999.01 if the repository has it)" in after
    after = shown(fake, plan_as_is(fake.host(), replace(wanted, branch="580"), facts()))
    assert "nvidia-driver-cuda (the newest of 580 that the repository has)" in after
    assert not any("held" in line for line in after)


def test_the_diff_of_what_stays_is_none(fake: FakeHost) -> None:
    (fake.root / "etc/apt/sources.list.d/socle-nvidia-cuda.sources").unlink()
    fake.install("580.126.09", held=True, pin=None)
    fake.write(LEDGER, json.dumps({"held": fake.held()}))
    made = plan_as_is(fake.host(), Settings(repository_url=BASE, architecture="ampere"), facts())
    result = Transaction(fake.host(), made.as_dict(), KERNEL, True, Files()).carry_out(True)
    before, after = (set(result["diff"][key].splitlines()) for key in ("before", "after"))
    assert after - before == {"nvidia-driver-pinning-580 (if the repository has it)"} and not before - after


def test_an_interruption_around_the_holds_is_healed_by_the_next_run(fake: FakeHost, monkeypatch: Any) -> None:
    real = fake.run

    def ended(argv: Any) -> Any:
        if list(argv[:2]) == ["apt-mark", "hold"]:
            real(argv)
            raise KeyboardInterrupt
        return real(argv)

    monkeypatch.setattr(fake, "run", ended)
    with pytest.raises(KeyboardInterrupt):
        run(fake, version="580.126.09")
    monkeypatch.setattr(fake, "run", real)
    assert run(fake, version="580.178.04")["version"] == "580.178.04"
    assert fake.held() == ledger(fake)


def test_a_hold_of_somebody_else_is_never_noted_as_ours(fake: FakeHost) -> None:
    fake.install("580.178.04")
    fake.packages["libcuda1"]["held"] = True
    run(fake)
    assert "nvidia-driver-cuda" in ledger(fake) and "libcuda1" not in ledger(fake)


@pytest.mark.parametrize("text", ["[[", "[" * 200_000, "[[1]]", '{"held": [[1]]}', '{"held": "libcuda1"}'])
def test_a_damaged_ledger_holds_nothing_and_is_rewritten(fake: FakeHost, text: str) -> None:
    run(fake)
    fake.write(LEDGER, text)
    result = run(fake)
    assert result["changed"] and result["held"] == ledger(fake) == []
    assert not run(fake)["changed"]


def test_a_note_that_an_interrupted_removal_left_goes_with_the_next(fake: FakeHost) -> None:
    run(fake)
    noted = (fake.root / LEDGER).read_text(encoding="utf-8")
    run(fake, state="absent")
    for path in plan(fake.host(), Settings(state="absent"), facts()).as_dict()["repository"]["files"]:
        (fake.root / path.lstrip("/")).unlink()
    for text in (noted, "[["):
        fake.write(LEDGER, text)
        assert run(fake, state="absent")["changed"]
        assert not (fake.root / LEDGER).exists()
        assert not run(fake, state="absent")["changed"]


def test_a_note_of_holds_that_were_given_up_does_not_stay(fake: FakeHost) -> None:
    run(fake)
    noted = ledger(fake)
    run(fake, hold=False)
    fake.write(LEDGER, json.dumps({"held": noted}))
    run(fake, hold=False)
    assert ledger(fake) == []


def test_a_ledger_that_cannot_be_written_is_one_sentence_and_nothing_is_held(fake: FakeHost) -> None:
    fake.write("var/lib/socle", "a file in the way")
    with pytest.raises(SocleError, match=r"Cannot note which packages this role holds: .*, then repeat the run\."):
        run(fake)
    assert fake.held() == []


def test_an_upgrade_lifts_its_own_holds_and_holds_again(fake: FakeHost) -> None:
    run(fake, version="580.126.09")
    held = fake.held()
    result = run(fake, version="580.178.04")
    assert fake.installed()["nvidia-driver-cuda"] == "580.178.04-1"
    assert "nvidia-driver-pinning-580.126.09" in held and "nvidia-driver-pinning-580.126.09" not in fake.packages
    assert fake.held() == ledger(fake) == result["held"]
    assert "nvidia-driver-cuda 580.126.09-1 (held)\n" in result["diff"]["before"]


def test_without_holds(fake: FakeHost) -> None:
    run(fake, hold=False)
    assert fake.held() == [] and ledger(fake) == []
    run(fake)
    assert fake.held()
    run(fake, hold=False)
    assert fake.held() == [] and ledger(fake) == []


def test_a_download_that_fails_changes_nothing(fake: FakeHost) -> None:
    fake.failures["--download-only"] = "E: Failed to fetch http://u:p@m/nvidia.deb  404  Not Found\n"
    with pytest.raises(DriverError, match=r"Cannot download driver 580\.178\.04: .*Nothing was changed") as raised:
        run(fake)
    assert fake.packages == {} and "u:p@" not in str(raised.value)


def test_a_fresh_installation_that_fails_is_removed_again(fake: FakeHost) -> None:
    fake.write("var/lib/dkms/nvidia/580.178.04/build/make.log", FAILED_BUILD)
    fake.failures["nvidia-driver-cuda=580.178.04-1 nvidia-kernel-open-dkms=580.178.04-1"] = "E: dpkg failed\n"
    with pytest.raises(DriverError) as raised:
        _fail_late(fake)
    assert "error: too few arguments to function 'pci_resize_resource'" in str(raised.value)
    assert "580.126.09 or newer" in str(raised.value) and "removed again" in str(raised.value)
    assert "pci_resize_resource" in raised.value.fields["build_log"]
    assert not any(name.startswith("nvidia") for name in fake.packages) and fake.held() == []


def _fail_late(fake: FakeHost, **settings: Any) -> None:
    """The plan succeeds, and apt fails after it unpacked the packages."""
    failures, fake.failures = fake.failures, {}
    wanted = Settings(
        **{"repository_url": "https://mirror.example.org/cuda/repos", "architecture": "ampere", **settings}
    )
    made = plan(fake.host(), wanted, facts()).as_dict()
    original = fake.run

    def failing(argv: Any) -> Any:
        answer = original(argv)
        for words, output in failures.items():
            if set(words.split()) <= set(argv) and "--download-only" not in argv:
                fake.packages["nvidia-kernel-open-dkms"]["status"] = "half-configured"
                return 100, output, "E: Sub-process /usr/bin/dpkg returned an error code (1)\n"
        return answer

    fake.run = failing  # type: ignore[method-assign]
    Transaction(fake.host(), made, KERNEL, wanted.hold, Files()).carry_out(False)


def test_an_upgrade_that_fails_goes_back_and_holds_again(fake: FakeHost) -> None:
    run(fake, version="580.126.09")
    before, held = fake.installed(), fake.held()
    fake.failures["nvidia-kernel-open-dkms=580.178.04-1"] = "E: dpkg failed\n"
    with pytest.raises(DriverError, match=r"Cannot install driver 580\.178\.04.*the packages are as before the run"):
        _fail_late(fake, version="580.178.04")
    assert fake.installed() == before and fake.held() == held == ledger(fake)


def test_a_build_that_dkms_left_out_in_silence(fake: FakeHost) -> None:
    fake.dkms = "nvidia/580.178.04: added\n"
    with pytest.raises(DriverError, match=rf"DKMS has no module 580\.178\.04 for kernel {KERNEL[:6]}.*removed again"):
        run(fake)
    assert "nvidia-driver-cuda" not in fake.packages


def test_removal_takes_holds_and_ledger(fake: FakeHost) -> None:
    run(fake)
    run(fake, state="absent")
    assert not any(name.startswith("nvidia") for name in fake.packages)
    assert "linux-headers-cloud-amd64" in fake.packages
    assert ledger(fake) == []


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        (f"nvidia/580.178.04, {KERNEL}, x86_64: installed", ("nvidia", "580.178.04", KERNEL, "installed")),
        ("nvidia-current-open/550.163.01: added", ("nvidia-current-open", "550.163.01", "", "added")),
        (
            "nvidia, 580.95.05, 5.15.0-60-generic, x86_64: installed (WARNING! Diff!)",
            ("nvidia", "580.95.05", "5.15.0-60-generic", "installed"),
        ),
    ],
)
def test_lines_of_dkms(line: str, entry: tuple[str, ...]) -> None:
    assert dkms.parse_status(f"zfs/2.3.2, 6.1, x86_64: installed\n{line}\n") == [dkms.Entry(*entry)]


def test_a_module_counts_for_its_kernel_only() -> None:
    entries = dkms.parse_status(f"nvidia/580.178.04, {KERNEL}, x86_64: installed\n")
    assert dkms.is_built(entries, "580.178.04", KERNEL)
    assert not dkms.is_built(entries, "580.178.04", "6.12.119") and not dkms.is_built(entries, "580.1", KERNEL)


@pytest.mark.parametrize(
    ("log", "error", "remedy"),
    [
        (FAILED_BUILD, "nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'", "580.126.09"),
        ("cc: fatal error: no input\n", "cc: fatal error: no input", "newer driver"),
        ("x.c:1:2: error: \u2018y\u2019 undeclared\n", "x.c:1:2: error: 'y' undeclared", "newer driver"),
        ("x.c:1: something\ncp: error writing 'x': No space left on device\n", "cp: error writing 'x'", "make room"),
        ("make[1]: *** [Makefile:2] Error 2\n", "make[1]: *** [Makefile:2] Error 2", "newer driver"),
    ],
)
def test_the_first_error_of_a_build(log: str, error: str, remedy: str) -> None:
    found = dkms.first_error(log)
    assert found is not None and found.startswith(error)
    assert remedy in dkms.remedy(found)


def signed(fake: FakeHost) -> None:
    """Ubuntu's signed modules, installed and held with the kernel that they belong to."""
    fake.packages.clear()
    names = ["nvidia-utils-580-server", "linux-modules-nvidia-580-server-open-generic", "linux-image-generic"]
    for name in names:
        fake.packages[name] = {"version": "580.159.03-0ubuntu1", "status": "installed", "held": True}
    fake.write(LEDGER, json.dumps({"held": names}))


def test_removal_releases_the_kernel_that_was_held_with_the_driver(fake: FakeHost) -> None:
    signed(fake)
    run(fake, state="absent")
    assert fake.held() == ledger(fake) == [] and "linux-image-generic" in fake.packages


def test_a_hold_on_the_kernel_goes_although_the_driver_went_by_hand(fake: FakeHost) -> None:
    signed(fake)
    for name in [name for name in fake.packages if "nvidia" in name]:
        del fake.packages[name]
    assert run(fake, state="absent")["changed"]
    assert fake.held() == ledger(fake) == []


def test_without_signed_modules_the_kernel_is_not_held(fake: FakeHost) -> None:
    run(fake)
    fake.packages["linux-image-cloud-amd64"] = {"version": "6.12-1", "status": "installed", "held": True}
    fake.write(LEDGER, json.dumps({"held": [*ledger(fake), "linux-image-cloud-amd64"]}))
    run(fake, branch="595")
    assert "linux-image-cloud-amd64" not in fake.held() and ledger(fake) == fake.held()


def test_a_removal_that_fails_holds_again(fake: FakeHost) -> None:
    run(fake)
    held = fake.held()
    made = plan(fake.host(), Settings(state="absent"), facts()).as_dict()
    fake.failures["purge"] = "E: dpkg failed\n"
    with pytest.raises(DriverError, match="Cannot remove the driver"):
        Transaction(fake.host(), made, KERNEL, True, Files()).carry_out(False)
    assert fake.held() == held == ledger(fake)
