# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One package source of DNF, tried apart from the host's own before it is written. Private to socle.inference."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._commands import Run
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, explaining
from ansible_collections.socle.inference.plugins.module_utils._errors import PackageError
from ansible_collections.socle.inference.plugins.module_utils._packages import dnf
from ansible_collections.socle.inference.plugins.module_utils._packages.dnf_exact import has_version
from ansible_collections.socle.inference.plugins.module_utils._packages.key_file import holds_key
from ansible_collections.socle.inference.plugins.module_utils._packages.source import (
    Fetch,
    PackageSource,
    check_addresses,
    download_key,
    fetch,
    take_away,
    without_password,
)

HEADER = "# Written by socle.inference; a run replaces it.\n"


@dataclass(frozen=True)
class DnfRepository(PackageSource):
    """A package source and its signing key."""

    signed: str = "packages"
    """What the key signs: "packages", or "metadata" with the checksums of packages in it."""

    @property
    def path(self) -> str:
        """The repository's file."""
        return f"/etc/yum.repos.d/{self.name}.repo"

    @property
    def key_path(self) -> str:
        """The key's file."""
        return f"/etc/pki/rpm-gpg/RPM-GPG-KEY-{self.name}"


def render(source: DnfRepository) -> str:
    """The text of the .repo file. A mirror that is away must fail a run instead of being left out in silence."""
    signatures = "gpgcheck=0\nrepo_gpgcheck=1" if source.signed == "metadata" else "gpgcheck=1"
    return (
        f"{HEADER}[{source.name}]\nname={source.name}\nbaseurl={source.uri}\nenabled=1\n{signatures}\n"
        f"gpgkey=file://{source.key_path}\nskip_if_unavailable=0\n"
    )


class DnfSource:
    """Makes a source present or absent on a host."""

    def __init__(self, run: Run, files: Files, root: Path = Path("/"), fetcher: Fetch = fetch) -> None:
        self.run, self.files, self.root, self.fetch = run, files, root, fetcher

    def _at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def present(self, source: DnfRepository, *, check: bool = False) -> dict[str, Any]:
        """Write the source where it is missing or different."""
        before = self.files.read(self._at(source.path))
        old = [file for file in source.replaces if self._at(file).exists()]
        text = render(source)
        result = {"path": source.path, "removed": old, "before": before or "", "after": text}
        if before == text and holds_key(self._at(source.key_path)) and not old:
            return {**result, "changed": False}
        key = download_key(source, self.fetch, armoured=True).decode()
        self._try(source, key)
        if not check:
            with explaining(f"write the package source {source.name}"):
                self.files.write(self._at(source.key_path), key)
                # It is the only file that DNF takes a password from; users without root then do without the source.
                secret = source.uri != without_password(source.uri)
                self.files.write(self._at(source.path), text, 0o600 if secret else 0o644)
                # Last, so that a disk that is full leaves the source that was there.
                for file in old:
                    self.files.remove(self._at(file))
        return {**result, "changed": True}

    def probe(self, source: DnfRepository) -> None:
        """Ask for key, index and versions as `present` would, and leave no trace. Raises PackageError."""
        self._try(source, download_key(source, self.fetch, armoured=True).decode())

    def is_outdated(self, source: DnfRepository) -> bool:
        """Whether the source is there, is ours, and names another address, user or password, or a key that is none."""
        text = self.files.read(self._at(source.path)) or ""
        if not text.startswith(HEADER):
            return False
        check_addresses(source)
        return f"\nbaseurl={source.uri}\n" not in text or not holds_key(self._at(source.key_path))

    def absent(self, source: DnfRepository, *, check: bool = False) -> dict[str, Any]:
        """Remove source and key."""
        return take_away(source, [source.path, source.key_path], self.files, self.root, check=check)

    def _try(self, source: DnfRepository, key: str) -> None:
        shown = without_password(source.uri)
        try:
            with tempfile.TemporaryDirectory(prefix="socle-dnf-") as folder:
                file = Path(folder) / "key.asc"
                file.write_text(key, encoding="utf-8")
                signed_by = str(file) if source.signed == "metadata" else None
                offers = dnf.query(self.run, source.uri, list(source.expect) or ["*"], signed_by)
        except PackageError as error:
            reason = error.message.partition(": ")[2].replace(f"repository {dnf.PROBE}", "it").rstrip(".")
            raise PackageError(
                f"Cannot read the package source {shown}: {reason} ({source.variable}). {source.spared}", url=shown
            ) from error
        for name, version in source.expect.items():
            mine = [package for package in offers if package.name == name]
            if not any(has_version(package, version) for package in mine):
                versions = ", ".join(dict.fromkeys(package.full for package in reversed(mine))) or "no version of it"
                raise PackageError(
                    f"Cannot install {f'{name} {version}'.strip()}: {shown} offers {versions}; set a version that is"
                    f" there, or complete the mirror. {source.spared}",
                    url=shown,
                )
