"""What the playbooks decide from records, facts and results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from ansible_collections.socle.inference.plugins.filter import deploy, lab

ROOT = Path(__file__).parents[3]
PLAN = {"instance": "chat", "launch_fingerprint": "sha256:a"}


def state(**chat: Any) -> dict[str, Any]:
    return {"instances": {"chat": chat} if chat else {}}


@pytest.mark.parametrize(
    ("known", "generation", "expected"),
    [
        ({}, 1, False),
        ({"fingerprint": "sha256:a", "generation": 1, "deployed": True}, 1, True),
        # It failed at first, and a retry brought it up.
        ({"fingerprint": "sha256:a", "generation": 1, "deployed": False}, 1, False),
        # Restarted as a new generation: a deployment of its own.
        ({"fingerprint": "sha256:a", "generation": 1, "deployed": True}, 2, False),
        ({"fingerprint": "sha256:b", "generation": 1, "deployed": True}, 1, False),
    ],
)
def test_a_deployment_is_recorded_once(known: dict[str, Any], generation: int, expected: bool) -> None:
    assert deploy.deploy_recorded(state(**known), PLAN, generation) is expected


RUNNING = {
    "chat": {"plan": PLAN, "launch_fingerprint": "sha256:a", "unit_active": "active"},
    "odd": {"plan": None, "launch_fingerprint": None, "unit_active": "active"},
}
WHEN = "2026-11-30T09:00:00Z"


@pytest.mark.parametrize(
    ("known", "choice", "expected"),
    [
        ({}, "missing", ["chat"]),
        ({"benchmarked": {"sha256:a": WHEN}, "benchmark": {"B1": {}}}, "missing", []),
        # It was measured and failed: production is not loaded again in every run.
        ({"benchmarked": {"sha256:a": WHEN}, "benchmark": {}}, "missing", []),
        ({"benchmarked": {}, "benchmark": {}}, "missing", ["chat"]),
        # Figures of another launch say nothing about this one.
        ({"benchmarked": {"sha256:b": WHEN}, "benchmark": {"B1": {}}}, "missing", ["chat"]),
        ({"benchmarked": {"sha256:a": WHEN}}, "always", ["chat"]),
        ({}, "never", []),
    ],
)
def test_a_launch_is_measured_once_unless_asked(known: dict[str, Any], choice: str, expected: list[str]) -> None:
    assert deploy.benchmark_due(state(**known), RUNNING, choice) == expected


def test_what_does_not_run_is_measured_only_when_asked() -> None:
    stopped = {"chat": {**RUNNING["chat"], "unit_active": "inactive"}}
    assert deploy.benchmark_due(state(), stopped) == []
    assert deploy.benchmark_due(state(), stopped, "always") == ["chat"]


@pytest.mark.parametrize(
    ("declared", "managed", "unmanaged"),
    [({"chat": {}, "new": {}}, ["chat"], ["odd"]), ({}, [], ["chat", "odd"]), (None, [], ["chat", "odd"])],
)
def test_only_instances_of_the_inventory_are_worked_on(
    declared: dict[str, Any] | None, managed: list[str], unmanaged: list[str]
) -> None:
    assert deploy.managed_instances(RUNNING, declared) == {name: RUNNING[name] for name in managed}
    assert deploy.unmanaged_instances(RUNNING, declared) == unmanaged


def play(name: str) -> dict[str, Any]:
    (found,) = yaml.safe_load((ROOT / f"playbooks/{name}.yml").read_text())
    return found


@pytest.mark.parametrize(("name", "over"), [("accept", "socle_managed"), ("benchmark", "socle_due")])
def test_playbooks_work_on_what_the_inventory_names_and_name_the_others(name: str, over: str) -> None:
    found = play(name)
    (loop,) = [task["loop"] for task in found["tasks"] if "loop" in task]
    assert over in loop
    assert "managed_instances(socle_declared" in found["vars"]["socle_managed"]
    assert "socle_managed" in found["vars"].get("socle_due", "socle_managed")
    shown = next(task for task in found["tasks"] if "socle.inference.show" in task)
    assert shown["when"] == "socle_unmanaged | length > 0"


@pytest.mark.parametrize("name", ["accept", "benchmark"])
@pytest.mark.parametrize(("location", "becomes"), [(None, True), ("host", True), ("controller", False)])
def test_a_probe_on_the_controller_needs_no_root(name: str, location: str | None, becomes: bool) -> None:
    tasks = yaml.safe_load((ROOT / f"playbooks/tasks/{name}_instance.yml").read_text())
    (probe,) = [task for task in tasks if "delegate_to" in task]
    given = {"inventory_hostname": "gpu-1", **({"probe_location": location} if location else {})}
    assert jinja2.Template(probe["become"]).render(given) == str(becomes)
    assert jinja2.Template(probe["delegate_to"]).render(given) == ("gpu-1" if becomes else "localhost")


HOSTS = """
all:
  vars: {ansible_connection: local, ansible_become: false, ansible_python_interpreter: "{{ ansible_playbook_python }}"}
  hosts: {host-a: {}, host-b: {}}
"""


def run_deploy(tmp_path: Path, hosts: str, *arguments: str) -> str:
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory/hosts.yml").write_text(hosts)
    (tmp_path / "ansible.cfg").write_text("[defaults]\n")
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("ansible-playbook")),
            *["socle.inference.deploy", "-i", str(tmp_path / "inventory"), *arguments],
        ],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
            "ANSIBLE_NOCOLOR": "1",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(("arguments", "batches"), [([], 1), (["-e", "socle_serial=1"], 2)])
def test_a_fleet_can_be_deployed_in_batches(tmp_path: Path, arguments: list[str], batches: int) -> None:
    output = run_deploy(tmp_path, HOSTS, *arguments)
    assert output.count("PLAY [Deploy every instance]") == batches, output
    assert "socle_max_fail_percentage" in play("deploy")["max_fail_percentage"]


def test_facts_from_a_file_are_refused_in_one_sentence(tmp_path: Path) -> None:
    facts = {"schema": "socle.gpu_facts/2", "host_class": "cpu", "gpus": [], "engine": {"name": None}}
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    hosts = HOSTS.replace("host-b: {}", "host-b: {vllm_instances: {chat: {model: smollm2-135m-instruct}}}")
    output = run_deploy(tmp_path, hosts, "--check", "-e", f"socle_facts_file={tmp_path}/facts.json")
    assert "host-b is not deployed from the facts in" in output
    assert "remove socle_facts_file. Nothing was changed." in output
    assert "is undefined" not in output
    assert "TASK [Collect" not in output


def test_an_unknown_choice_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'sometimes'; use one of missing, always, never"):
        deploy.benchmark_due(state(), RUNNING, "sometimes")


def test_a_refusal_lists_what_failed_and_what_to_do() -> None:
    checks = [
        {"id": "chat", "status": "passed", "expected": "a", "found": "a", "remedy": None},
        {"id": "api_key", "status": "failed", "expected": "401", "found": "200", "remedy": "Set the key."},
        {"id": "metrics", "status": "error", "expected": "names", "found": "no answer", "remedy": None},
    ]
    assert deploy.acceptance_failure({"checks": checks}).splitlines() == [
        "api_key: expected 401, found 200. Set the key.",
        "metrics: expected names, found no answer.",
    ]
    assert deploy.acceptance_failure({"checks": []})


def test_a_build_is_announced_with_size_and_time() -> None:
    step = {"name": "engine image", "gib": 9.5, "minutes": 3.0}
    plan = {"build": [step], "gib": 9.5, "minutes": 3.2, "containers": ["create socle-lab-hub"]}
    assert lab.lab_expectation(plan, "/cache") == [
        "Building engine image: up to 9.5 GiB below /cache, about 3 min on two cores.",
        "Then: create socle-lab-hub.",
    ]
    assert lab.lab_expectation({"build": [], "containers": []}, "/cache") == []


def test_a_build_as_root_gets_the_users_pip_settings_and_proxies_only(tmp_path: Path) -> None:
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").touch()
    found = {"PIP_FIND_LINKS": "/wheels", "https_proxy": "http://proxy.example:1", "AWS_SECRET_KEY": "x", "HOME": "/h"}
    found["PIP_INDEX_URL"] = "https://user:secret@index.example/simple"
    assert lab.build_environment(str(tmp_path), found) == {
        "PIP_FIND_LINKS": "/wheels",
        "https_proxy": "http://proxy.example:1",
        "PIP_CONFIG_FILE": str(tmp_path / ".config/pip/pip.conf"),
    }


@pytest.mark.parametrize(
    ("launch", "status"),
    [
        ({"generation": 4, "failed_before": None}, "accepted"),
        # It is accepted anew, and marked as such.
        ({"generation": 5, "failed_before": None}, "started"),
        ({"generation": 4, "failed_before": {"generation": 4}}, "started"),
    ],
)
def test_an_instance_that_was_restarted_is_known_without_asking(launch: dict[str, Any], status: str) -> None:
    known = {"generation": 4, "status": "accepted", "plan": PLAN, "engine": "podman", "unit_active": "inactive"}
    found = deploy.restarted_instance(known, launch)
    assert (found["generation"], found["status"], found["unit_active"]) == (launch["generation"], status, "active")
    assert (found["plan"], found["engine"]) == (PLAN, "podman")


def test_a_deployment_is_one_line() -> None:
    launch = {"action": "restarted", "generation": 4}
    line = deploy.deploy_line({"launch": launch, "ready": {"ready_s": 31.6}}, PLAN)
    assert line == "chat: restarted, generation 4, ready after 32 s"
    unchanged = {"launch": {"action": "none", "generation": 4}, "ready": {"ready_s": 31.6}}
    assert deploy.deploy_line(unchanged, PLAN) == "chat: unchanged, generation 4"
    guessed = {
        "launch": {"action": "would_restart", "generation": None},
        "ready": {"ready": False, "reason": "new key"},
    }
    assert deploy.deploy_line(guessed, PLAN) == "chat: would restart (new key)"


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("passed", "accepted by suite smoke: 10 passed, 1 skipped"),
        ("failed", "not accepted by suite smoke: 10 passed, 1 skipped"),
        ("degraded", "accepted, but degraded by suite smoke"),
        ("error", "not judged by suite smoke"),
        (None, "suite smoke would run 1 checks"),
    ],
)
def test_an_acceptance_is_one_line(verdict: str | None, words: str) -> None:
    found = {"suite": "smoke", "verdict": verdict, "passed": 10, "failed": 0, "skipped": 1, "errors": 0, "checks": [{}]}
    assert deploy.acceptance_line(found).startswith(words)


def test_a_benchmark_is_a_line_for_each_workload() -> None:
    figures = {"n": 3, "p50": 31.42, "spread_pct": 4.4}
    found = {
        "workloads": {"B2": {"decode_tok_per_s": figures}, "B1": {"status": "failed", "faults": ["8 of 32 tokens"]}}
    }
    assert deploy.benchmark_lines(found, "gpu-1 chat") == [
        "gpu-1 chat B1: failed; 8 of 32 tokens",
        "gpu-1 chat B2: 31.4 tok/s (spread 4 %)",
    ]


def test_what_one_run_asked_for_is_recorded_until_the_inventory_has_it() -> None:
    overridden = {**PLAN, "image": "x:2", "image_source": {"value": "x:2", "origin": "variant redeploy"}}
    known = {"fingerprint": "sha256:a", "generation": 1, "deployed": True}
    assert deploy.deploy_recorded(state(**known), overridden, 1) is False
    known["overrides"] = {"image": "x:2"}
    assert deploy.deploy_recorded(state(**known), overridden, 1) is True
    assert deploy.deploy_recorded(state(**known), PLAN, 1) is False
    result = {"launch": {"action": "started", "restores": 3, "drain": None}, "ready": {}}
    assert deploy.deploy_results(result, overridden)["overrides"] == {"image": "x:2"}
    assert deploy.deploy_results(result)["restores"] == 3


BACK = {"generation": 5, "restores": 3, "action": "started", "verified": False, "running": True, "reason": None}


@pytest.mark.parametrize(
    ("back", "more", "text"),
    [
        (BACK, (), "chat runs generation 5, which is generation 3 anew, and is accepted by suite smoke."),
        ({**BACK, "restores": 5}, (), "chat runs generation 5, and is accepted by suite smoke."),
        ({**BACK, "verified": True}, (), "chat runs generation 5, which is accepted, as before."),
        ({**BACK, "action": "would_start"}, (), "chat: generation 3 would come back as generation 5."),
        (
            {"restores": None, "reason": "No generation of chat is accepted that could come back", "running": False},
            (),
            "No generation of chat is accepted that could come back: chat is stopped.",
        ),
        (
            {"restores": None, "reason": "None is accepted", "running": True, "generation": 2},
            (),
            "None is accepted: chat goes on with generation 2.",
        ),
        (
            BACK,
            ("vllm-chat.service did not become ready (SOC-D21)", True),
            "Going back to generation 3 of chat failed too: vllm-chat.service did not become ready (SOC-D21)."
            " chat is stopped.",
        ),
        (
            BACK,
            ("the probe broke.", True, True),
            "Going back to generation 3 of chat failed too: the probe broke. chat runs generation 5, unproven.",
        ),
        (
            {},
            ("its image is gone.", True),
            "Going back to an earlier generation of chat failed too: its image is gone. chat is stopped.",
        ),
        ({}, ("its image is gone.", False), "An earlier generation of chat was not brought back: its image is gone."),
    ],
)
def test_the_story_of_a_rollback(back: dict[str, Any], more: tuple[Any, ...], text: str) -> None:
    story = deploy.rollback_story(back, "chat", *more)
    assert (story["text"], story["failed"], story["reason"]) == (text, bool(more), more[0] if more else None)


def test_an_instance_that_no_host_has_is_named() -> None:
    hostvars = {"a": {"vllm_instances": {"chat": {}}}, "b": {}, "c": {"vllm_instances": None}}
    assert deploy.unknown_instances(["chat", "chatt"], hostvars, ["a", "b", "c"]) == ["chatt"]
    assert deploy.unknown_instances("chat", hostvars, ["a"]) == ["chat"]
