# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""socle <verb>: runs the collection's playbook of that name.

All options after the verb go to ansible-playbook as they are: -i, --limit, -e, --check mean what they do there.
"""

from __future__ import annotations

import argparse
import configparser
import os
import re
import shutil
import stat
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import NoReturn

VERBS = {
    "site": "bring every host from what it is to accepted, measured instances",
    "provision": "install driver, container engine and GPU toolkit, and keep them there",
    "check": "tell what is wrong with each host, and what to do; changes nothing",
    "plan": "show what would run, and whether it is allowed to; changes nothing",
    "deploy": "fetch, start and wait until the instances serve",
    "accept": "check that the instances answer right, and keep the record",
    "rollback": "bring back what was accepted, or generation N, and accept it",
    "redeploy": "restart what runs, or try another image or flags, one host after the other",
    "benchmark": "measure the instances, and keep the record",
    "status": "one table of all instances",
    "endpoint": "tell how clients use each instance, with settings to copy",
    "models": "bring, verify, list, export, import and remove models, and free old ones",
    "flags": "ask an engine image for its flags, so that plans of its version are checked",
    "lab": "build the virtual lab on this machine",
}

USAGE_ERROR = 2

ASKS_ONLY = ("-h", "--help", "--version")

SYSTEM_CONFIG = Path("/etc/ansible/ansible.cfg")
SYSTEM_INVENTORY = Path("/etc/ansible/hosts")


def usage() -> str:
    verbs = "\n".join(f"  {verb:<10} {meaning}" for verb, meaning in VERBS.items())
    return (
        "usage: socle <verb> [-i INVENTORY] [--limit HOSTS] [-e NAME=VALUE] [any option of ansible-playbook]\n"
        f"       socle --version | --help\n\nverbs:\n{verbs}\n"
    )


def version() -> str:
    """The version of the installed package, or of the checkout that this file is in."""
    try:
        return metadata.version("socle")
    except metadata.PackageNotFoundError:
        text = (Path(__file__).parents[1] / "galaxy.yml").read_text("utf-8")
        match = re.search(r"(?m)^version: (\S+)$", text)
        return match.group(1) if match else "unknown"


def playbook_arguments(verb: str, options: list[str]) -> list[str]:
    """The arguments of ansible-playbook; the collection's loader finds the playbook, wherever it is installed."""
    return [f"socle.inference.{verb}", *options]


class _Unparsed(Exception):
    """Options that ansible-playbook will refuse in its own words."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Unparsed(message)


def inventories(options: list[str]) -> list[str] | None:
    """The inventories that *options* name, as ansible-playbook reads them; None when it will refuse the options."""
    parser = _Parser(add_help=False)
    parser.add_argument("-i", "--inventory", "--inventory-file", dest="inventory", action="append", default=[])
    # What may stand before -i in one word, as in -vvi.
    for flag in "vbkKCD":
        parser.add_argument(f"-{flag}", action="count")
    # Values that look like an option.
    for short, long in (("-e", "--extra-vars"), ("-l", "--limit"), ("-t", "--tags"), ("-u", "--user")):
        parser.add_argument(short, long)
    try:
        named: list[str] = parser.parse_known_args(options)[0].inventory
    except _Unparsed:
        return None
    return named


def configured_inventory(environment: Mapping[str, str], folder: Path, home: Path) -> bool:
    """Whether ansible-playbook, started in *folder*, finds an inventory that nobody named."""
    if environment.get("ANSIBLE_INVENTORY") or SYSTEM_INVENTORY.exists():
        return True
    places = [home / ".ansible.cfg", SYSTEM_CONFIG]
    # Ansible does not trust a folder in which everybody may write.
    if not folder.stat().st_mode & stat.S_IWOTH:
        places.insert(0, folder / "ansible.cfg")
    if environment.get("ANSIBLE_CONFIG"):
        named = Path(environment["ANSIBLE_CONFIG"]).expanduser()
        places.insert(0, named / "ansible.cfg" if named.is_dir() else named)
    config = next((place for place in places if place.is_file()), None)
    if config is None:
        return False
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";",), strict=False)
    try:
        parser.read(config, "utf-8")
    except (configparser.Error, UnicodeDecodeError):
        # ansible-playbook says what is wrong with it.
        return True
    return bool(parser.get("defaults", "inventory", fallback=""))


def refusal(options: list[str], environment: Mapping[str, str], folder: Path, home: Path) -> str | None:
    """Why ansible-playbook would run over no hosts, in one sentence; None when it would not."""
    if any(option in ASKS_ONLY for option in options):
        return None
    named = inventories(options)
    if named is None:
        return None
    if not named and not configured_inventory(environment, folder, home):
        return (
            f"there is no inventory: none is given, and neither ANSIBLE_INVENTORY nor an ansible.cfg names one in "
            f"{str(folder)!r}; give -i INVENTORY."
        )
    for name in named:
        path = folder / os.path.expanduser(os.path.expandvars(name))  # noqa: PTH111  # Path's raises at ~nobody
        if "," not in name and not (name and path.exists()):
            return (
                f"the inventory {name!r} was looked for in {str(folder)!r} and does not exist; "
                f"give -i an existing file or folder, or a list such as 'host,'."
            )
    return None


def collections_path() -> Path:
    """The folder in which Ansible finds the collection that belongs to this file, in a checkout or installed."""
    root = Path(__file__).resolve().parents[1]
    checkout = root / "collections"
    return checkout if checkout.is_dir() else root


def ansible_playbook() -> str | None:
    """The command of the interpreter that runs this, before any other on the path."""
    beside = Path(sys.executable).with_name("ansible-playbook")
    return str(beside) if beside.exists() else shutil.which("ansible-playbook")


def main(argv: list[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else argv
    if given in (["--version"], ["version"]):
        print(f"socle {version()}")
        return 0
    if not given or given[0] in ("-h", "--help", "help"):
        print(usage(), end="", file=sys.stdout if given else sys.stderr)
        return 0 if given else USAGE_ERROR
    verb, options = given[0], given[1:]
    if verb not in VERBS:
        print(f"socle: there is no verb {verb!r}; expected one of {', '.join(VERBS)}.", file=sys.stderr)
        return USAGE_ERROR
    reason = refusal(options, os.environ, Path.cwd(), Path.home())
    if reason is not None:
        print(f"socle: {reason}", file=sys.stderr)
        return USAGE_ERROR
    command = ansible_playbook()
    if command is None:
        print("socle: ansible-playbook was not found; install ansible-core beside socle.", file=sys.stderr)
        return USAGE_ERROR
    # A misspelt inventory must not end well, and a copy of the collection elsewhere must not win.
    os.environ.setdefault("ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED", "True")
    os.environ.setdefault("ANSIBLE_COLLECTIONS_PATH", str(collections_path()))
    # This process becomes ansible-playbook: terminal, signals, exit code and settings, such as the check of SSH host
    # keys, stay its own. ansible-runner would put escape codes into each line and turn that check off.
    os.execv(command, [command, *playbook_arguments(verb, options)])


if __name__ == "__main__":
    sys.exit(main())
