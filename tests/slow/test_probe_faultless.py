# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An engine that is right is never called wrong: every check, as large as it is shipped, fifty times in a row."""

from __future__ import annotations

from ansible_collections.socle.inference.plugins.module_utils._probe.acceptance import parse_checks, run_suite
from ansible_collections.socle.inference.plugins.module_utils._probe.client import EngineClient
from ansible_collections.socle.inference.plugins.module_utils._probe.host_gpus import HostGpus
from ansible_collections.socle.inference.plugins.module_utils._probe.judge import Context, Planned

from tests.simulators.engine import Behaviour, EngineDouble
from tests.unit.probe.test_probe_acceptance import ENGINE_PROC, KEY, PROMISED, SUITES, one_gpu

RUNS = 50


def test_fifty_runs_of_every_check_find_nothing() -> None:
    planned = Planned(["double"], 512, "0.32.0", "/models/Double", api_key_required=True, promised=PROMISED)
    checks = parse_checks(SUITES["full"])
    # Chunks are cut inside characters and come with pauses, as they do on a network.
    behaviour = Behaviour(api_key=KEY, cache_tokens=3000, ttft_s=0.002, itl_s=0.0002)
    with EngineDouble(behaviour) as double, EngineClient(double.base_url, KEY) as client:
        for number in range(RUNS):
            result = run_suite("full", checks, Context(client, planned, host=HostGpus(one_gpu, ENGINE_PROC)))
            wrong = [check for check in result["checks"] if check["status"] != "passed"]
            assert (result["verdict"], wrong) == ("passed", []), f"run {number + 1} of {RUNS}"
