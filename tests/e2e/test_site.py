# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the lab's inventory to an accepted, measured endpoint, and again."""

from __future__ import annotations

import json
import re
import subprocess

from tests.e2e.conftest import Line
from tests.support import lab


def test_the_endpoint_answers(line: Line) -> None:
    assert "Paris" in lab.ask("What is the capital of France?")


def test_a_second_run_changes_nothing(line: Line) -> None:
    assert {name: host["changed"] for name, host in line.second.recap.items()} == {lab.HOST: 0}
    assert line.after.unit == line.before.unit
    assert line.after.generation == line.before.generation
    assert line.after.spooled("deploy") == line.before.spooled("deploy")


def test_a_second_run_accepts_and_does_not_measure(line: Line) -> None:
    assert line.after.spooled("benchmark") == line.before.spooled("benchmark")
    assert len(line.after.spooled("acceptance")) == len(line.before.spooled("acceptance")) + 1


def test_records_are_on_the_host_and_beside_the_inventory(line: Line) -> None:
    newest = line.after.spooled("acceptance")[-1]
    on_host = json.loads(lab.on_host(f"cat /var/lib/socle/records/{newest}"))
    here = json.loads(line.after.newest("acceptance").read_text())
    assert on_host == here
    assert (here["schema"], here["kind"], here["verdict"]) == ("socle.record/1", "acceptance", "passed")
    assert (here["host"], here["instance"]) == (lab.HOST, lab.INSTANCE)
    assert here["generation"] == int(line.after.generation)
    results = here["results"]
    assert results["suite"] == "smoke"
    assert results["passed"] > 5
    assert results["failed"] == results["errors"] == 0
    assert here["environment"]["vllm_version"] == "0.32.0"
    assert here["environment"]["image_digest"].startswith("sha256:")
    measured = json.loads(line.after.newest("benchmark").read_text())
    assert measured["launch_fingerprint"] == here["launch_fingerprint"]
    deployed = json.loads(line.after.newest("deploy").read_text())
    assert deployed["launch_fingerprint"] == here["launch_fingerprint"]


def test_results_come_back_as_variables_and_groups(line: Line) -> None:
    state = lab.inventory_host()["socle_state"]["instances"][lab.INSTANCE]
    assert state["accepted"] is True
    assert state["accepted_at"] >= "2026"
    assert state["generation"] == int(line.after.generation)
    assert state["fingerprint"].startswith("sha256:")
    assert state["acceptance"]["failed_checks"] == []
    assert state["drift"] == []
    # And what another test has measured since.
    assert {"B1", "B2"} <= set(state["benchmark"])
    assert state["benchmark"]["B1"]["ttft_p50_ms"] > 1
    assert state["benchmark"]["B2"]["decode_p50_tok_per_s"] > 1
    assert state["capacity"]["kv_cache_size_tokens"] > 4096
    groups = lab.inventory_groups()
    assert lab.HOST in groups["accepted"]
    assert lab.HOST not in groups.get("unaccepted", [])
    assert lab.HOST not in groups.get("drifted", [])


def test_check_mode_changes_nothing(line: Line) -> None:
    before = lab.host_fingerprint()
    records = lab.collected("")
    run = lab.play("site.yml", "--check", "--diff").expect_success()
    assert run.changed == 0
    assert lab.host_fingerprint() == before
    assert lab.collected("") == records


def test_check_mode_shows_a_change_and_does_not_make_it(line: Line) -> None:
    before = lab.host_fingerprint()
    run = lab.play("playbooks/deploy.yml", "--check", "--diff", "-e", '{"vllm_flags_host": {"max-num-seqs": 2}}')
    run.expect_success()
    assert run.changed == 1
    assert "-    --max-num-seqs 8" in run.output or "---max-num-seqs 8" in run.output
    assert "+    --max-num-seqs 2" in run.output or "+--max-num-seqs 2" in run.output
    assert "would_restart" in run.output
    assert lab.host_fingerprint() == before


def test_the_plan_names_origin_and_evidence(line: Line) -> None:
    run = lab.play("playbooks/plan.yml", "-e", '{"vllm_flags_host": {"max-num-seqs": 2}}').expect_success()
    assert run.changed == 0
    shown = {text.split()[0]: text for text in run.output.splitlines() if text.strip()}
    flag = next(text for text in run.output.splitlines() if "max-num-seqs" in text)
    assert "vllm_flags_host" in flag
    assert "2" in flag.split()
    # A reason that is too long for its line stands below it.
    told = " ".join(run.output.split())
    assert re.search(r"--max-model-len \d+ profiles/serving/smollm2-135m-instruct--cpu\.yml", told)
    assert "half the model's" in told
    assert shown
    assert lab.unit() == line.after.unit


def test_the_host_tells_what_its_weights_take(line: Line) -> None:
    """A plan for a processor does not ask; the module is the same on every host."""
    words = [lab.HOST, "-i", str(lab.INVENTORY), "--become", "-m", "socle.inference.model_weights_info"]
    done = subprocess.run(
        [str(lab.BIN / "ansible"), *words], env=lab.environment(), capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout.partition("=>")[2])
    held = told["weights"]["HuggingFaceTB/SmolLM2-135M-Instruct"]
    assert (told["changed"], held["fault"], held["tensors"], held["bytes"]) == (False, None, 272, 2 * 134515008)


def test_the_status_is_one_table(line: Line) -> None:
    run = lab.play("playbooks/status.yml").expect_success()
    assert run.changed == 0
    rows = [text.split() for text in run.output.splitlines()]
    head = next(row for row in rows if row[:2] == ["HOST", "CLASS"])
    row = next(row for row in rows if row[:3] == [lab.HOST, "cpu", lab.INSTANCE])
    assert "STATE" in head
    assert "accepted" in row
