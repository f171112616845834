# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An address that is none reaches neither a package manager nor a file of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._address import WEB, address_fault
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import PackageError
from ansible_collections.socle.inference.plugins.module_utils._packages.apt_source import AptRepository, AptSource
from ansible_collections.socle.inference.plugins.module_utils._packages.dnf_source import DnfRepository, DnfSource
from ansible_collections.socle.inference.plugins.module_utils._packages.source import put

from tests.support.commands import Commands

GOOD = "https://mirror.example.org/repos"
KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQ==\n-----END PGP PUBLIC KEY BLOCK-----\n"


def nothing(_asked: object) -> bytes:
    raise AssertionError("asked for a key")


def no_dnf(_argv: Sequence[str]) -> tuple[int, str, str]:
    raise AssertionError("asked DNF")


@pytest.mark.parametrize("manager", ["apt", "dnf"])
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("uri", "key_url"),
    [
        ("https://u:hunter2@mirror.example.org/\nTrusted: yes", KEY),
        ("https://mirror.example.org:99999999/", KEY),
        ("https://u:hunter2@[::1/repos", KEY),
        ("mirror.example.org/repos", KEY),
        ("https:///repos", KEY),
        ("https://mirror.example.org/`id`", KEY),
        (GOOD, "https://u:hunter2@[::1/key"),
        (GOOD, "https://mirror.example.org/key asc"),
    ],
)
def test_an_address_that_is_none_is_one_sentence_that_names_the_variable(
    commands: Commands, tmp_path: Path, uri: str, key_url: str, check: bool, manager: str
) -> None:
    with pytest.raises(
        PackageError, match=r"address of package source vendor: it has .*; correct vendor_url\."
    ) as caught:
        if manager == "apt":
            deb = AptRepository("vendor", uri, key_url, variable="vendor_url")
            AptSource(commands, Files(), tmp_path, nothing).present(deb, check=check)
        else:
            rpm = DnfRepository("vendor", uri, key_url, variable="vendor_url")
            DnfSource(no_dnf, Files(), tmp_path, nothing).present(rpm, check=check)
    assert "hunter2" not in str(caught.value) and "\n" not in str(caught.value)
    assert not commands.calls and not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["present", "probe"])
@pytest.mark.parametrize(
    "layout",
    [
        {"suites": "bookworm\nTrusted: yes"},
        {"suites": "bookworm trixie"},
        {"suites": ""},
        {"suites": "book\tworm"},
        {"suites": "bookworm\u2028Trusted:yes"},
        {"components": "main\n Trusted: yes"},
        {"components": "main  contrib"},
        {"components": " main"},
    ],
)
def test_suites_and_components_add_no_field_to_the_source(
    commands: Commands, tmp_path: Path, layout: dict[str, str], verb: str
) -> None:
    source = AptRepository("vendor", GOOD, KEY, **layout)
    with pytest.raises(
        PackageError, match=r"Cannot use the (suites|components) '.*of package source vendor: "
    ) as caught:
        getattr(AptSource(commands, Files(), tmp_path, nothing), verb)(source)
    assert "\n" not in str(caught.value)
    assert not commands.calls and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "address",
    [
        GOOD,
        "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)",
        "https://mirror.example.org/${releasever_major}/$basearch/",
        "https://user:p%40ss'(1)@[2001:db8::1]:8443/repos",
        "mirror+file:/etc/apt/mirrors.txt",
        "file:///srv/mirror",
        "HTTP://my_mirror:80",
    ],
)
def test_addresses_that_package_managers_take_are_none_of_them(address: str) -> None:
    assert address_fault(address) == ""


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("https://a\u2028b", "blank or a control"),
        ("https://a\u202eb", "blank or a control"),
        ("ftp://a", "another scheme than http, https"),
        ("https://-a", "broken host"),
        ("https://[::zz]", "broken host"),
        ("https://[v1.a]", "broken host"),
        ("https://a:\u0663", "broken host, IPv6 address or port"),
        ("https://a:0", "port 0"),
        ("https://u:pw@", "no host"),
    ],
)
def test_what_is_wrong_with_an_address_is_told_without_the_address(address: str, words: str) -> None:
    assert words in address_fault(address, WEB)


def test_the_umask_does_not_keep_apts_own_user_from_a_trial(commands: Commands, tmp_path: Path) -> None:
    modes = set()

    def update(argv: list[str]) -> tuple[int, str, str]:
        lists = Path(next(word.partition("Dir::State::lists=")[2] for word in argv if "Dir::State::lists=" in word))
        modes.update(path.stat().st_mode & 0o055 for path in (lists.parent, lists, lists / "partial"))
        modes.update(path.stat().st_mode & 0o044 | 0o011 for path in lists.parent.glob("key.*"))
        return 1, "", "E: enough"

    commands.do("update", then=update)
    before = os.umask(0o077)
    try:
        with pytest.raises(PackageError, match="enough"):
            AptSource(commands, Files(), tmp_path, nothing).present(AptRepository("vendor", GOOD, KEY))
    finally:
        os.umask(before)
    assert modes == {0o055}


def test_the_umask_does_not_keep_apt_from_its_keys(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        put(tmp_path / "etc/apt/keyrings/vendor.asc", KEY.encode())
    finally:
        os.umask(before)
    folders = [tmp_path / "etc", tmp_path / "etc/apt", tmp_path / "etc/apt/keyrings"]
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o755}
