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
    refused = socle("status", "-i", "gpu7,", "--no-such-option", cwd=tmp_path)
    assert refused.returncode == 2 and "--no-such-option" in refused.stderr
    unknown = socle("status", "-i", "gpu7,", "--limit", "nobody", cwd=tmp_path)
    assert unknown.returncode == 1 and "--limit" in unknown.stderr


def test_no_inventory_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = socle("status", "--limit", "gpu1", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "give -i" in done.stderr
    missing = socle("status", "-i", "inventories/none", cwd=tmp_path)
    assert (missing.returncode, missing.stdout, missing.stderr.count("\n")) == (2, "", 1)
    assert "'inventories/none' was looked for" in missing.stderr
    assert socle("status", "--help", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ([], []),
        (["-i", "a", "--inventory=b", "-ic", "--inventory-file", "d"], ["a", "b", "c", "d"]),
        (["-vvi", "a", "-l", "gpu1", "--inventory", "b"], ["a", "b"]),
        (["--tags", "x", "-e", "a=b c", "--become-user", "me", "--check"], []),
        (["-i"], None),
    ],
)
def test_inventories_are_read_as_ansible_reads_them(options: list[str], named: list[str] | None) -> None:
    assert cli.inventories(options) == named


@pytest.mark.parametrize("name", ["{}", "hosts.yml", "$FOLDER/hosts.yml", "gpu7,", "a,b"])
def test_an_inventory_that_exists_or_is_a_list_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("FOLDER", str(tmp_path))
    (tmp_path / "hosts.yml").touch()
    assert cli.refusal(["-i", name.format(tmp_path)], {}, tmp_path, tmp_path) is None


def test_where_ansible_finds_an_inventory_that_nobody_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "SYSTEM_CONFIG", tmp_path / "none")
    monkeypatch.setattr(cli, "SYSTEM_INVENTORY", tmp_path / "none")
    home, folder, config = tmp_path / "home", tmp_path / "folder", tmp_path / "given.cfg"
    home.mkdir()
    folder.mkdir(mode=0o755)
    assert not cli.configured_inventory({}, folder, home)
    assert cli.configured_inventory({"ANSIBLE_INVENTORY": "x"}, folder, home)
    (home / ".ansible.cfg").write_text("[defaults]\ninventory = hosts\n")
    assert cli.configured_inventory({}, folder, home)
    (folder / "ansible.cfg").write_text("[defaults]\nforks = 5\n")
    assert not cli.configured_inventory({}, folder, home), "the first file is the only one"
    folder.chmod(0o777)
    assert cli.configured_inventory({}, folder, home), "a folder open to everybody is passed over"
    folder.chmod(0o755)
    config.write_text("[defaults]\ninventory = hosts\n")
    assert cli.configured_inventory({"ANSIBLE_CONFIG": str(config)}, folder, home)
