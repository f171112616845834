# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A package source of DNF is tried before it is written, and a damaged or unreachable one changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import PackageError
from ansible_collections.socle.inference.plugins.module_utils._packages.dnf_source import DnfRepository, DnfSource

KEY = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQ==\n-----END PGP PUBLIC KEY BLOCK-----\n"
URI = "https://someone:secret@mirror.example/repos/rhel9/x86_64/"
SOURCE = DnfRepository("socle-nvidia-cuda", URI, f"{URI}D42D0685.pub", expect={"nvidia-driver-cuda": "580.178.04"})
OFFER = "nvidia-driver-cuda\t3\t580.178.04\t1.el9\tx86_64\tsocle-probe\n"


class Mirror:
    """Answers of dnf and of the web server."""

    def __init__(self) -> None:
        self.answer = (0, OFFER, "")
        self.key: Callable[[], bytes] = lambda: KEY
        self.asked = 0

    def run(self, argv: Sequence[str]) -> tuple[int, str, str]:
        self.asked += 1
        (file,) = Path(next(word.partition("reposdir=")[2] for word in argv if "reposdir=" in word)).iterdir()
        self.asked_for = file.read_text().splitlines()
        keys = [line.partition("file://")[2] for line in self.asked_for if "gpgkey=" in line]
        self.trusted = [Path(key).read_bytes() for key in keys]
        return self.answer

    def fetch(self, _url: str) -> bytes:
        self.asked += 1
        return self.key()


@pytest.fixture
def mirror() -> Mirror:
    return Mirror()


def bring(mirror: Mirror, root: Path, source: DnfRepository = SOURCE, check: bool = False) -> dict[str, object]:
    return DnfSource(mirror.run, Files(), root, mirror.fetch).present(source, check=check)


def test_the_file_demands_signatures_and_a_mirror_that_answers(tmp_path: Path, mirror: Mirror) -> None:
    assert bring(mirror, tmp_path)["changed"] is True
    text = (tmp_path / "etc/yum.repos.d/socle-nvidia-cuda.repo").read_text()
    assert "gpgcheck=1\ngpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-socle-nvidia-cuda\n" in text
    assert "skip_if_unavailable=0\n" in text
    assert (tmp_path / "etc/yum.repos.d/socle-nvidia-cuda.repo").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "etc/pki/rpm-gpg/RPM-GPG-KEY-socle-nvidia-cuda").read_bytes() == KEY
    mirror.asked = 0
    assert bring(mirror, tmp_path)["changed"] is False
    assert mirror.asked == 0


def test_metadata_may_be_signed_instead_of_packages(tmp_path: Path, mirror: Mirror) -> None:
    bring(mirror, tmp_path, replace(SOURCE, signed="metadata"))
    text = (tmp_path / "etc/yum.repos.d/socle-nvidia-cuda.repo").read_text()
    assert "\ngpgcheck=0\nrepo_gpgcheck=1\ngpgkey=file:///etc/pki/rpm-gpg/" in text
    assert "repo_gpgcheck=1" in mirror.asked_for and mirror.trusted == [KEY]


def test_check_mode_tries_the_source_and_writes_nothing(tmp_path: Path, mirror: Mirror) -> None:
    assert bring(mirror, tmp_path, check=True)["changed"] is True
    assert list(tmp_path.iterdir()) == []
    assert mirror.asked == 2


def test_a_key_may_be_given_as_text(tmp_path: Path, mirror: Mirror) -> None:
    bring(mirror, tmp_path, DnfRepository("x", URI, KEY.decode()))
    assert (tmp_path / "etc/pki/rpm-gpg/RPM-GPG-KEY-x").read_bytes() == KEY


@pytest.mark.parametrize(
    ("answer", "key", "said"),
    [
        ((0, OFFER, ""), OSError("Connection refused"), "Cannot fetch the signing key"),
        ((0, OFFER, ""), b"<html>Please log in</html>", "a proxy or login page"),
        ((1, "", "Error: Failed to download metadata for repo 'socle-probe': x"), KEY, "it did not answer"),
        (
            (1, "", "Error: Failed to download metadata for repo 'socle-probe': repomd.xml GPG signature verification"),
            KEY,
            "the metadata of it is not signed by the key",
        ),
        ((0, OFFER.replace("178.04", "159.03"), ""), KEY, "offers 580.159.03-1.el9; set a version that is there"),
        ((0, "", ""), KEY, "offers no version of it"),
    ],
)
def test_a_source_that_cannot_be_used_changes_nothing_and_shows_no_password(
    tmp_path: Path, mirror: Mirror, answer: tuple[int, str, str], key: bytes | OSError, said: str
) -> None:
    def hand_over() -> bytes:
        if isinstance(key, OSError):
            raise key
        return key

    mirror.answer, mirror.key = answer, hand_over
    with pytest.raises(PackageError) as caught:
        bring(mirror, tmp_path)
    assert said in caught.value.message
    assert caught.value.message.endswith("The package sources are as they were.")
    assert "secret" not in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_an_older_file_of_the_same_source_goes(tmp_path: Path, mirror: Mirror) -> None:
    old = tmp_path / "etc/yum.repos.d/nvidia-docker.repo"
    old.parent.mkdir(parents=True)
    old.write_text("[nvidia-docker]\n")
    result = bring(
        mirror, tmp_path, DnfRepository("x", URI, f"{URI}k", replaces=("/etc/yum.repos.d/nvidia-docker.repo",))
    )
    assert result["removed"] == ["/etc/yum.repos.d/nvidia-docker.repo"]
    assert not old.exists()


def test_removal_takes_file_and_key(tmp_path: Path, mirror: Mirror) -> None:
    bring(mirror, tmp_path)
    sources = DnfSource(mirror.run, Files(), tmp_path, mirror.fetch)
    assert sources.absent(SOURCE)["changed"] is True
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert sources.absent(SOURCE)["changed"] is False
