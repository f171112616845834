# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a page of /metrics says, and what a launch says of itself."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._watchdog.commands import Answer
from ansible_collections.socle.inference.plugins.module_utils._watchdog.host import Host
from ansible_collections.socle.inference.plugins.module_utils._watchdog.launch import launch_of, read_key, read_launch
from ansible_collections.socle.inference.plugins.module_utils._watchdog.observation import OFF, ON, SILENT, read_metrics
from ansible_collections.socle.inference.plugins.module_utils._watchdog.program import read_settings

from tests.unit.watchdog.conftest import PLAN, SECRET, Stage

PAGE = """# HELP vllm:num_requests_running Number of requests
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:generation_tokens_total{engine="0",model_name="m"} 100.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="m"} 4.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 5.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} 2.0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="weights_offloaded"} 0.0
"""


def test_a_page_is_summed_over_engines() -> None:
    metrics = read_metrics(PAGE)
    assert (metrics.visible, metrics.running, metrics.waiting, metrics.asleep) == (ON, 4, 7, False)
    assert metrics.counters == {"vllm:generation_tokens_total": 100.0, "vllm:iteration_tokens_total_count": 5.0}


def test_requests_that_clients_gave_up_are_no_progress() -> None:
    # The API server counts them while the core is frozen.
    later = PAGE.replace('"abort",model_name="m"} 2.0', '"abort",model_name="m"} 9.0')
    before, after = read_metrics(PAGE), read_metrics(later)
    assert (before.counters, before.scheduler) == (after.counters, after.scheduler)


def test_pages_that_show_nothing() -> None:
    assert read_metrics(None).visible == SILENT
    off = read_metrics("python_gc_objects_collected_total 12\n")
    assert (off.visible, off.asleep, off.running) == (OFF, None, None)
    assert read_metrics(PAGE.replace('"awake"} 1.0', '"awake"} 0.0')).asleep is True


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_what_is_no_number_is_no_movement(value: str) -> None:
    page = PAGE.replace('kv_cache_usage_perc{engine="0",model_name="m"} 0.25', f"kv_cache_usage_perc {value}")
    page = page.replace('num_requests_waiting{engine="0",model_name="m"} 7.0', f"num_requests_waiting {value}")
    before, after = read_metrics(page), read_metrics(page)
    assert before.scheduler == after.scheduler and before.waiting is None and before.visible == ON


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        json.dumps({**PLAN, "argv": [], "served_names": []}),
        json.dumps({**PLAN, "port": float("inf")}),
        json.dumps({**PLAN, "port": 70_000}),
        json.dumps({**PLAN, "start_timeout_s": 10**400}),
        json.dumps({**PLAN, "start_timeout_s": float("nan")}),
        json.dumps({**PLAN, "start_timeout_s": -1}),
    ],
    ids=["nested", "no argv", "endless port", "no port", "endless timeout", "no timeout", "negative timeout"],
)
def test_a_damaged_plan_is_one_sentence(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "instances/chat"
    (folder / "generations/1").mkdir(parents=True)
    (folder / "generations/1/plan.json").write_text(text)
    (folder / "current").symlink_to("generations/1")
    with pytest.raises(EngineError, match="cannot read how chat was launched"):
        read_launch(tmp_path, "chat")


def test_what_is_in_a_file_s_place_does_not_hold_up_the_watch(stage: Stage, tmp_path: Path) -> None:
    secret = stage.folder / "secrets/chat/env"
    plan = stage.folder / "instances/chat/current/plan.json"
    for path, read in ((secret, read_key), (plan, read_launch)):
        path.unlink()
        os.mkfifo(path)
        with contextlib.suppress(EngineError):
            assert read(stage.folder, "chat") is None
    with pytest.raises(EngineError, match=r"cannot read how chat was launched.*pipe, not a file"):
        read_launch(stage.folder, "chat")
    secret.unlink()
    secret.write_bytes(b"VLLM_API_KEY=\xff\n")
    assert read_key(stage.folder, "chat") is None
    settings = tmp_path / "settings.json"
    os.mkfifo(settings)
    with pytest.raises(EngineError, match="cannot read its settings"):
        read_settings(settings)


def test_a_unit_of_which_systemd_says_nothing_is_not_taken_for_stopped(tmp_path: Path) -> None:
    for said in ("", "Running in chroot, ignoring command 'show'\n"):
        host = Host("chat", tmp_path, run=lambda _argv, _limit, said=said: Answer(0, said))
        with pytest.raises(EngineError, match=r"^Cannot tell whether vllm-chat\.service runs: .*\.$"):
            host.unit_state()


def test_a_length_that_is_none_is_not_gone_by() -> None:
    for length in ("4096", -1, None):
        assert launch_of({**PLAN, "max_model_len": length}, 1).max_model_len is None


def test_a_launch_tells_where_it_answers_and_how_large_its_steps_are(stage: Stage) -> None:
    launch = read_launch(stage.folder, "chat")
    assert (launch.generation, launch.address, launch.port, launch.model) == (1, "127.0.0.1", 8000, "smol")
    assert (launch.max_model_len, launch.step_tokens, launch.pausable) == (262144, 8192, False)
    whole = launch_of({**PLAN, "argv": ["/m", "--host=::1", "--no-enable-chunked-prefill"]}, 2)
    assert (whole.address, whole.step_tokens) == ("::1", 262144)
    bare = launch_of({"argv": ["/m"], "port": 1, "env": {"VLLM_SERVER_DEV_MODE": "1"}}, None)
    assert (bare.model, bare.step_tokens, bare.max_model_len, bare.pausable) == ("/m", None, None, True)


def test_a_host_without_a_launch_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="deploy the instance"):
        read_launch(tmp_path, "chat")


def test_the_key_comes_from_the_file_of_roots(stage: Stage) -> None:
    assert read_key(stage.folder, "chat") == SECRET
    assert read_key(stage.folder, "other") is None
