# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a playbook of a test's own folder, and reads what came of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def play(
    folder: Path, *arguments: str, timeout_s: float = 300
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """How it ended, and the tasks of its first play: results by host in "hosts"."""
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), *arguments],
        cwd=folder,
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
            "ANSIBLE_NOCOLOR": "1",
            # As ansible.cfg of the project has it.
            "ANSIBLE_PIPELINING": "1",
        },
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    # What tasks print comes first, and may have braces as well.
    start = re.search(r"(?m)^\{$", done.stdout)
    assert start, done.stderr
    return done, json.loads(done.stdout[start.start() :])["plays"][0]["tasks"]
