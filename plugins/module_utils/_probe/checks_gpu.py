# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the engine runs on the planned GPUs, leaves them the planned room, and does not break them.

Private to socle.inference.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._probe.judge import Context, Outcome

EXPECTED = (
    "the engine on its planned GPUs alone, with the planned memory left, no more used than before the checks, no Xid"
)

ROUNDING_MIB = 1024
"""What the plan may be wrong by: the driver's own, contexts of CUDA, graphs beyond what vLLM counts."""


def gpu(context: Context, params: dict[str, Any]) -> Outcome:
    """Asked near the end, so that what the other checks did to the memory shows."""
    host, promised = context.host, context.planned.promised
    if promised is None or not promised.gpus:
        reason = "the plan names no GPUs" if promised else "the probe was not told what is planned (option plan)"
        return Outcome("skipped", EXPECTED, reason)
    if host is None:
        return Outcome("skipped", EXPECTED, "the probe does not run on the host of the engine (probe_location)")
    now = host.look()
    named = set(map(str, promised.gpus))
    planned = {uuid: each for uuid, each in now.items() if each.index in named or uuid in named}
    faults, said = [], []
    figures: dict[str, Any] = {}
    if len(planned) < len(named):
        known = ", ".join(each.index for each in now.values()) or "none"
        faults.append(
            f"of the planned GPUs {', '.join(sorted(named))} the driver shows {len(planned)} (it has {known})"
        )
    holders = host.holders()
    own = (promised.unit, promised.unit.removesuffix(".service"))
    used = {uuid for uuid, items in holders.items() if any(item.owner in own for item in items)}
    strays = sorted(now[uuid].index for uuid in used - set(planned) if uuid in now)
    idle = sorted(each.index for uuid, each in planned.items() if uuid not in used)
    if strays:
        faults.append(f"it runs on GPU {', '.join(strays)} as well, which is not planned")
    if idle:
        faults.append(f"no process of {promised.unit} is on GPU {', '.join(idle)}")
    for uuid, each in planned.items():
        figures[f"free_mib_{each.index}"] = each.free_mib
        least = max((promised.headroom_gib or 0) * 1024 - ROUNDING_MIB, params["least_free_mib"])
        if each.free_mib < least:
            others = [item.describe() for item in holders.get(uuid, ()) if item.owner not in own]
            beside = f"; beside it are {', '.join(others)}" if others else ""
            faults.append(f"GPU {each.index} has {each.free_mib} MiB free, {least:.0f} expected{beside}")
        before = host.began.get(uuid)
        grown = before.free_mib - each.free_mib if before else 0
        figures[f"grown_mib_{each.index}"] = grown
        if grown > params["most_growth_mib"]:
            faults.append(f"GPU {each.index} has {grown} MiB less free than before the checks")
        said.append(f"GPU {each.index} has {each.free_mib} MiB free")
    xids = host.xids(promised.since, {each.bus_id for each in planned.values()})
    if xids:
        codes = ", ".join(sorted({f"{each['code']} of {each['pci_bus_id']}" for each in xids}))
        faults.append(f"the driver reported Xid {codes} since the launch")
    elif xids is None:
        said.append("the kernel's log cannot be read, so that Xids are not known")
    return Outcome(
        "failed" if faults else "passed",
        EXPECTED,
        "; ".join([*faults, *said]),
        "Another GPU than planned: look at the devices of the unit, and deploy again. Too little memory: end what else "
        "is on the GPU, or lower gpu-memory-utilization. An Xid: look it up, and run check.yml.",
        figures=figures,
    )
