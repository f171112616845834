# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""socle <verb>: runs the collection's playbook of that name.

All options after the verb go to ansible-playbook as they are: -i, --limit, -e, --check mean what they do there.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

VERBS = {
    "site": "bring every host from what it is to accepted, measured instances",
    "plan": "show what would run, and whether it is allowed to; changes nothing",
    "deploy": "fetch, start and wait until the instances serve",
    "accept": "check that the instances answer right, and keep the record",
    "benchmark": "measure the instances, and keep the record",
    "status": "one table of all instances",
    "lab": "build the virtual lab on this machine",
}

USAGE_ERROR = 2


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
