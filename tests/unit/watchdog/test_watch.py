# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What follows from a judgement: evidence, a record, a restart within bounds, words in the journal."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._records.files import check_spooled
from ansible_collections.socle.inference.plugins.module_utils._watchdog.bounds import ledger_from
from ansible_collections.socle.inference.plugins.module_utils._watchdog.observation import STARTING

from tests.unit.watchdog.conftest import SECRET, Stage

HOUR = 3600


def test_a_frozen_engine_is_restarted_with_its_evidence_on_record(stage: Stage) -> None:
    stage.host.cures = True
    stage.run(60)
    frozen_at = stage.engine.now
    stage.engine.freeze()
    stage.run(300)
    assert len(stage.host.restarted) == 1
    assert stage.host.restarted[0] - frozen_at < 120
    (record,) = stage.records
    results = record["results"]
    assert (record["kind"], record["verdict"], record["generation"]) == ("incident", "failed", 1)
    assert (results["action"], results["restarts_last_hour"]) == ("restart", 0)
    assert "a canary token did not come" in results["reason"]
    assert "was stopped by a signal" in results["likely_causes"][0]
    assert stage.words() == ["healthy", "suspect", "stuck", "record", "restart", "healthy"]


def test_the_record_is_one_that_is_collected(stage: Stage) -> None:
    stage.engine.freeze()
    stage.run(110)
    (path,) = (stage.folder / "records").glob("*.json")
    record = check_spooled(path.name, path.read_text(), "gpu1")
    # That of the launch would look like a drift back to it.
    assert record["environment_fingerprint"] is None
    assert record["launch_fingerprint"] == "sha256:" + "1" * 64


def test_the_key_is_nowhere(stage: Stage) -> None:
    stage.engine.freeze()
    stage.run(600)
    kept = [path.read_text() for path in stage.folder.rglob("*") if path.is_file() and "secrets" not in path.parts]
    assert len(kept) > 2
    assert SECRET not in "".join(kept) + "".join(line for _level, line in stage.said)


def test_the_record_is_there_before_the_restart(stage: Stage) -> None:
    seen: list[int] = []
    restart = stage.host.restart

    def note() -> None:
        seen.append(len(stage.records))
        restart()

    stage.host.restart = note  # type: ignore[method-assign]
    stage.engine.freeze()
    stage.run(110)
    assert seen == [1]


def test_a_full_disk_does_not_keep_it_stuck(stage: Stage) -> None:
    (stage.folder / "records").write_text("no folder")
    stage.engine.freeze()
    stage.run(110)
    assert len(stage.host.restarted) == 1
    assert any("could not be written" in line for _level, line in stage.said)


def test_restarts_are_bounded_and_then_it_only_reports(stage: Stage) -> None:
    stage.engine.freeze()
    stage.run(2 * HOUR)
    assert len(stage.host.restarted) == 3
    assert stage.host.alarms == ["raised"]
    assert [record["results"]["action"] for record in stage.records][-1] == "give_up"
    assert len(stage.records) == 4
    told = [(level, line) for level, line in stage.said if "systemctl reload socle-watchdog@chat" in line]
    assert all(level == 3 for level, _line in told)
    # Once when it gave up, then every quarter of an hour.
    assert 6 <= len(told) <= 8


def test_after_an_operators_word_it_restarts_again(stage: Stage) -> None:
    stage.engine.freeze()
    stage.run(HOUR)
    stage.watch.forget()
    stage.run(HOUR / 4)
    assert len(stage.host.restarted) > 3
    assert stage.host.alarms[:2] == ["raised", "cleared"]


def test_a_new_launch_begins_a_new_count(stage: Stage) -> None:
    stage.engine.freeze()
    stage.run(HOUR)
    stage.generate(2)
    stage.host.cures = True
    stage.host.start_again()
    stage.run(60)
    assert stage.host.alarms == ["raised", "cleared"]
    stage.engine.freeze()
    stage.run(130)
    assert len(stage.host.restarted) == 4


def test_a_start_by_hand_begins_a_new_count_and_one_by_systemd_does_not(stage: Stage) -> None:
    stage.engine.freeze()
    stage.run(HOUR)
    stage.engine.restarts_by_systemd = 1
    stage.host.start_again()
    stage.run(HOUR / 4)
    assert len(stage.host.restarted) == 3 and "cleared" not in stage.host.alarms
    stage.engine.restarts_by_systemd = 0
    stage.host.start_again()
    stage.run(HOUR / 4)
    assert len(stage.host.restarted) > 3 and "cleared" in stage.host.alarms


def test_a_watchdog_that_starts_anew_remembers(stage: Stage) -> None:
    stage.engine.freeze()
    for _turn in range(12):
        stage.run(250)
        stage.start()
    assert len(stage.host.restarted) == 3
    # The alarm is raised again where the host or the program was started anew.
    stage.run(20)
    assert set(stage.host.alarms) == {"raised"} and len(stage.host.alarms) > 1


def test_an_hour_later_there_is_room_again(stage: Stage) -> None:
    stage.host.cures = True
    for _turn in range(8):
        stage.run(HOUR / 2)
        stage.engine.freeze()
    stage.run(HOUR / 2)
    assert len(stage.host.restarted) == 8
    assert stage.host.alarms == []


def test_told_to_report_it_restarts_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path, restart=False)
    stage.engine.freeze()
    stage.run(HOUR)
    assert stage.host.restarted == []
    assert [record["results"]["action"] for record in stage.records] == ["report"]
    assert any("watchdog_restart is false" in line for level, line in stage.said if level == 3)


def test_what_moves_again_while_evidence_is_collected_is_not_restarted(stage: Stage) -> None:
    stage.engine.freeze()

    def thaw() -> None:
        stage.engine.canary_s = 1.0
        stage.engine.tokens_per_s = 30.0

    stage.collector.then = thaw
    stage.run(600)
    assert stage.host.restarted == []
    assert [(record["verdict"], record["results"]["action"]) for record in stage.records] == [("degraded", "recovered")]
    assert stage.words()[-1] == "healthy"


def test_a_slow_collection_does_not_hide_that_it_is_stuck(stage: Stage) -> None:
    stage.collector.takes_s = 90.0
    stage.engine.freeze()
    stage.run(250)
    assert len(stage.host.restarted) >= 1


def test_a_stall_that_comes_and_goes_does_not_fill_the_disk(stage: Stage) -> None:
    def thaw() -> None:
        stage.engine.canary_s = 1.0

    stage.collector.then = thaw
    for _turn in range(20):
        stage.engine.freeze()
        stage.run(130)
    assert len(stage.records) <= 6
    assert stage.host.restarted == []


def test_a_launch_under_way_is_left_alone(stage: Stage) -> None:
    stage.host.launch_under_way = True
    stage.engine.freeze()
    stage.run(600)
    assert stage.host.restarted == [] and stage.collector.collected == 0
    stage.host.launch_under_way = False
    stage.run(20)
    assert len(stage.host.restarted) == 1


def test_a_refused_restart_is_tried_again_and_counts(stage: Stage) -> None:
    stage.host.restart_fault = "systemctl restart vllm-chat.service failed"
    stage.engine.freeze()
    stage.run(HOUR)
    assert stage.words().count("gave-up") == 1
    assert sum("failed" in line for _level, line in stage.said) == 3


def test_a_host_that_does_not_answer_is_told_once(stage: Stage) -> None:
    stage.host.fault = "systemctl show failed"
    assert set(stage.run(600)) == {None}
    assert stage.words() == ["blind"]
    stage.host.fault = None
    assert stage.run(5) == ["healthy"]


def test_a_start_is_said_and_left_alone(stage: Stage) -> None:
    stage.engine.unit = STARTING
    stage.engine.freeze()
    stage.run(1200)
    assert stage.words() == ["starting"]


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"restarts": [Infinity, NaN, 1%s, true]}' % ("0" * 400)], ids=["nested", "endless"]
)
def test_a_ledger_with_what_is_no_moment_is_one_without(text: str) -> None:
    ledger = ledger_from(text)
    assert ledger.restarts == [] and ledger.allows(1e9, 1)


def test_a_broken_ledger_is_an_empty_one(stage: Stage) -> None:
    (stage.folder / "watchdog/chat/ledger.json").write_text("{broken")
    stage.start()
    stage.engine.freeze()
    stage.run(110)
    assert len(stage.host.restarted) == 1
