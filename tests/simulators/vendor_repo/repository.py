# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes signed flat apt repositories, as NVIDIA's are: indices and packages in one folder."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
from collections.abc import Iterable
from pathlib import Path

from . import deb

RELEASE_DATE = "Mon, 30 Nov 2026 00:00:00 UTC"
KEY_NAME = "socle vendor simulator <none@example.invalid>"


class Signer:
    """A key of its own in *home*, made once with GnuPG. As a context, it leaves no agent of GnuPG behind."""

    def __init__(self, home: Path) -> None:
        self.home = home
        if not (home / "pubring.kbx").exists():
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._gpg("--passphrase", "", "--quick-generate-key", KEY_NAME, "rsa3072", "sign", "never")

    def __enter__(self) -> Signer:
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["gpgconf", "--homedir", str(self.home), "--kill", "all"], check=False)

    def _gpg(self, *words: str) -> bytes:
        command = ["gpg", "--homedir", str(self.home), "--batch", "--yes", "--quiet", *words]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout

    def public_key(self, armour: bool) -> bytes:
        return self._gpg(*(["--armor"] if armour else []), "--export", KEY_NAME)

    def sign(self, folder: Path) -> None:
        """InRelease and Release.gpg beside Release."""
        release = str(folder / "Release")
        self._gpg("--clearsign", "--output", str(folder / "InRelease"), release)
        self._gpg("--armor", "--detach-sign", "--output", str(folder / "Release.gpg"), release)


def write(folder: Path, packages: Iterable[deb.Package], origin: str, label: str, signer: Signer) -> None:
    """Packages, their index and a signed Release in *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for package in packages:
        data = deb.build(package)
        (folder / package.file_name).write_bytes(data)
        where = {
            "Filename": f"./{package.file_name}",
            "Size": str(len(data)),
            "SHA256": hashlib.sha256(data).hexdigest(),
        }
        control = package.control()
        description = control.pop("Description")
        entries.append(deb.paragraph({**control, **where, "Description": description}))
    index = "\n".join(entries).encode()
    indices = {"Packages": index, "Packages.gz": gzip.compress(index, mtime=0)}
    for name, data in indices.items():
        (folder / name).write_bytes(data)
    sums = "".join(f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}\n" for name, data in indices.items())
    fields = {"Origin": origin, "Label": label, "Date": RELEASE_DATE, "Architectures": "amd64"}
    (folder / "Release").write_text(deb.paragraph(fields) + f"SHA256:\n{sums}")
    signer.sign(folder)
