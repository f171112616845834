# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters of role virtual_lab: hosts from the inventory, missing programs, what a build will take."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._lab.machine import SEARCH


def lab_hosts(names: list[str], hostvars: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The hosts *names* as role virtual_lab takes them."""
    return [
        {
            "name": name,
            "publish": hostvars[name].get("virtual_lab_publish", []),
            "kind": hostvars[name].get("virtual_lab_kind", "engine"),
        }
        for name in names
    ]


def missing_programs(programs: list[str]) -> bool:
    """Whether this machine lacks any of *programs*."""
    return any(shutil.which(program, path=SEARCH) is None for program in programs)


def build_environment(home: str, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a build that runs as root needs from the user whose *home* this is: pip's settings and proxies.

    An address with a password in it is left out, since the process list would show it; pip.conf is the place for it.
    """
    passed = {
        name: value
        for name, value in (os.environ if environment is None else environment).items()
        if name.startswith("PIP_") or name.lower() in ("http_proxy", "https_proxy", "no_proxy")
    }
    passed = {name: value for name, value in passed.items() if "@" not in value}
    for config in (Path(home) / ".config/pip/pip.conf", Path(home) / ".pip/pip.conf"):
        if config.is_file():
            passed.setdefault("PIP_CONFIG_FILE", str(config))
    return passed


def lab_expectation(plan: Mapping[str, Any], directory: str) -> list[str]:
    """Lines that tell a person what module virtual_lab is about to do, from what its check mode returned."""
    lines = []
    if plan["build"]:
        names = ", ".join(step["name"] for step in plan["build"])
        lines.append(
            f"Building {names}: up to {plan['gib']} GiB below {directory}, "
            f"about {plan['minutes']:.0f} min on two cores."
        )
    lines += [f"Then: {what}." for what in plan["containers"]]
    return lines


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {
            "build_environment": build_environment,
            "lab_hosts": lab_hosts,
            "missing_programs": missing_programs,
            "lab_expectation": lab_expectation,
        }
