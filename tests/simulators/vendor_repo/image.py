# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container image of a static busybox, as an archive that Podman and Docker load without a registry."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

NAME = "localhost/simulator/tools:1"
APPLETS = ("sh", "cat", "ls", "sed", "sleep", "tr", "env", "echo", "printf", "stat", "grep", "head", "tail", "true")


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))


def build(busybox: Path, target: Path) -> None:
    """Write the archive of the image NAME to *target*, in the format of `docker save`."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for folder in ("bin", "usr", "usr/bin", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        _add(archive, "bin/busybox", busybox.read_bytes(), 0o755)
        for name in APPLETS:
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(entry)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/bin:/bin"], "Cmd": ["sh"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    text = json.dumps(config).encode()
    name = hashlib.sha256(text).hexdigest()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w") as archive:
        _add(archive, f"{name}.json", text)
        _add(archive, "layer.tar", layer.getvalue())
        manifest = [{"Config": f"{name}.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]
        _add(archive, "manifest.json", json.dumps(manifest).encode())
