# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A changed flag restarts the engine exactly once, and so does taking it back. Runs after test_site.py, by name."""

from __future__ import annotations

import json

from tests.support import lab

CHANGE = ("-e", json.dumps({"vllm_flags_host": {"max-num-seqs": 4}}))


def _invocations(since: str) -> int:
    """How many runs of the unit wrote to the journal since then."""
    lines = lab.on_host(
        f"journalctl --unit vllm-{lab.INSTANCE} --since '@{since}' --output json --output-fields _SYSTEMD_INVOCATION_ID"
    ).splitlines()
    return len({json.loads(line).get("_SYSTEMD_INVOCATION_ID") for line in lines} - {None})


def _flag() -> str:
    plan = json.loads(lab.on_host(f"cat /var/lib/socle/instances/{lab.INSTANCE}/current/plan.json"))
    argv = plan["argv"]
    return str(argv[argv.index("--max-num-seqs") + 1])


def test_a_flag_restarts_exactly_once_and_back_again() -> None:
    lab.play("site.yml").expect_success()
    before, number = lab.unit(), int(lab.generation())
    assert _flag() == "8"

    for step, (arguments, wanted) in enumerate([(CHANGE, "4"), ((), "8")], start=1):
        began = lab.on_host("date +%s").strip()
        run = lab.play("playbooks/deploy.yml", *arguments).expect_success()
        assert run.changed == 1
        after = lab.unit()
        assert after["InvocationID"] != before["InvocationID"]
        assert (after["ActiveState"], after["NRestarts"]) == ("active", "0")
        assert int(lab.generation()) == number + step
        assert _flag() == wanted
        # The one that was stopped and the one that runs: none in between.
        assert _invocations(began) == 2
        again = lab.play("playbooks/deploy.yml", *arguments).expect_success()
        assert again.changed == 0
        assert lab.unit() == after
        before = after

    benchmarks = lab.spool("benchmark")
    lab.play("site.yml").expect_success()
    assert lab.inventory_host()["socle_state"]["instances"][lab.INSTANCE]["accepted"] is True
    # The launch is one that was measured before.
    assert lab.spool("benchmark") == benchmarks
