# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes an empty virtual environment of a folder that is absent, empty, or an environment already.

Runs on the host as: python -c THIS FOLDER
What an interrupted run left goes too. Unlike with "venv --clear", pyvenv.cfg, by which the folder is known as an
environment, is there all the time.
"""

import os
import shutil
import sys
from pathlib import Path

folder = Path(sys.argv[1])
mark = folder / "pyvenv.cfg"
if not mark.exists() and any(folder.iterdir()):
    sys.exit(f"{folder} is not empty and is no virtual environment (it has no pyvenv.cfg).")
mark.touch()
for each in folder.iterdir():
    if each == mark:
        continue
    if each.is_dir() and not each.is_symlink():
        shutil.rmtree(each)
    else:
        each.unlink()
os.execv(sys.executable, [sys.executable, "-m", "venv", str(folder)])
