# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._records.state import host_state
from ansible_collections.socle.inference.plugins.module_utils._records.table import (
    rows_of_host,
    status_table,
    text_width,
)

from .conftest import FP1, FP2, make

DECLARED = {"chat": {"model": "qwen3-0.6b"}}
PLAN = {"host_class": "cpu", "vllm_version": "0.11.0", "model": {"name": "qwen3-0.6b"}}
RUNNING = {"chat": {"unit_active": "active", "launch_fingerprint": FP1, "plan": PLAN}}
STATE = host_state(
    {
        "chat": [
            make(
                "benchmark",
                3,
                results={
                    "workloads": {
                        "B1": {"ttft_p50_ms": 123.44, "decode_p50_tok_per_s": 30},
                        "B2": {"decode_p50_tok_per_s": 31},
                    }
                },
            )[0],
            make("acceptance", 2)[0],
            make("deploy", 1)[0],
        ]
    }
)


def states(**given: Any) -> dict[str | None, str | None]:
    return {row["instance"]: row["state"] for row in rows_of_host("gpu1", **given)}


def test_the_whole_row_of_an_accepted_instance() -> None:
    rows = rows_of_host("gpu1", declared=DECLARED, running=RUNNING, state=STATE)
    head, line = status_table(rows).splitlines()
    assert " ".join(head.split()) == "HOST CLASS INSTANCE MODEL ENGINE STATE ACCEPTED TTFT ms TOK/S DRIFT"
    expected = "gpu1 cpu chat qwen3-0.6b vllm 0.11.0 accepted 2026-11-30T09:02Z 123 31.0 -"
    assert line.split() == expected.split()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"running": {}}, {"chat": "absent"}),
        ({"running": {**RUNNING, "old": {"unit_active": "active"}}}, {"chat": "accepted", "old": "unmanaged"}),
        ({"running": {"chat": {"unit_active": "activating"}}}, {"chat": "starting"}),
        ({"running": {"chat": {"unit_active": "activating", "unit_sub": "auto-restart"}}}, {"chat": "restarting"}),
        ({"running": {"chat": {"unit_active": "failed"}}}, {"chat": "failed"}),
        ({"running": {"chat": {"unit_active": "inactive", "status": "failed"}}}, {"chat": "failed"}),
        ({"running": {"chat": {"unit_active": "inactive"}}}, {"chat": "stopped"}),
        ({"running": {"chat": {"unit_active": None}}}, {"chat": "unknown"}),
        ({"running": {"chat": "hostile"}}, {"chat": "unknown"}),
        ({"running": {"chat": {"unit_active": "active", "launch_fingerprint": FP2}}}, {"chat": "unaccepted"}),
        ({"running": RUNNING, "state": None}, {"chat": "unaccepted"}),
        ({"running": None}, {"chat": "unknown"}),
        ({"running": None, "reachable": False}, {"chat": "unreachable"}),
        ({"running": None, "reachable": False, "declared": None}, {"chat": "unreachable"}),
        ({"running": None, "reachable": False, "declared": None, "state": None}, {None: "unreachable"}),
        ({"running": {}, "declared": None, "state": None}, {None: None}),
    ],
)
def test_states(given: dict[str, Any], expected: dict[str, str]) -> None:
    assert states(**({"declared": DECLARED, "state": STATE} | given)) == expected


def test_degraded_is_said() -> None:
    state = host_state({"chat": [make("acceptance", 2, verdict="degraded")[0], make("deploy", 1)[0]]})
    assert states(declared=DECLARED, running=RUNNING, state=state) == {"chat": "degraded"}


def test_an_unreachable_host_still_shows_what_is_known() -> None:
    [row] = rows_of_host("gpu1", reachable=False, declared=DECLARED, state=STATE)
    assert row["ttft_p50_ms"] == 123.44 and row["accepted_at"] == "2026-11-30T09:02Z"


def test_missing_is_a_dash_and_zero_is_not() -> None:
    line = status_table([{"host": "gpu1", "ttft_p50_ms": 0.0}]).splitlines()[1]
    assert line.split() == ["gpu1", "-", "-", "-", "-", "-", "-", "0.0", "-", "-"]


def test_lines_fit_the_width_and_align_with_wide_characters() -> None:
    rows = [
        {"host": "\u63a8\u7406\u4e3b\u673a" * 9, "instance": "e\u0301" * 30, "model": "x" * 90, "state": "unreachable"},
        {"host": "gpu1", "state": "accepted", "ttft_p50_ms": 1e300, "drift": "running, environment" * 9},
    ]
    lines = status_table(rows).splitlines()
    assert all(text_width(line) <= 120 for line in lines)
    starts = {
        text_width(line[: line.index(word)]) for line, word in zip(lines, ["STATE", "unreach", "accepted"], strict=True)
    }
    assert len(starts) == 1


def test_the_width_of_characters() -> None:
    assert [text_width(text) for text in ("ab", "\u63a8\u7406", "e\u0301", "\u2026")] == [2, 4, 1, 1]


def test_control_characters_do_not_reach_the_terminal() -> None:
    text = status_table([{"host": "a\x1b[31mb\nc\u202ed\u2028e", "model": "{{ 1 + 1 }}"}])
    assert len(text.splitlines()) == 2 and "\x1b" not in text and "\u202e" not in text
    assert "{{ 1 + 1 }}" in text


def test_an_incident_has_a_column_where_there_was_one() -> None:
    records = [make("incident", 4, verdict="failed")[0], make("acceptance", 2)[0], make("deploy", 1)[0]]
    state = host_state({"chat": records})
    rows = rows_of_host("gpu1", declared=DECLARED, running=RUNNING, state=state)
    head, line = status_table([*rows, *rows_of_host("gpu2", declared=DECLARED, running={})]).splitlines()[:2]
    assert head.endswith("INCIDENT") and line.endswith("2026-11-30T09:04Z")
    assert "INCIDENT" not in status_table(rows_of_host("gpu1", declared=DECLARED, running=RUNNING, state=STATE))
