# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What plans ask about a package source before anything changes, and what leaves no trace on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import PackageError
from ansible_collections.socle.inference.plugins.module_utils._packages.ahead import Ahead
from ansible_collections.socle.inference.plugins.module_utils._packages.apt_source import AptRepository, AptSource
from ansible_collections.socle.inference.plugins.module_utils._packages.dnf_source import DnfRepository, DnfSource
from ansible_collections.socle.inference.plugins.module_utils._toolkit.toolkit_plan import REPOSITORY

from tests.support.commands import Commands

KEY = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQ==\n-----END PGP PUBLIC KEY BLOCK-----\n"
BASE = "https://mirror.example/toolkit"
VARIABLE = "gpu_container_toolkit_repository_url"


def answer(_url: str) -> bytes:
    return KEY


def silence(_url: str) -> bytes:
    raise OSError("timed out")


def ahead(family: str, root: Path, base: str = BASE, fetcher: Callable[[str], bytes] = silence) -> Ahead:
    return Ahead(family, REPOSITORY[family], base, VARIABLE, root, fetcher)


def write(family: str, base: str, commands: Commands, root: Path) -> None:
    """The source as a run before had written it."""
    given: dict[str, Any] = {"name": REPOSITORY[family]["name"], "key_url": f"{base}/gpgkey"}
    given["uri"] = f"{base}/{REPOSITORY[family]['folder']}"
    if family == "debian":
        AptSource(commands, Files(), root, answer).present(AptRepository(**given))
    else:
        DnfSource(lambda _argv: (0, "", ""), Files(), root, answer).present(DnfRepository(**given, signed="metadata"))


@pytest.mark.parametrize("family", ["debian", "redhat"])
@pytest.mark.parametrize(
    ("written", "asked", "outdated"),
    [
        (BASE, BASE, False),
        (BASE, BASE + "/", False),
        (BASE, "https://other.example/toolkit", True),
        ("https://reader:old@mirror.example/toolkit", "https://reader:new@mirror.example/toolkit", True),
        ("https://reader:old@mirror.example/toolkit", BASE, True),
        ("https://reader:old@mirror.example/toolkit", "https://reader:old@mirror.example/toolkit", False),
    ],
)
def test_a_new_address_is_seen_without_a_request(
    family: str, written: str, asked: str, outdated: bool, commands: Commands, tmp_path: Path
) -> None:
    write(family, written, commands, tmp_path)
    assert ahead(family, tmp_path, asked).is_outdated() is outdated


@pytest.mark.parametrize(
    ("family", "path"),
    [
        ("debian", "etc/apt/sources.list.d/nvidia-container-toolkit.sources"),
        ("redhat", "etc/yum.repos.d/nvidia-container-toolkit.repo"),
    ],
)
def test_a_file_of_somebody_else_or_none_has_no_new_address(family: str, path: str, tmp_path: Path) -> None:
    assert not ahead(family, tmp_path).is_outdated()
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text("Types: deb\nURIs: https://other.example/\n[x]\nbaseurl=https://other.example/\n")
    assert not ahead(family, tmp_path).is_outdated()


@pytest.mark.parametrize("family", ["debian", "redhat"])
@pytest.mark.parametrize("address", ["http://[::1/x", "mirror.example/x", "http://u:p@mirror.example:port/x"])
def test_an_address_that_is_none_is_one_sentence(family: str, address: str, commands: Commands, tmp_path: Path) -> None:
    write(family, BASE, commands, tmp_path)
    with pytest.raises(PackageError, match=rf"{VARIABLE}.*Nothing was changed\.$"):
        ahead(family, tmp_path, address).is_outdated()


@pytest.mark.parametrize("family", ["debian", "redhat"])
def test_a_key_that_does_not_come_is_told_before_anything_changed(family: str, tmp_path: Path) -> None:
    with pytest.raises(PackageError) as caught:
        ahead(family, tmp_path).probe({})
    assert f"{BASE}/gpgkey: timed out" in caught.value.message and VARIABLE in caught.value.message
    assert caught.value.message.endswith(" Nothing was changed.") and list(tmp_path.iterdir()) == []


def test_an_index_that_does_not_come_is_told_before_anything_changed(commands: Commands, tmp_path: Path) -> None:
    commands.on("update", rc=100, err="E: Failed to fetch https://mirror.example/InRelease  404 Not Found\n")
    source = AptRepository("x", f"{BASE}/deb", f"{BASE}/gpgkey", variable=VARIABLE, spared="Nothing was changed.")
    with pytest.raises(PackageError, match=rf"404 Not Found.*{VARIABLE}.*Nothing was changed\.$"):
        AptSource(commands, Files(), tmp_path, answer).probe(source)
    lacking = replace(source, expect={"nvidia-container-toolkit": "1.20.0-1"})
    commands.on("update")
    with pytest.raises(PackageError, match=r"offers no version of it.*Nothing was changed\.$"):
        AptSource(commands, Files(), tmp_path, answer).probe(lacking)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damaged", [b"", b"<html>login</html>", b"\xff\xfe", None])
@pytest.mark.parametrize(
    ("family", "path"),
    [
        ("debian", "etc/apt/keyrings/nvidia-container-toolkit.asc"),
        ("redhat", "etc/pki/rpm-gpg/RPM-GPG-KEY-nvidia-container-toolkit"),
    ],
)
def test_a_signing_key_that_is_none_is_seen_without_a_request_and_fetched_again(
    family: str, path: str, damaged: bytes | None, commands: Commands, tmp_path: Path
) -> None:
    write(family, BASE, commands, tmp_path)
    key = tmp_path / path
    assert key.read_bytes() == KEY and not ahead(family, tmp_path).is_outdated()
    key.unlink() if damaged is None else key.write_bytes(damaged)
    assert ahead(family, tmp_path).is_outdated()
    write(family, BASE, commands, tmp_path)
    assert key.read_bytes() == KEY and not ahead(family, tmp_path).is_outdated()
