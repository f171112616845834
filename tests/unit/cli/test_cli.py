# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from socle import cli

ROOT = Path(__file__).parents[3]


def socle(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    environment["ANSIBLE_COLLECTIONS_PATH"] = str(ROOT / "collections")
    command = [sys.executable, "-m", "socle.cli", *arguments]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_version_is_that_of_the_collection() -> None:
    done = socle("--version")
    match = re.search(r"(?m)^version: (\S+)$", (ROOT / "galaxy.yml").read_text())
    assert match and (done.returncode, done.stdout, done.stderr) == (0, f"socle {match.group(1)}\n", "")


@pytest.mark.parametrize("verb", cli.VERBS)
def test_a_verb_is_the_playbook_of_that_name(verb: str) -> None:
    options = ["-i", "inventories/site", "--limit", "gpu1", "-e", "a=b c", "--check", "--step"]
    assert cli.playbook_arguments(verb, options) == [f"socle.inference.{verb}", *options]


@pytest.mark.parametrize("arguments", [[], ["deplyo"], ["--limit", "gpu1"], ["../site"]])
def test_what_is_no_verb_is_refused_with_the_verbs(arguments: list[str]) -> None:
    done = socle(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert all(verb in done.stderr for verb in cli.VERBS)


def test_help_goes_to_standard_output() -> None:
    done = socle("--help")
    assert done.returncode == 0 and "--limit" in done.stdout and done.stderr == ""


def test_streams_and_exit_code_are_those_of_ansible(tmp_path: Path) -> None:
    listed = socle("status", "-i", "gpu7,", "--list-hosts", cwd=tmp_path)
    assert listed.returncode == 0 and "gpu7" in listed.stdout and "\x1b" not in listed.stdout
    refused = socle("status", "--no-such-option", cwd=tmp_path)
    assert refused.returncode == 2 and "--no-such-option" in refused.stderr
    unknown = socle("status", "-i", "gpu7,", "--limit", "nobody", cwd=tmp_path)
    assert unknown.returncode == 1 and "--limit" in unknown.stderr
