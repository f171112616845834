# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tools turned on in the real engine: what a grammar forces is right by each API, and the rest is not promised."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support import lab

TOOLS = {"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}


@pytest.fixture
def tools_on() -> Iterator[str]:
    """The lab's instance with tools, and afterwards as it was."""
    lab.play("site.yml").expect_success()
    instance = {"model": "smollm2-135m-instruct", "port": 8000, "expose": "all", "flags": TOOLS}
    asked = json.dumps({"vllm_instances": {lab.INSTANCE: instance}, "socle_suite": "standard"})
    try:
        yield asked
    finally:
        lab.play("playbooks/deploy.yml").expect_success()


def test_forced_calls_are_valid_by_each_api(tools_on: str) -> None:
    lab.play("playbooks/deploy.yml", "-e", tools_on).expect_success()
    lab.play("playbooks/accept.yml", "-e", tools_on).expect_success()
    results = json.loads(lab.collected("acceptance")[-1].read_text())["results"]
    checks = {check["id"]: check for check in results["checks"]}
    assert {checks[name]["status"] for name in ("tools_required", "tools_named")} == {"passed"}
    assert checks["tools_required"]["found"] == "6 answers were so"
    # By itself this model calls nothing, and its file does not say that it would.
    assert checks["tools_auto"]["status"] == "skipped"
    assert "does not count tools" in checks["tools_auto"]["found"]
