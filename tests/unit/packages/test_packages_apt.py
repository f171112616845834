# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages and sources of apt: tried first, exact, and undone when they do not work."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError, PackageError
from ansible_collections.socle.inference.plugins.module_utils._packages import apt
from ansible_collections.socle.inference.plugins.module_utils._packages.apt_exact import NEWEST, Wanted, install, remove
from ansible_collections.socle.inference.plugins.module_utils._packages.apt_source import AptRepository, AptSource
from ansible_collections.socle.inference.plugins.module_utils._packages.holds import LEDGER, Holds

from tests.support.commands import Commands

POLICY = """podman:
  Installed: 4.3.1+ds1-8+deb12u1+b3
  Candidate: 4.3.1+ds1-8+deb12u1+b3
  Version table:
 *** 4.3.1+ds1-8+deb12u1+b3 500
        500 http://deb.debian.org/debian bookworm/main amd64 Packages
        100 /var/lib/dpkg/status
docker.io:
  Installed: (none)
  Candidate: 20.10.24+dfsg1-1+deb12u1+b6
  Version table:
     20.10.24+dfsg1-1+deb12u1+b6 500
        500 http://deb.debian.org/debian bookworm/main amd64 Packages
     20.10.5+dfsg1-1 -1
        100 /var/lib/dpkg/status
docker-cli:
  Installed: (none)
  Candidate: (none)
  Version table:
"""

KEY = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQ==\n-----END PGP PUBLIC KEY BLOCK-----\n"
LINE = "{name}\t{version}\t{want}\t{status}\n"

TOOLKIT = AptRepository(
    name="nvidia-container-toolkit",
    uri="https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)",
    key_url="https://nvidia.github.io/libnvidia-container/gpgkey",
    replaces=["/etc/apt/sources.list.d/nvidia-docker.list"],
    expect={"nvidia-container-toolkit": "1.20.0-1"},
    variable="gpu_container_toolkit_repository_url",
)


def policy(*versions: str) -> str:
    table = "".join(f"     {version} 500\n        500 https://example.org/ Packages\n" for version in versions)
    return f"nvidia-container-toolkit:\n  Installed: (none)\n  Candidate: {versions[0]}\n  Version table:\n{table}"


def state(name: str, version: str = "1.20.0-1", want: str = "install", status: str = "installed") -> str:
    return LINE.format(name=name, version=version, want=want, status=status)


def test_policy_tells_what_is_installed_and_what_is_on_offer() -> None:
    found = apt.parse_policy(POLICY)
    assert found["podman"] == apt.Policy(
        "4.3.1+ds1-8+deb12u1+b3", "4.3.1+ds1-8+deb12u1+b3", ("4.3.1+ds1-8+deb12u1+b3",)
    )
    assert found["docker.io"].installed is None
    assert found["docker.io"].versions == ("20.10.24+dfsg1-1+deb12u1+b6",)
    assert found["docker-cli"] == apt.Policy()


@pytest.mark.parametrize(
    ("stdout", "stderr", "words"),
    [
        ("", "E: Unable to locate package nvidia-open\n", "Unable to locate package nvidia-open"),
        ("", "W: x\nE: Failed to fetch http://u:p@m/x  404  Not Found\n", "Failed to fetch http://m/x 404"),
        ("", "", "no reason was given"),
        (
            "Setting up x\r\ndpkg: error processing package nvidia-kernel-open-dkms (--configure):\r\n"
            " installed post-installation script subprocess returned error exit status 10\n",
            "E: Sub-process /usr/bin/dpkg returned an error code (1)\n",
            "dpkg failed at nvidia-kernel-open-dkms: installed post-installation script",
        ),
    ],
)
def test_the_reason_of_apt(stdout: str, stderr: str, words: str) -> None:
    assert words in " ".join(apt.reason(stdout, stderr).split())


def test_packages_as_they_should_be_cost_one_look(commands: Commands, holds: Holds) -> None:
    commands.on("dpkg-query", out=state("a", want="hold"))
    outcome = install(commands, Wanted({"a": "1.20.0-1"}, hold=True), holds)
    assert not outcome.changed and len(commands.calls) == 1


def test_an_installation_is_simulated_and_downloaded_before_it_happens(commands: Commands, holds: Holds) -> None:
    outcome = install(commands, Wanted({"a": "1.20.0-1", "b": ""}, hold=True), holds)
    steps = [call for call in commands.calls if "install" in call]
    assert ["-s" in step for step in steps] == [True, False, False]
    assert ["--download-only" in step for step in steps] == [False, True, False]
    assert all({"a=1.20.0-1", "b", "--no-remove"} <= set(step) for step in steps)
    assert outcome.actions == ["install a=1.20.0-1, b", "hold a, b"]
    assert commands.ran("apt-mark", "hold", "a", "b") == 1


def test_a_half_configured_package_is_finished(commands: Commands, holds: Holds) -> None:
    commands.on("dpkg-query", out=state("a", want="hold", status="half-configured"))
    assert install(commands, Wanted({"a": "1.20.0-1"}, hold=True), holds).actions == ["install a=1.20.0-1"]


@pytest.mark.parametrize(("lists", "pending"), [(True, False), (False, False), (True, True)])
def test_check_mode_simulates_only_and_only_what_apt_knows(
    commands: Commands, holds: Holds, tmp_path: Path, lists: bool, pending: bool
) -> None:
    (tmp_path / "var/lib/apt/lists").mkdir(parents=True)
    if lists:
        (tmp_path / "var/lib/apt/lists/deb.debian.org_debian_dists_trixie_InRelease").touch()
    commands.on("dpkg-query", out=state("a", version="1.18.2-1"))
    outcome = install(
        commands, Wanted({"a": "1.20.0-1"}, True, source_pending=pending), holds, check=True, root=tmp_path
    )
    assert commands.ran("apt-get", "-s", "install") == int(lists and not pending)
    assert outcome.changed and outcome.before == {"a": "1.18.2-1"} and outcome.after == {"a": "1.20.0-1, held"}
    assert [call for call in commands.calls if "install" in call and "-s" not in call] == []
    assert commands.ran("apt-mark") == 0


@pytest.mark.parametrize("lists", [True, False])
def test_check_mode_names_the_version_that_would_come(
    commands: Commands, holds: Holds, tmp_path: Path, lists: bool
) -> None:
    (tmp_path / "var/lib/apt/lists").mkdir(parents=True)
    if lists:
        (tmp_path / "var/lib/apt/lists/deb.debian.org_debian_dists_trixie_InRelease").touch()
    commands.on("apt-get", "-s", out="Inst docker.io (26.1.5+dfsg1-9+b9 Debian:13/stable [amd64])\n")
    # What apt says itself is newer than what was read before.
    wanted = Wanted({"docker.io": ""}, offered={"docker.io": "26.1.5-1"})
    after = install(commands, wanted, holds, check=True, root=tmp_path).after
    assert after == {"docker.io": "26.1.5+dfsg1-9+b9" if lists else "26.1.5-1"}
    outcome = install(commands, Wanted({"b": ""}), holds, check=True, root=tmp_path)
    assert outcome.after == {"b": "the version on offer"}


def test_a_diff_of_packages_says_what_they_are_of(commands: Commands, holds: Holds, tmp_path: Path) -> None:
    outcome = install(commands, Wanted({"a": "1.20.0-1"}), holds, check=True, root=tmp_path)
    diff = outcome.as_result(True, "toolkit")["diff"]
    assert diff == {
        "before_header": "toolkit packages",
        "after_header": "toolkit packages",
        "before": "a absent\n",
        "after": "a 1.20.0-1\n",
    }


def test_an_upgrade_holds_again_what_apt_let_go(commands: Commands, holds: Holds) -> None:
    holds.add(["a"])
    commands.on("dpkg-query", out=state("a", version="1.18.2-1", want="hold"))

    def upgrade(argv: list[str]) -> tuple[int, str, str]:
        if not {"-s", "--download-only"} & set(argv):
            commands.on("dpkg-query", out=state("a"))
        return 0, "", ""

    commands.do("apt-get", "install", then=upgrade)
    assert install(commands, Wanted({"a": "1.20.0-1"}, hold=True), holds).actions[-1] == "hold a"
    assert commands.ran("apt-mark", "hold", "a") == 1


def test_the_newest_is_the_candidate_also_over_an_older_one(commands: Commands, holds: Holds) -> None:
    commands.on("dpkg-query", out=state("nvidia-container-toolkit", version="1.18.2-1"))
    commands.on("apt-cache", "policy", out=policy("1.20.0-1"))
    wanted = Wanted({"nvidia-container-toolkit": NEWEST})
    assert install(commands, wanted, holds).actions == ["install nvidia-container-toolkit=1.20.0-1"]
    commands.on("dpkg-query", out=state("nvidia-container-toolkit", version="1.20.0-1"))
    assert not install(commands, wanted, holds).changed


@pytest.mark.parametrize("check", [False, True])
def test_a_package_that_somebody_else_holds_is_not_changed(commands: Commands, holds: Holds, check: bool) -> None:
    commands.on("dpkg-query", out=state("a", version="1.17.8-1", want="hold") + state("b", version="1.17.8-1"))
    with pytest.raises(
        PackageError, match=r"a is held, and not by socle; .*'apt-mark unhold a'.*These packages are as they were"
    ):
        install(commands, Wanted(dict.fromkeys("ab", "1.20.0-1"), hold=True), holds, check=check)
    with pytest.raises(PackageError, match=r"Cannot remove a, b: a is held, and not by socle"):
        remove(commands, ["a", "b"], holds, check=check)
    assert commands.ran("apt-get") == 0 and commands.ran("apt-mark") == 0


def test_a_refusal_over_holds_names_a_note_of_them_that_cannot_be_read(
    commands: Commands, holds: Holds, tmp_path: Path
) -> None:
    (tmp_path / LEDGER).mkdir(parents=True)
    commands.on("dpkg-query", out=state("a", version="1.17.8-1", want="hold"))
    said = r": /var/lib/socle/package_holds\.json, which notes .* cannot be read \(it is a folder\), .*: a is"
    with pytest.raises(PackageError, match=said):
        install(commands, Wanted({"a": "1.20.0-1"}), holds)
    with pytest.raises(PackageError, match=said):
        remove(commands, ["a"], holds)


def test_a_dependency_that_somebody_else_holds_is_not_changed(commands: Commands, holds: Holds) -> None:
    holds.add(["a"])
    commands.on("dpkg-query", out=state("a", version="1.18.2-1", want="hold"))
    commands.on("dpkg-query", "containerd", out=state("containerd", version="1.7-1", want="hold"))
    commands.on("apt-get", "-s", out="Inst a [1.18.2-1] (1.20.0-1 x)\nInst containerd [1.7-1] (2.0-1 x)\n")
    with pytest.raises(PackageError, match=r"containerd is held, and not by socle"):
        install(commands, Wanted({"a": "1.20.0-1"}, hold=True), holds)
    assert commands.ran("--download-only") == 0


def test_apt_may_change_holds_only_where_one_of_ours_must_give_way(commands: Commands, holds: Holds) -> None:
    install(commands, Wanted({"a": "1.20.0-1"}, hold=True), holds)
    assert commands.ran("--allow-change-held-packages") == 0 and holds.own() == {"a"}
    commands.on("dpkg-query", out=state("a", version="1.18.2-1", want="hold"))
    install(commands, Wanted({"a": "1.20.0-1"}, hold=True), holds)
    assert commands.ran("--allow-change-held-packages") == 3


def test_holds_of_others_at_the_right_version_stay_theirs(commands: Commands, holds: Holds) -> None:
    commands.on("dpkg-query", out=state("a", want="hold"))
    assert not install(commands, Wanted({"a": "1.20.0-1"}, hold=True), holds).changed
    assert not install(commands, Wanted({"a": "1.20.0-1"}, hold=False), holds).changed
    assert holds.own() == set() and commands.ran("apt-mark") == 0


def test_what_was_held_is_held_again_after_a_failure(commands: Commands, holds: Holds) -> None:
    holds.add(["a"])
    commands.on("dpkg-query", out=state("a", version="1.18.2-1", want="hold"))

    def fail(argv: list[str]) -> tuple[int, str, str]:
        if {"-s", "--download-only"} & set(argv):
            return 0, "", ""
        commands.on("dpkg-query", out=state("a", status="half-configured"))
        return 100, "", "dpkg: error processing package a\n"

    commands.do("apt-get", "install", then=fail)
    with pytest.raises(PackageError, match="dpkg --audit"):
        install(commands, Wanted({"a": "1.20.0-1"}, hold=True), holds)
    assert commands.ran("apt-mark", "hold", "a") == 1


def test_no_apt_command_restarts_services_beside_ours(commands: Commands, holds: Holds) -> None:
    commands.on("dpkg-query", out=state("b"))
    install(commands, Wanted({"a": "1.20.0-1"}, hold=True), holds)
    remove(commands, ["b"], holds)
    spoken = [call for call in commands.calls if {"apt-get", "apt-mark"} & set(call)]
    assert len(spoken) >= 5 and all("NEEDRESTART_SUSPEND=1" in call for call in spoken)


def test_only_a_missing_hold_is_set_alone(commands: Commands, holds: Holds) -> None:
    commands.on("dpkg-query", out=state("a", want="hold") + state("b"))
    outcome = install(commands, Wanted({"a": "1.20.0-1", "b": "1.20.0-1"}, hold=True), holds)
    assert outcome.actions == ["hold b"] and commands.ran("apt-get") == 0


def test_a_conflict_stops_before_anything_is_downloaded(commands: Commands, holds: Holds) -> None:
    commands.on(
        "-s",
        "install",
        rc=100,
        out=" a : Depends: libc6 (>= 3) but 2.36 is to be installed\n",
        err="E: Unable to correct problems, you have held broken packages.\n",
    )
    with pytest.raises(PackageError, match=r"a : Depends: libc6 .*These packages are as they were") as caught:
        install(commands, Wanted({"a": ""}), holds)
    assert "\n" not in str(caught.value)
    assert commands.ran("--download-only") == 0


def test_a_download_that_fails_is_tried_again_with_fresh_lists(commands: Commands, holds: Holds) -> None:
    answers = iter([(100, "", "E: Failed to fetch http://x/a.deb  404  Not Found\n"), (0, "", "")])
    commands.do("--download-only", then=lambda _argv: next(answers))
    assert install(commands, Wanted({"a": ""}), holds).changed
    assert commands.ran("apt-get", "update") == 1


def test_a_download_that_keeps_failing_installs_nothing(commands: Commands, holds: Holds) -> None:
    commands.on("--download-only", rc=100, err="E: Failed to fetch http://x/a.deb  404  Not Found\n")
    with pytest.raises(
        PackageError, match=r"Cannot download a: Failed to fetch http://x/a.deb.*These packages are as they were"
    ):
        install(commands, Wanted({"a": ""}), holds)
    assert [call for call in commands.calls if "install" in call and not {"-s", "--download-only"} & set(call)] == []


def test_a_package_that_breaks_half_way_says_how_to_go_on(commands: Commands, holds: Holds) -> None:
    def answer(argv: list[str]) -> tuple[int, str, str]:
        return (0, "", "") if {"-s", "--download-only"} & set(argv) else (100, "", "dpkg: error processing package a\n")

    commands.do("apt-get", "install", then=answer)
    with pytest.raises(PackageError, match="dpkg: error processing package a; look at 'dpkg --audit'"):
        install(commands, Wanted({"a": ""}), holds)


def test_downgrades_are_only_made_on_request(commands: Commands, holds: Holds) -> None:
    install(commands, Wanted({"a": "1"}), holds)
    assert commands.ran("--allow-downgrades") == 0
    install(commands, Wanted({"a": "1"}, downgrade=True), holds)
    assert commands.ran("--allow-downgrades") == 3


def test_removal_takes_holds_and_settings_too(commands: Commands, holds: Holds) -> None:
    holds.add(["a"])
    commands.on("dpkg-query", out=state("a", want="hold") + state("b", status="config-files"))
    commands.on("-s", "purge", out="Purg a [1.20.0-1]\nPurg b [1.20.0-1]\n")
    outcome = remove(commands, ["a", "b", "c"], holds)
    assert outcome.actions == ["remove a, b"]
    assert commands.ran("apt-mark", "unhold", "a") == 1 and holds.own() == set()
    assert [call[-2:] for call in commands.calls if "purge" in call and "-s" not in call] == [["a", "b"]]


def test_removal_that_would_take_others_along_is_refused(commands: Commands, holds: Holds) -> None:
    commands.on("dpkg-query", out=state("a"))
    commands.on("-s", "purge", out="Remv precious [1.0]\nPurg a [1.20.0-1]\n")
    with pytest.raises(PackageError, match="would also remove precious"):
        remove(commands, ["a"], holds)
    assert [call for call in commands.calls if "purge" in call and "-s" not in call] == []


def test_removal_forgets_the_holds_of_one_that_was_interrupted(commands: Commands, holds: Holds) -> None:
    holds.add(["a", "other"])
    assert remove(commands, ["a"], holds, check=True).changed and holds.own() == {"a", "other"}
    assert remove(commands, ["a"], holds).actions == ["note anew which packages are held"]
    assert holds.own() == {"other"}
    assert not remove(commands, ["a"], holds).changed


def test_removal_of_what_is_not_there_does_nothing(commands: Commands, holds: Holds) -> None:
    assert not remove(commands, ["a"], holds).changed
    assert len(commands.calls) == 1


class Web:
    """What the key's address answers."""

    def __init__(self, content: bytes | OSError = KEY) -> None:
        self.content = content
        self.asked = 0

    def __call__(self, url: str) -> bytes:
        self.asked += 1
        if isinstance(self.content, OSError):
            raise self.content
        return self.content


def written(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_a_source_is_written_with_its_key_and_old_ones_go(commands: Commands, tmp_path: Path) -> None:
    old = tmp_path / "etc/apt/sources.list.d/nvidia-docker.list"
    old.parent.mkdir(parents=True)
    old.write_text("deb https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /\n")
    commands.on("apt-cache", "policy", out=policy("1.20.0-1", "1.18.2-1"))
    web = Web()
    result = AptSource(commands, Files(), tmp_path, web).present(TOOLKIT)
    assert result["changed"] and result["removed"] == ["/etc/apt/sources.list.d/nvidia-docker.list"]
    assert written(tmp_path) == {
        "etc/apt/sources.list.d/nvidia-container-toolkit.sources": "# Written by socle.\n"
        "Types: deb\n"
        "URIs: https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)\n"
        "Suites: /\n"
        "Signed-By: /etc/apt/keyrings/nvidia-container-toolkit.asc\n",
        "etc/apt/keyrings/nvidia-container-toolkit.asc": KEY.decode(),
    }
    again = AptSource(commands, Files(), tmp_path, web).present(TOOLKIT)
    assert not again["changed"] and web.asked == 1


def test_a_source_that_cannot_be_read_leaves_the_host_as_it_was(commands: Commands, tmp_path: Path) -> None:
    old = tmp_path / "etc/apt/sources.list.d/nvidia-docker.list"
    old.parent.mkdir(parents=True)
    old.write_text("deb x /\n")
    commands.on("update", rc=100, err="E: Failed to fetch https://nvidia.github.io/InRelease  Could not resolve\n")
    with pytest.raises(
        PackageError, match=r"Could not resolve.*gpu_container_toolkit_repository_url.*sources are as they were"
    ):
        AptSource(commands, Files(), tmp_path, Web()).present(TOOLKIT)
    assert list(written(tmp_path)) == ["etc/apt/sources.list.d/nvidia-docker.list"]


def test_a_version_that_the_source_lacks_is_named_with_those_that_it_has(commands: Commands, tmp_path: Path) -> None:
    commands.on("apt-cache", "policy", out=policy("1.19.1-1", "1.18.2-1"))
    with pytest.raises(
        PackageError, match=r"Cannot install nvidia-container-toolkit 1.20.0-1: .* offers 1.19.1-1, 1.18.2-1"
    ):
        AptSource(commands, Files(), tmp_path, Web()).present(TOOLKIT)
    assert written(tmp_path) == {}


@pytest.mark.parametrize(
    ("web", "reason"),
    [
        (Web(OSError("timed out")), "Cannot fetch the signing key .*: timed out"),
        (Web(b"<html>Please log in</html>"), "no OpenPGP public key"),
    ],
)
def test_a_key_that_does_not_come_is_a_sentence(commands: Commands, tmp_path: Path, web: Web, reason: str) -> None:
    with pytest.raises(PackageError, match=reason):
        AptSource(commands, Files(), tmp_path, web).present(TOOLKIT)
    assert written(tmp_path) == {} and commands.ran("update") == 0


def test_a_source_that_fails_beside_the_others_is_taken_back(commands: Commands, tmp_path: Path) -> None:
    old = tmp_path / "etc/apt/sources.list.d/nvidia-docker.list"
    old.parent.mkdir(parents=True)
    old.write_text("deb x /\n")
    commands.on("apt-cache", "policy", out=policy("1.20.0-1"))
    commands.on("APT::Get::List-Cleanup=0", "update", rc=100, err="E: Conflicting values set for option Signed-By\n")
    with pytest.raises(PackageError, match=r"Conflicting values.*as they were"):
        AptSource(commands, Files(), tmp_path, Web()).present(TOOLKIT)
    assert written(tmp_path) == {"etc/apt/sources.list.d/nvidia-docker.list": "deb x /\n"}


def test_check_mode_tries_the_source_and_writes_nothing(commands: Commands, tmp_path: Path) -> None:
    commands.on("apt-cache", "policy", out=policy("1.20.0-1"))
    result = AptSource(commands, Files(), tmp_path, Web()).present(TOOLKIT, check=True)
    assert result["changed"] and "Signed-By" in result["after"]
    assert written(tmp_path) == {}
    assert all("Dir::Etc::sourceparts=-" in call for call in commands.calls if "update" in call)


def test_a_written_source_with_old_lists_reads_them_again(commands: Commands, tmp_path: Path) -> None:
    commands.on("apt-cache", "policy", out=policy("1.20.0-1"))
    sources = AptSource(commands, Files(), tmp_path, Web())
    sources.present(TOOLKIT)
    seen = {"fresh": False}

    def answer(argv: list[str]) -> tuple[int, str, str]:
        trial = any(word.startswith("Dir::State::lists") for word in argv)
        return 0, policy("1.20.0-1" if trial or seen["fresh"] else "1.18.2-1"), ""

    def update(argv: list[str]) -> tuple[int, str, str]:
        seen["fresh"] = True
        return 0, "", ""

    commands.do("apt-cache", "policy", then=answer)
    commands.do("APT::Get::List-Cleanup=0", "update", then=update)
    assert not sources.present(TOOLKIT)["changed"] and seen["fresh"]


def test_removal_of_a_source_takes_the_key_too(commands: Commands, tmp_path: Path) -> None:
    commands.on("apt-cache", "policy", out=policy("1.20.0-1"))
    sources = AptSource(commands, Files(), tmp_path, Web())
    sources.present(TOOLKIT)
    assert sources.absent(TOOLKIT, check=True)["changed"] and written(tmp_path)
    assert sources.absent(TOOLKIT)["changed"] and written(tmp_path) == {}
    assert not sources.absent(TOOLKIT)["changed"]


def test_a_password_is_for_root_alone_and_comes_and_goes_with_its_source(commands: Commands, tmp_path: Path) -> None:
    address = "https://someone:s%40cret@mirror.example/deb/$(ARCH)"
    commands.on("apt-cache", "policy", out=policy("1.20.0-1"))
    sources = AptSource(commands, Files(), tmp_path, Web())
    modes: list[int] = []

    def update(argv: list[str]) -> tuple[int, str, str]:
        place = next(word.partition("sourcelist=")[2] for word in argv if "sourcelist=" in word)
        modes.append(Path(place).stat().st_mode & 0o777)
        return 0, "", ""

    commands.do("update", then=update)
    result = sources.present(replace(TOOLKIT, uri=address, replaces=()))
    assert "s%40cret" not in repr(result)
    secret = tmp_path / "etc/apt/auth.conf.d/socle-nvidia-container-toolkit.conf"
    assert secret.read_text().splitlines()[1:] == ["machine https://mirror.example/deb login someone password s@cret"]
    assert secret.stat().st_mode & 0o777 == 0o600 and modes == [0o600, 0o644]
    assert "cret" not in (tmp_path / "etc/apt/sources.list.d/nvidia-container-toolkit.sources").read_text()
    assert not sources.present(replace(TOOLKIT, uri=address, replaces=()))["changed"]
    changed = replace(TOOLKIT, uri=address.replace("s%40cret", "other"), replaces=())
    assert sources.present(changed)["changed"] and "other" in secret.read_text()
    sources.absent(changed)
    assert written(tmp_path) == {}


def test_no_message_of_a_source_shows_the_password_of_its_address(commands: Commands, tmp_path: Path) -> None:
    address = "https://someone:secret@mirror.example/stable/deb"
    source = AptRepository("x", address, f"{address}/key", expect={"nvidia-container-toolkit": "1.20.0-1"})
    told = []
    for web, answer in (
        (Web(OSError("timed out")), policy("1.20.0-1")),
        (Web(b"<html>"), policy("1.20.0-1")),
        (Web(), policy("1.18.2-1")),
    ):
        commands.on("apt-cache", "policy", out=answer)
        with pytest.raises(PackageError) as caught:
            AptSource(commands, Files(), tmp_path, web).present(source)
        told.append(f"{caught.value} {caught.value.fields}")
    commands.on("update", rc=100, err=f"E: Failed to fetch {address}/InRelease  401  Unauthorized\n")
    with pytest.raises(PackageError, match="401") as caught:
        AptSource(commands, Files(), tmp_path, Web()).present(source)
    told.append(f"{caught.value} {caught.value.fields}")
    assert all("mirror.example" in text and "secret" not in text for text in told)


@pytest.mark.parametrize("number", [1, 2])
def test_a_source_that_cannot_be_written_whole_is_not_there(
    number: int, commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "etc/apt/sources.list.d/nvidia-docker.list"
    old.parent.mkdir(parents=True)
    old.write_text("deb https://nvidia.github.io/libnvidia-container/stable/deb/amd64 /\n")
    source = AptSource(commands, Files(), tmp_path, lambda _url: KEY)
    real, written = os.fsync, 0

    def fill_up(handle: int) -> None:
        nonlocal written
        written += str(tmp_path / "etc") in str(Path(f"/proc/self/fd/{handle}").readlink())
        if written == number:
            written += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", fill_up)
    with pytest.raises(EngineError, match="Cannot write the package source nvidia-container-toolkit: No space left"):
        source.present(replace(TOOLKIT, expect={}))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [old]
