# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""DNF's answers are read and its errors told in one sentence; the texts were captured from DNF 4.23."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import PackageError
from ansible_collections.socle.inference.plugins.module_utils._packages import dnf

URL = "https://mirror.example/cuda/repos/rhel9/x86_64/"
QUERY = """\
Unable to detect release version (use '--releasever' to specify release version)
nvidia-driver-cuda\t3\t580.95.05\t1.el9\tx86_64\tsocle-probe
nvidia-driver-cuda\t3\t580.159.03\t1.el9\tx86_64\tsocle-probe
nvidia-driver-cuda\t3\t580.178.04\t1.el9\tx86_64\tsocle-probe
nvidia-driver-cuda\t3\t595.91.07\t1.el9\tx86_64\tsocle-probe
nvidia-fabricmanager\t0\t580.178.04\t1\tx86_64\tsocle-probe
"""
STREAMS = """\
Last metadata expiration check: 0:00:17 ago on Mon Nov 30 12:44:43 2026.
cuda
Name          Stream       Profiles Summary
nvidia-driver 580-open [e] default  Nvidia driver for 580-open branch
nvidia-driver 595-open              Nvidia driver for 595-open branch

Hint: [d]efault, [e]nabled, [x]disabled, [i]nstalled
"""
LOCKS = """\

# Added lock on Mon Nov 30 12:45:32 2026
nvidia-driver-cuda-3:580.159.03-1.el9.*
bash-0:5.1.8-9.el9.*
!nvidia-driver-cuda-3:595.91.07-1.el9.*
"""
CUDA = dnf.Rpm("nvidia-driver-cuda", "3", "580.178.04", "1.el9", "x86_64")
KMOD = dnf.Rpm("kmod-nvidia-open-dkms", "3", "580.178.04", "1.el9", "noarch")


def test_a_query_gives_packages_and_leaves_out_what_dnf_says_beside_them() -> None:
    found = dnf.parse_query(QUERY)
    assert len(found) == 5
    assert found[0] == dnf.Rpm("nvidia-driver-cuda", "3", "580.95.05", "1.el9", "x86_64", "socle-probe")


class Asked:
    """What a query hands to dnf."""

    def __init__(self, answer: tuple[int, str, str] = (0, QUERY, "")) -> None:
        self.answer = answer

    def run(self, argv: Sequence[str]) -> tuple[int, str, str]:
        self.argv = list(argv)
        folder = next(word.partition("reposdir=")[2] for word in argv if "reposdir=" in word)
        (file,) = Path(folder).iterdir()
        self.text, self.mode = file.read_text(), file.stat().st_mode & 0o777
        return self.answer


def test_a_query_needs_neither_file_nor_stream_nor_free_lock() -> None:
    asked = Asked()
    assert len(dnf.query(asked.run, URL, ["nvidia-driver-cuda"])) == 5
    assert f"\nbaseurl={URL}\n" in asked.text
    assert "--disableplugin=versionlock" in asked.argv and "--repo=socle-probe" in asked.argv
    assert "\nmodule_hotfixes=1\n" in asked.text and "\nskip_if_unavailable=0\n" in asked.text
    assert "repo_gpgcheck" not in asked.text


def test_a_query_shows_a_password_to_nobody() -> None:
    secret = URL.replace("//", "//someone:secret@")
    asked = Asked((1, "", f"Error: Status code: 403 for {secret}repodata/repomd.xml"))
    with pytest.raises(PackageError, match="Status code: 403") as caught:
        dnf.query(asked.run, secret, ["nvidia-driver-cuda"])
    assert "secret" not in " ".join(asked.argv) + str(caught.value) + repr(caught.value.fields)
    assert secret in asked.text and asked.mode == 0o600


def test_a_mirror_that_does_not_answer_is_named() -> None:
    error = (
        "Error: Failed to download metadata for repo 'socle-probe': Cannot download repomd.xml: All mirrors were tried"
    )
    with pytest.raises(PackageError, match=f"Cannot ask {URL} for nvidia-driver-cuda: repository socle-probe did not"):
        dnf.query(lambda _argv: (1, "", error), URL, ["nvidia-driver-cuda"])


def test_a_host_without_dnf_is_told_so() -> None:
    with pytest.raises(PackageError, match="this host has no dnf"):
        dnf.query(lambda _argv: None, URL, ["nvidia-driver-cuda"])


def test_streams_are_listed_without_their_marks() -> None:
    assert dnf.parse_streams(STREAMS, "nvidia-driver") == ["580-open", "595-open"]


@pytest.mark.parametrize(
    ("content", "stream"),
    [
        ("[nvidia-driver]\nname=nvidia-driver\nstream=580-open\nprofiles=\nstate=enabled\n", "580-open"),
        ("[nvidia-driver]\nname=nvidia-driver\nstream=\nprofiles=\nstate=\n", None),
        ("[nvidia-driver]\nname=nvidia-driver\nstream=580-open\nprofiles=\nstate=disabled\n", None),
        ("not a file of dnf", None),
        (b"stream=\xff\n", None),
        (None, None),
    ],
)
def test_the_enabled_stream_is_read_from_disk(tmp_path: Path, content: str | bytes | None, stream: str | None) -> None:
    folder = tmp_path / "etc/dnf/modules.d"
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "nvidia-driver.module").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert dnf.read_stream(tmp_path, "nvidia-driver") == stream


def test_another_stream_is_reset_before_one_is_enabled() -> None:
    enable = [*dnf.ENGLISH, "dnf", "--assumeyes", "module", "enable", "nvidia-driver:580-open"]
    assert dnf.stream_commands("nvidia-driver", None, "580-open") == [enable]
    assert dnf.stream_commands("nvidia-driver", "580-open", "580-open") == []
    assert dnf.stream_commands("nvidia-driver", None, None) == []
    changed = dnf.stream_commands("nvidia-driver", "570-open", "580-open")
    assert changed == [[*dnf.ENGLISH, "dnf", "--assumeyes", "module", "reset", "nvidia-driver"], enable]


def test_locks_follow_the_installed_version_and_leave_others_alone() -> None:
    text = dnf.locked(LOCKS, [CUDA, KMOD])
    assert "nvidia-driver-cuda-3:580.178.04-1.el9.*\n" in text
    assert "kmod-nvidia-open-dkms-3:580.178.04-1.el9.*\n" in text
    assert "580.159.03" not in text
    assert "bash-0:5.1.8-9.el9.*\n" in text
    assert "!nvidia-driver-cuda-3:595.91.07-1.el9.*\n" in text
    assert dnf.locked(text, [CUDA, KMOD]) == text


def test_unlocking_takes_only_the_named_packages() -> None:
    text = dnf.unlocked(LOCKS, ["nvidia-driver-cuda", "dkms"])
    assert "nvidia-driver-cuda-3:580" not in text
    assert "bash-0:5.1.8-9.el9.*\n" in text
    assert "# Added lock" in text


ERRORS = [
    (
        "Error: Problems in request:\nmissing groups or modules: nvidia-driver:999-open\n",
        "the repository has no module stream nvidia-driver:999-open",
    ),
    (
        "Dependencies resolved.\nThe operation would result in switching of module 'nvidia-driver' stream '580-open' to"
        " stream '595-open'\nError: It is not possible to switch enabled streams of a module unless explicitly enabled"
        " via configuration option module_stream_switch.\n",
        "stream 580-open of nvidia-driver is enabled and 595-open was asked for; run 'dnf module reset nvidia-driver'",
    ),
    (
        "All matches were filtered out by exclude filtering for argument: nvidia-driver-cuda-3:580.178.04\nError:"
        " Unable to find a match: nvidia-driver-cuda-3:580.178.04\n",
        "nvidia-driver-cuda-3:580.178.04 exists, but a version lock or an exclude hides it",
    ),
    (
        "All matches were filtered out by modular filtering for argument: nvidia-driver-cuda-3:595.91.07\nError: Unable"
        " to find a match: nvidia-driver-cuda-3:595.91.07\n",
        "nvidia-driver-cuda-3:595.91.07 belongs to another module stream than the enabled one",
    ),
    (
        "Error: \n Problem: conflicting requests\n  - nothing provides dkms needed by"
        " kmod-nvidia-open-dkms-3:580.159.03-1.el9.noarch from cuda-rhel9-x86_64\n(try to add '--skip-broken' to skip"
        " uninstallable packages)\n",
        "kmod-nvidia-open-dkms-3:580.159.03-1.el9.noarch needs dkms, which no enabled repository has; enable EPEL.",
    ),
    (
        "No match for argument: nvidia-driver-cuda-3:580.1\nError: Unable to find a match:"
        " nvidia-driver-cuda-3:580.1\n",
        "no enabled repository has nvidia-driver-cuda-3:580.1",
    ),
    (
        "Package kmod-nvidia-open-dkms-580.178.04-1.el9.noarch.rpm is not signed\nError: GPG check FAILED\n",
        "a package is not signed by the key that the repository file names",
    ),
    (
        "Error: Failed to download metadata for repo 'cuda-rhel9-x86_64': Cannot download repomd.xml: Cannot download"
        " repodata/repomd.xml: All mirrors were tried\n",
        "repository cuda-rhel9-x86_64 did not answer",
    ),
    ("Error: something new\n", "dnf said 'something new'; resolve that on the host first"),
    ("Error: \n Problem: package a requires b\n", "dnf said 'Problem: package a requires b'"),
    ("", "dnf said 'no reason given'"),
]


@pytest.mark.parametrize(("output", "said"), ERRORS)
def test_an_error_becomes_one_sentence_with_a_way_out(output: str, said: str) -> None:
    sentence = dnf.explain("install driver 580.178.04", output)
    assert sentence.startswith("Cannot install driver 580.178.04: ")
    assert said in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
