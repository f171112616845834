# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated packages are packages: dpkg and apt read them as they would NVIDIA's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.simulators.vendor_repo import catalogue, deb, repository
from tests.simulators.vendor_repo.__main__ import build

needs_dpkg = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="dpkg-deb is not installed on this machine")
needs_gpg = pytest.mark.skipif(not shutil.which("gpgv"), reason="GnuPG is not installed on this machine")


def cuda() -> list[deb.Package]:
    return list(catalogue.cuda_repository("http://repo", "debian13", b"key"))


@needs_dpkg
def test_dpkg_reads_a_package(tmp_path: Path) -> None:
    package = deb.Package(
        "nvidia-x",
        "1.2-1",
        {"Depends": "nvidia-y (= 1.2-1)"},
        {"/etc/x.conf": "a\n", "/usr/bin/x": "#!/bin/sh\n", "/usr/lib/libx.so.1": deb.Link("libx.so.1.2")},
        programs=("/usr/bin/x",),
        conffiles=("/etc/x.conf",),
        scripts={"postinst": "true\n"},
    )
    file = tmp_path / package.file_name
    file.write_bytes(deb.build(package))

    def ask(*words: str) -> str:
        return subprocess.run(["dpkg-deb", *words], check=True, capture_output=True, text=True).stdout

    assert ask("--field", str(file), "Depends") == "nvidia-y (= 1.2-1)\n"
    rows = [line.split() for line in ask("--contents", str(file)).splitlines()]
    listed = {row[5]: row[0] for row in rows}
    assert listed["./usr/bin/x"] == "-rwxr-xr-x"
    assert listed["./etc/x.conf"] == "-rw-r--r--"
    assert listed["./usr/lib/libx.so.1"] == "lrwxrwxrwx"
    assert ask("--info", str(file), "conffiles") == "/etc/x.conf\n"
    assert ask("--info", str(file), "postinst").startswith("#!/bin/sh\nset -e\n")


def test_a_package_is_the_same_each_time() -> None:
    package = cuda()[0]
    assert deb.build(package) == deb.build(package)


def test_a_script_that_dpkg_would_not_run_is_refused() -> None:
    with pytest.raises(ValueError, match="'postinstall'"):
        deb.build(deb.Package("x", "1", scripts={"postinstall": "true\n"}))


def test_names_change_with_the_branch() -> None:
    names = {(package.name, package.version) for package in cuda()}
    assert ("nvidia-fabricmanager", "580.126.09-1") in names
    assert ("nvidia-fabricmanager-570", "570.211.01-1") in names
    assert ("nvidia-fabricmanager", "570.211.01-1") not in names
    # A branch is pinned by the package of its newest version.
    assert [version for name, version in names if name == "nvidia-driver-pinning-580"] == ["580.178.04-1"]


def test_every_exact_dependency_can_be_had() -> None:
    found = cuda() + list(catalogue.toolkit_repository())
    there = {(package.name, package.version) for package in found}
    for package in found:
        for depend in package.fields.get("Depends", "").split(", "):
            name, _space, relation = depend.partition(" ")
            if relation.startswith("(= "):
                assert (name, relation[3:-1]) in there, f"{package.name} needs {depend}"


def test_no_file_keeps_a_placeholder_and_no_path_is_in_two_packages_of_a_version() -> None:
    owners: dict[tuple[str, str], str] = {}
    for package in cuda() + list(catalogue.toolkit_repository()):
        for path, content in package.files.items():
            if isinstance(content, str):
                assert not {"@VERSION@", "@CUDA@", "@PIN@", "@COMMAND@", "@AFTER@"} & set(content.split()), path
            other = owners.setdefault((path, package.version), package.name)
            alternatives = {other, package.name} == {"nvidia-kernel-dkms", "nvidia-kernel-open-dkms"}
            assert other == package.name or alternatives, path


@needs_gpg
def test_a_repository_is_signed_by_its_key(tmp_path: Path) -> None:
    build(tmp_path / "www", "http://repo", tmp_path / "keys")
    folder = tmp_path / "www/compute/cuda/repos/debian13/x86_64"
    gpgv = ["gpgv", "--keyring", str(folder / "cuda-archive-keyring.gpg")]

    def verifies(*files: str) -> bool:
        done = subprocess.run([*gpgv, *(str(folder / name) for name in files)], capture_output=True, check=False)
        return done.returncode == 0

    assert verifies("InRelease")
    assert verifies("Release.gpg", "Release")
    (folder / "Release").write_text("Origin: somebody else\n")
    assert not verifies("Release.gpg", "Release")
    index = (folder / "Packages").read_text()
    for line in index.splitlines():
        if line.startswith("Filename: "):
            assert (folder / line.split()[1]).is_file()
    assert (tmp_path / "www/libnvidia-container/stable/deb/amd64/InRelease").is_file()
    assert b"BEGIN PGP PUBLIC KEY" in (tmp_path / "www/libnvidia-container/gpgkey").read_bytes()


@needs_gpg
def test_the_key_is_made_once(tmp_path: Path) -> None:
    with repository.Signer(tmp_path / "keys") as signer:
        first = signer.public_key(armour=False)
    with repository.Signer(tmp_path / "keys") as signer:
        assert signer.public_key(armour=False) == first
