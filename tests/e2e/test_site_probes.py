# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The longer suite, and a load, on the real engine. After test_site.py, which reads what was measured before."""

from __future__ import annotations

import json

from tests.e2e.conftest import Line
from tests.support import lab

CHANGES = {"C2": {"output_tokens": 24, "repeats": 2}}


def test_the_real_engine_passes_the_suite_of_all_three_apis(line: Line) -> None:
    lab.play("playbooks/accept.yml", "-e", "socle_suite=standard").expect_success()
    record = json.loads(lab.collected("acceptance")[-1].read_text())
    results = record["results"]
    assert (results["suite"], record["verdict"]) == ("standard", "passed")
    skipped = {check["id"]: check["found"] for check in results["checks"] if check["status"] != "passed"}
    # The lab's instance has no key, no GPU and no SLO, and its model can nothing but chat.
    tools = {"tools_required", "tools_named", "tools_auto", "tool_result", "tools_unneeded"}
    assert set(skipped) == {"api_key", "gpu", "slo", "thinking", "thinking_off", "effort", "sampling", *tools}
    assert "enable-auto-tool-choice" in skipped["tools_required"]
    assert "smollm2-135m-instruct names no levels" in skipped["effort"]


def test_a_load_is_measured_with_the_kernels_stamps_and_agrees_with_the_engine(line: Line) -> None:
    asked = json.dumps({"socle_benchmark": "always", "socle_workloads": ["C2"], "socle_benchmark_params": CHANGES})
    run = lab.play("playbooks/benchmark.yml", "-e", asked).expect_success()
    record = json.loads(lab.collected("benchmark")[-1].read_text())
    found = record["results"]["workloads"]["C2"]
    assert (record["verdict"], found["status"], found["repeats"]) == ("passed", "passed", 2)
    assert (found["completion_tokens"], found["cached_prompt_tokens"]) == (24, 0)
    loads = [each for each in found["runs"] if not each["warmup"]]
    for each in loads:
        assert (each["requests"], each["answered"], each["in_flight_max"]) == (8, 8, 2)
        assert each["client"]["kernel_stamp_share"] > 0.9
        assert round(each["output_tok_per_s"] * each["duration_s"]) == 8 * 24
    # What the engine itself says of the same requests, which leaves out the way to it.
    server = found["server"]
    assert server["only_ours"]
    means = [each["e2e_spread_ms"] for each in loads]
    assert min(mean["min"] for mean in means) * 0.8 <= server["e2e_mean_ms"] <= max(mean["max"] for mean in means)
    assert f"{lab.HOST} {lab.INSTANCE} C2: " in run.output
