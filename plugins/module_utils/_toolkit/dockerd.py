# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The dockerd that runs: its flags, its containers, and whether it may be restarted. Private to socle.inference."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, Runner
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError, ToolkitError

RESTARTS = ("auto", "always", "never")
"""When dockerd may be restarted; "auto" is while no containers of others run on it."""

NAMED = 3
"""How many containers a sentence names before it only counts."""


@dataclass(frozen=True)
class Dockerd:
    """The service of one host."""

    running: bool
    flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Values by long flag without its dashes; "" for a flag that stands alone."""
    active: str = ""
    """ActiveState of the unit."""
    enabled: str = ""
    """UnitFileState; "" where systemd does not know the unit."""

    @property
    def masked(self) -> bool:
        return self.enabled.startswith("masked")


def parse_flags(argv: Sequence[str]) -> dict[str, list[str]]:
    """The long flags of a command line, in both spellings: --name=value and --name value."""
    flags: dict[str, list[str]] = {}
    for position, word in enumerate(argv):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        following = argv[position + 1] if position + 1 < len(argv) else "-"
        flags.setdefault(name, []).append(value if equals or following.startswith("-") else following)
    return flags


def read(run: Runner, files: Files, root: Path = Path("/")) -> Dockerd:
    """What systemd and the kernel say of docker.service.

    Flags come from both: those of variables in the unit are seen only at the process, and a process may be older than
    its unit.
    """
    shown = run(
        ["systemctl", "show", "docker.service", "--property=ActiveState,UnitFileState,MainPID,ExecStart"]
    ).stdout
    unit = re.search(r"argv\[\]=(.*?) ;", shown)
    argv = unit[1].split() if unit else []
    pid = re.search(r"^MainPID=([1-9]\d*)$", shown, re.MULTILINE)
    if pid:
        argv += (files.read(root / f"proc/{pid[1]}/cmdline") or "").split("\0")
    state = dict(line.partition("=")[::2] for line in shown.splitlines())
    active = state.get("ActiveState", "")
    return Dockerd(active == "active", parse_flags(argv), active, state.get("UnitFileState", ""))


def containers(run: Runner) -> tuple[int, list[str]] | None:
    """(how many run, names of those that are not socle's); None where dockerd does not say."""
    try:
        done = run(["docker", "ps", "--format", '{{.Names}}\t{{.Label "io.socle.instance"}}'])
    except EngineError:
        return None
    if done.returncode != 0:
        return None
    found = [line.partition("\t") for line in done.stdout.splitlines() if line.strip()]
    foreign = [name for name, _tab, instance in found if not (instance.strip() or name.startswith("vllm-"))]
    return len(found), sorted(foreign)


def allow_restart(run: Runner, restart: str, cause: str) -> int:
    """How many containers a restart will stop. Raises ToolkitError where it must not come."""
    said = containers(run)
    remedy = "set container_engine_restart to always, then repeat the run. Nothing was changed."
    if restart == "never":
        raise ToolkitError(
            f"dockerd needs a restart for {cause}, but container_engine_restart is never: restart Docker by a run with"
            " container_engine_restart set to auto or always when that suits you. Nothing was changed."
        )
    if restart == "auto" and said is None:
        raise ToolkitError(
            f"Will not restart dockerd for {cause}: 'docker ps' does not say which containers that would stop; see why,"
            f" or {remedy}"
        )
    count, foreign = said or (0, [])
    if restart == "auto" and foreign:
        more = f" and {len(foreign) - NAMED} more" if len(foreign) > NAMED else ""
        raise ToolkitError(
            f"Will not restart dockerd for {cause}: that would stop containers that are not socle's"
            f" ({', '.join(foreign[:NAMED])}{more}); stop them first, or {remedy}",
            containers=foreign,
        )
    return count
