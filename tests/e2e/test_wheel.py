# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wheel, as somebody without a clone installs it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.support import lab


def test_the_wheel_holds_the_collection_and_the_command(tmp_path: Path) -> None:
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(tmp_path),
        str(lab.PROJECT),
    ]
    subprocess.run(build, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        wheel.extractall(tmp_path / "site")
    inside = "ansible_collections/socle/inference"
    for name in ("plugins/modules/vllm_plan.py", "playbooks/site.yml", "profiles/engine.yml"):
        assert f"{inside}/{name}" in names
    assert not [
        name for name in names if name.startswith((f"{inside}/tests", f"{inside}/socle", f"{inside}/inventories"))
    ]
    # The command runs from the wheel alone, and finds the playbooks that came with it.
    (tmp_path / "site" / "ansible.cfg").touch()
    done = subprocess.run(
        [sys.executable, "-m", "socle.cli", "plan", "--list-tasks", "-i", "localhost,"],
        cwd=tmp_path / "site",
        env={name: value for name, value in lab.environment().items() if name != "ANSIBLE_CONFIG"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Plan every instance" in done.stdout
