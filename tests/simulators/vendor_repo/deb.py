# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes Debian binary packages byte for byte the same each time, without dpkg-deb."""

from __future__ import annotations

import dataclasses
import gzip
import io
import tarfile
from collections.abc import Mapping

SCRIPTS = ("preinst", "postinst", "prerm", "postrm")


@dataclasses.dataclass(frozen=True)
class Link:
    """A symbolic link among the files of a package."""

    target: str


@dataclasses.dataclass(frozen=True)
class Package:
    """One binary package. *files* maps absolute paths to text, bytes or a Link; paths in *programs* are executable."""

    name: str
    version: str
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    files: Mapping[str, str | bytes | Link] = dataclasses.field(default_factory=dict)
    programs: tuple[str, ...] = ()
    conffiles: tuple[str, ...] = ()
    scripts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    architecture: str = "amd64"

    @property
    def file_name(self) -> str:
        return f"{self.name}_{self.version}_{self.architecture}.deb"

    def control(self) -> dict[str, str]:
        """The control fields, in dpkg's usual order."""
        return {
            "Package": self.name,
            "Version": self.version,
            "Architecture": self.architecture,
            "Maintainer": "socle simulator <none@example.invalid>",
            "Section": "non-free/kernel",
            "Priority": "optional",
            **self.fields,
            "Description": f"simulated {self.name}\n A double for tests. It drives no hardware.",
        }


def paragraph(fields: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\n" for name, value in fields.items())


def _tar(entries: Mapping[str, str | bytes | Link], programs: tuple[str, ...]) -> bytes:
    buffer = io.BytesIO()
    folders: set[str] = set()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, content in sorted(entries.items()):
            name = "./" + path.lstrip("/")
            parts = name.split("/")[:-1]
            for depth in range(1, len(parts) + 1):
                folder = "/".join(parts[:depth]) + "/"
                if folder not in folders:
                    folders.add(folder)
                    entry = tarfile.TarInfo(folder)
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                    archive.addfile(entry)
            entry = tarfile.TarInfo(name)
            if isinstance(content, Link):
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, content.target, 0o777
                archive.addfile(entry)
                continue
            data = content.encode() if isinstance(content, str) else content
            entry.size, entry.mode = len(data), 0o755 if path in programs else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), mtime=0)


def _member(name: str, data: bytes) -> bytes:
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
    return header + data + (b"\n" if len(data) % 2 else b"")


def build(package: Package) -> bytes:
    """The .deb file: an ar archive of a version, the control files and the data."""
    control: dict[str, str | bytes | Link] = {"control": paragraph(package.control())}
    if package.conffiles:
        control["conffiles"] = "".join(f"{path}\n" for path in package.conffiles)
    for name, script in package.scripts.items():
        if name not in SCRIPTS:
            raise ValueError(f"{package.name} has a script {name!r}, which dpkg does not know")
        control[name] = f"#!/bin/sh\nset -e\n{script}"
    return (
        b"!<arch>\n"
        + _member("debian-binary", b"2.0\n")
        + _member("control.tar.gz", _tar(control, SCRIPTS))
        + _member("data.tar.gz", _tar(package.files, package.programs))
    )
