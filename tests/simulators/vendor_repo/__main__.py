# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds the repositories into a folder that any web server can serve: python3 -m vendor_repo --out DIR --url URL."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import catalogue, image, repository

BUSYBOX = Path("/bin/busybox")
"""Of the package busybox-static; without it there is no image for containers."""
DEBIAN = {"debian12": "bookworm", "debian13": "trixie"}


def build(out: Path, url: str, keys: Path) -> None:
    """Everything below *out*, as clients reach it at *url*; the signing key is kept in *keys*."""
    with repository.Signer(keys) as signer:
        binary, armoured = signer.public_key(armour=False), signer.public_key(armour=True)
        for distribution, release in DEBIAN.items():
            folder = out / "compute/cuda/repos" / distribution / "x86_64"
            packages = list(catalogue.cuda_repository(url, distribution, binary))
            repository.write(folder, packages, "NVIDIA", "NVIDIA CUDA", signer)
            (folder / "cuda-archive-keyring.gpg").write_bytes(binary)
            for name in ("3bf863cc.pub", "8793F200.pub"):
                (folder / name).write_bytes(armoured)
            for name, kernel in zip((release, f"{release}-updates"), catalogue.KERNELS[release], strict=True):
                folder = out / "kernels" / name
                repository.write(folder, catalogue.kernel_repository([kernel]), "Debian", "simulated kernels", signer)
        (out / "kernels/key.gpg").write_bytes(binary)
        toolkit = out / "libnvidia-container"
        folder = toolkit / "stable/deb/amd64"
        origin = "https://github.com/NVIDIA/libnvidia-container"
        repository.write(folder, catalogue.toolkit_repository(), origin, "NVIDIA Container Toolkit", signer)
        (toolkit / "gpgkey").write_bytes(armoured)
        source = f"deb {url}/libnvidia-container/stable/deb/$(ARCH) /\n"
        (toolkit / "stable/deb/nvidia-container-toolkit.list").write_text(source)
    if BUSYBOX.exists():
        image.build(BUSYBOX, out / "images/tools.tar")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to serve")
    parser.add_argument("--url", required=True, help="how clients reach that folder")
    parser.add_argument("--keys", type=Path, required=True, help="GnuPG home of the signing key")
    arguments = parser.parse_args()
    build(arguments.out, arguments.url, arguments.keys)


if __name__ == "__main__":
    main()
