# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The launcher of this host, put together from its real commands, files and servers. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._driver.users import reload_victims
from ansible_collections.socle.inference.plugins.module_utils._engine.backends import make_backend, other_backends
from ansible_collections.socle.inference.plugins.module_utils._engine.drain import ASK_S, IDLE_S, Drain
from ansible_collections.socle.inference.plugins.module_utils._engine.gpu_room import GpuRoom
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, run
from ansible_collections.socle.inference.plugins.module_utils._engine.launch import Launcher
from ansible_collections.socle.inference.plugins.module_utils._engine.locks import HOST
from ansible_collections.socle.inference.plugins.module_utils._engine.ready import Answer, Http
from ansible_collections.socle.inference.plugins.module_utils._engine.unit import probe_address
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._plan.facts import check_facts
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress


def ask_metrics(plan: Mapping[str, Any]) -> Answer:
    """/metrics of the instance that runs by this plan, which needs no API key."""
    if not plan.get("port"):
        return 0, b""
    address = probe_address(plan.get("argv") or [])
    return Http(f"http://{address}:{int(plan['port'])}")("/metrics", None, ASK_S)


def host_launcher(
    engine: str,
    state_dir: Path,
    facts: dict[str, Any] | None = None,
    idle_s: float | None = None,
    progress: Progress | None = None,
) -> Launcher:
    """A launcher for instances under *engine*; *facts* are those of gpu_facts, *idle_s* is as for `Drain`."""

    if facts is not None:
        check_facts(facts)

    def ask(argv: Sequence[str]) -> tuple[int, str, str] | None:
        try:
            done = run(argv)
        except SocleError:
            return None
        return done.returncode, done.stdout, done.stderr

    def victims() -> Sequence[str]:
        known = facts or {}
        toolkit = (known.get("toolkit") or {}).get("version")
        return reload_victims(ask, Path("/"), toolkit) if known.get("gpus") else ()

    return Launcher(
        make_backend(engine, run, state_dir),
        state_dir / "instances",
        Files(),
        others=other_backends(engine, run, state_dir),
        facts=facts,
        reload_victims=victims,
        drain=Drain(ask_metrics, IDLE_S if idle_s is None else idle_s, progress),
        room=GpuRoom(run, progress=progress),
        host_lock=HOST,
        progress=progress,
    )
