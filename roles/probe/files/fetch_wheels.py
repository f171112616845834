# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Downloads the pinned wheels and packs them, with the requirements, into one archive.

Runs on the controller as: fetch_wheels.py REQUIREMENTS FOLDER
The archive appears whole or not at all, also when two runs meet. One that is there is opened, and fetched again when
it is damaged. Prints "fetched" or "present".
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path


def pins(text: str) -> dict[str, set[str]]:
    """{package: the hashes it may have} of a requirements file."""
    found: dict[str, set[str]] = {}
    name = None
    for line in text.splitlines():
        start = re.match(r"([A-Za-z0-9._-]+)==", line)
        if start:
            name = start.group(1)
            found[name] = set()
        if name:
            found[name].update(re.findall(r"--hash=sha256:([0-9a-f]{64})", line))
    return found


def is_whole(archive: Path, requirements: Path) -> bool:
    """Whether *archive* has these requirements and, for each of them, a wheel with a hash that is pinned."""
    hashes = set()
    expected = requirements.read_bytes()
    same = False
    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                stream = tar.extractfile(member) if member.isreg() else None
                if stream is None:
                    continue
                content = stream.read()
                if member.name == "wheels/requirements.txt":
                    same = content == expected
                else:
                    hashes.add(hashlib.sha256(content).hexdigest())
    except (FileNotFoundError, tarfile.TarError, EOFError):
        return False
    return same and all(allowed & hashes for allowed in pins(expected.decode("utf-8")).values())


def sync(path: Path) -> None:
    """Puts what is written to a file or folder onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fetch(requirements: Path, folder: Path) -> None:
    """Makes the archive in *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as part:
        wheels = Path(part, "wheels")
        wheels.mkdir()
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        # The oldest Python that hosts may have: what it can install, every newer one can.
        command += ["--only-binary", ":all:", "--python-version", "3.9", "--require-hashes"]
        command += ["--dest", str(wheels), "--requirement", str(requirements)]
        # What pip says goes beside the one word that this prints.
        if subprocess.run(command, check=False, stdout=sys.stderr).returncode:
            sys.exit(
                f"The wheels of the probe could not be downloaded on the controller ({' '.join(command)}). "
                f"Check pip's index and proxy there, or put the archive into {folder} from another machine."
            )
        shutil.copy(requirements, wheels / "requirements.txt")
        archive = Path(part, "wheels.tar")
        with tarfile.open(archive, "w") as tar:
            tar.add(wheels, "wheels")
        sync(archive)
        archive.replace(folder / "wheels.tar")
        sync(folder)


def main(requirements: Path, folder: Path) -> None:
    try:
        if is_whole(folder / "wheels.tar", requirements):
            print("present")
            return
        fetch(requirements, folder)
    except OSError as error:
        sys.exit(
            f"The wheels of the probe could not be kept in {folder} on the controller ({error}); "
            f"make that folder writable, or set probe_wheel_cache to another one."
        )
    print("fetched")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
