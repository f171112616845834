# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of an incident, and its place in the host's spool. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._records.files import write_once
from ansible_collections.socle.inference.plugins.module_utils._records.schema import build, spool_name
from ansible_collections.socle.inference.plugins.module_utils._watchdog.launch import Launch
from ansible_collections.socle.inference.plugins.module_utils._watchdog.settings import Settings

RESTART, REPORT, GIVE_UP, RECOVERED, LEFT = "restart", "report", "give_up", "recovered", "left_to_launch"
"""What the watchdog did: restarted it, was told not to, may do so no more, saw it move again, or met a launch."""


def incident_record(
    settings: Settings,
    launch: Launch,
    *,
    started: str,
    finished: str,
    reason: str,
    action: str,
    restarts_last_hour: int,
    causes: Sequence[str],
    evidence: Mapping[str, Any],
    secrets: Sequence[str],
) -> tuple[str, str]:
    """Name in the spool and text of the record; raises RecordError."""
    # The fingerprint of the environment in a plan is that of the launch, and would look like a drift back to it.
    plan = {key: value for key, value in launch.plan.items() if key != "environment_fingerprint"}
    record, text = build(
        kind="incident",
        host=settings.host,
        instance=settings.instance,
        started=started,
        finished=finished,
        verdict="degraded" if action == RECOVERED else "failed",
        tool_version=settings.tool_version,
        plan=plan,
        generation=launch.generation,
        results={
            "reason": reason,
            "action": action,
            "restarts_last_hour": restarts_last_hour,
            "likely_causes": list(causes),
            "evidence": dict(evidence),
        },
        method={
            "window_s": settings.window_s,
            "canary_after_s": settings.canary_after_s,
            "canary_patience_s": settings.canary_patience_s,
        },
        secrets=secrets,
    )
    return spool_name(record, text), text


def write_incident(state_dir: Path, name: str, text: str) -> Path:
    """Put the record where records_collect finds it; raises RecordError."""
    folder = state_dir / "records"
    write_once(folder, name, text)
    return folder / name
