# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Downloads the pinned wheels and packs them, with the requirements, into one archive.

Runs on the controller as: fetch_wheels.py REQUIREMENTS FOLDER
The archive appears whole or not at all, also when two runs meet.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path


def main(requirements: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as part:
        wheels = Path(part, "wheels")
        wheels.mkdir()
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        # The oldest Python that hosts may have: what it can install, every newer one can.
        command += ["--only-binary", ":all:", "--python-version", "3.9", "--require-hashes"]
        command += ["--dest", str(wheels), "--requirement", str(requirements)]
        if subprocess.run(command, check=False).returncode:
            sys.exit(
                f"The wheels of the probe could not be downloaded on the controller ({' '.join(command)}). "
                f"Check pip's index and proxy there, or put the archive into {folder} from another machine."
            )
        shutil.copy(requirements, wheels / "requirements.txt")
        archive = Path(part, "wheels.tar")
        with tarfile.open(archive, "w") as tar:
            tar.add(wheels, "wheels")
        archive.replace(folder / "wheels.tar")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
