# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""tools/bootstrap.sh with a Python that makes an environment of stubs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# Inside of an environment, "import" fails where the file broken is; outside, "-m venv FOLDER" makes a stub.
PYTHON = """#!/bin/sh
here=$(dirname "$0")
case "$1 $2" in
    --version*) echo "Python 3.11.2" ;;
    "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo made >>"$LOG" ;;
    "-m pip") cp "$0" "$here/ansible-playbook" && rm -f "$here/broken" ;;
    "-c import ansible"*) [ ! -e "$here/broken" ] ;;
esac
"""

Bootstrap = Callable[[], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def bootstrap(tmp_path: Path) -> Bootstrap:
    """Runs the script in a folder that has what it reads; each set-up is a line of the file log."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "constraints.txt").touch()
    (tmp_path / "log").touch()
    for name in ("python", "ssh"):
        (tmp_path / name).write_text(PYTHON)
        (tmp_path / name).chmod(0o755)

    def run() -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(tmp_path / "log")}
        command = ["sh", str(ROOT / "tools/bootstrap.sh"), str(tmp_path / "python"), "env", "constraints.txt"]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
        )

    return run


def set_ups(folder: Path) -> int:
    return (folder / "log").read_text().count("made")


def test_a_folder_that_is_no_environment_is_refused_and_kept(tmp_path: Path, bootstrap: Bootstrap) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env/thesis.txt").write_text("mine")
    done = bootstrap()
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "is no virtual environment" in done.stderr
    assert (tmp_path / "env/thesis.txt").read_text() == "mine" and set_ups(tmp_path) == 0
    assert not (tmp_path / "env.lock").exists()


@pytest.mark.parametrize("before", ["absent", "empty", "interrupted"])
def test_an_environment_is_made_once(tmp_path: Path, bootstrap: Bootstrap, before: str) -> None:
    if before != "absent":
        (tmp_path / "env").mkdir()
    if before == "interrupted":
        (tmp_path / "env/pyvenv.cfg").touch()
        (tmp_path / "env/lib").mkdir()
        (tmp_path / "env/lib/left").touch()
    for _time in range(2):
        done = bootstrap()
        assert done.returncode == 0, done.stderr
    assert set_ups(tmp_path) == 1 and not (tmp_path / "env/lib").exists()


def test_a_broken_environment_is_made_anew(tmp_path: Path, bootstrap: Bootstrap) -> None:
    bootstrap()
    (tmp_path / "env/bin/ansible-playbook").unlink()
    assert bootstrap().returncode == 0 and set_ups(tmp_path) == 2
    (tmp_path / "env/bin/broken").touch()
    assert bootstrap().returncode == 0 and set_ups(tmp_path) == 3
    assert bootstrap().returncode == 0 and set_ups(tmp_path) == 3
