# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The image of the GPU check: the host's own shell and C library. Private to socle.inference.

No registry is needed for it. nvidia-smi and the driver's libraries come from the CDI spec.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Runner
from ansible_collections.socle.inference.plugins.module_utils._errors import ToolkitError

REPOSITORY = "localhost/socle/gpu-check"

SHELL = "/bin/sh"

BESIDE_C_LIBRARY = ("libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1")
"""What nvidia-smi and the driver's libraries are linked with besides the C library, from the same folder."""

TOP_LINKS = ("bin", "sbin", "lib", "lib64")
"""Links into /usr on hosts that merged the two."""

FOLDERS = ("dev", "etc", "proc", "run", "sys", "tmp", "usr/bin", "usr/lib", "usr/sbin", "var/run")


def linked(text: str) -> list[str]:
    """Files that ``ldd`` names, the loader too."""
    return re.findall(r"(?:=> |^\s*)(/\S+) \(0x", text, re.MULTILINE)


def members(run: Runner, root: Path = Path("/")) -> dict[str, bytes | str]:
    """Path in the image -> content, or the target of a link; paths have no leading slash."""
    done = run(["ldd", SHELL])
    files = linked(done.stdout)
    libraries = [file for file in files if Path(file).name.startswith("libc.so")]
    if done.returncode != 0 or not libraries:
        raise ToolkitError(
            f"Cannot make the image of the GPU check: 'ldd {SHELL}' names no C library; set gpu_container_toolkit_check"
            " to never on this host.",
            stdout=done.stdout,
        )
    beside = [str(Path(libraries[0]).with_name(name)) for name in BESIDE_C_LIBRARY]
    found: dict[str, bytes | str] = {}
    for name in TOP_LINKS:
        path = root / name
        if path.is_symlink():
            found[name] = str(path.readlink())
    for file in (SHELL, *files, *beside):
        source = root / file.lstrip("/")
        if source.exists():
            found[_inside(file, found)] = source.read_bytes()
    return found


def _inside(file: str, links: Mapping[str, bytes | str]) -> str:
    """Where a file is put, so that no entry lies behind a link: /lib64/x -> usr/lib64/x on a merged host."""
    first, _slash, rest = file.lstrip("/").partition("/")
    target = links.get(first)
    return f"{target}/{rest}" if isinstance(target, str) else file.lstrip("/")


def pack(content: Mapping[str, bytes | str]) -> bytes:
    """The image's layer; the same content gives the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in sorted({*FOLDERS, *_parents(content)}):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name, value in sorted(content.items()):
            entry = tarfile.TarInfo(name)
            if isinstance(value, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, value
                archive.addfile(entry)
            else:
                entry.size, entry.mode = len(value), 0o755
                archive.addfile(entry, io.BytesIO(value))
    return buffer.getvalue()


def _parents(names: Iterable[str]) -> set[str]:
    return {str(parent) for name in names for parent in Path(name).parents if str(parent) != "."}


def reference(layer: bytes) -> str:
    """The image's name: another C library gives another one."""
    return f"{REPOSITORY}:{hashlib.sha256(layer).hexdigest()[:12]}"
