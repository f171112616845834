# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbooks do when a launch fails: the real tasks and filters, with modules that answer by script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]

MODULE = """#!/usr/bin/python
import json
from ansible.module_utils.basic import AnsibleModule
from pathlib import Path

def main():
    spec = {name: {"type": "raw"} for name in json.loads(OPTIONS)}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    given = {name: value for name, value in module.params.items() if value is not None}
    plan = given.get("plan") or {}
    instance = given.get("instance") or plan.get("instance") or (given.get("served_names") or ["?"])[0]
    folder = Path(FOLDER)
    asked = given.get("mark") or given.get("state")
    kind = NAME + ("_" + asked if asked else "")
    calls = folder / (instance + ".calls")
    earlier = calls.read_text() if calls.exists() else ""
    calls.write_text(earlier + json.dumps([kind, given], default=str) + "\\n")
    answers = json.loads((folder / "answers.json").read_text()).get(instance, {}).get(kind, [{}])
    made = sum(json.loads(line)[0] == kind for line in earlier.splitlines())
    answer = answers[min(made, len(answers) - 1)]
    if answer.get("failed"):
        module.fail_json(**answer)
    module.exit_json(changed=False, **answer)

main()
"""

STUBS = {
    "vllm_launch": "plan facts retry restart idle_s state_dir instance mark generation reason state",
    "vllm_ready": "plan api_key timeout_s started generation state_dir",
    "vllm_rollback": "instance generation automatic retry facts idle_s state_dir",
    "vllm_acceptance": "base_url served_names max_model_len vllm_version model_root plan since on_host"
    " api_key_required api_key"
    " suite",
    "record": "kind instance plan generation started finished verdict environment results secrets state_dir"
    " environment_fingerprint",
    "vllm_instances_info": "state_dir",
}

GAVE_UP = {
    "failed": True,
    "msg": "vllm-x.service did not become ready, it ran out of memory - lower it (SOC-D20)",
    "diagnosis": {"id": "SOC-D20"},
    "started": "2026-11-30T09:00:00Z",
    "finished": "2026-11-30T09:00:09Z",
}
SERVES = {"ready": True, "ready_s": 9.0, "started": "2026-11-30T09:01:00Z", "finished": "2026-11-30T09:01:09Z"}
STARTED = {"action": "restarted", "generation": 2, "starting": True}
TIMES = {"started": "2026-11-30T09:02:00Z", "finished": "2026-11-30T09:02:09Z"}
RIGHT = {"acceptance": {"verdict": "passed", "suite": "smoke", "passed": 1, "failed": 0, "skipped": 0, "errors": 0}}
CHECK = {"id": "chat", "status": "failed", "expected": "Paris", "found": "!!!!", "remedy": None}
WRONG = {"acceptance": {**RIGHT["acceptance"], "verdict": "failed", "failed": 1, "checks": [CHECK]}}
RIGHT, WRONG = {**RIGHT, **TIMES}, {**WRONG, **TIMES}


def plan(instance: str) -> dict[str, Any]:
    return {
        "instance": instance,
        "engine": "podman",
        "port": 8000,
        "sources": {"host": {"value": "127.0.0.1", "origin": "x"}},
        "served_names": [instance],
        "max_model_len": 4096,
        "vllm_version": "0.32.0",
        "model": {"container_path": "/models/x"},
        "api_key_required": False,
        "launch_fingerprint": "sha256:b",
    }


def back(instance: str, **changes: Any) -> dict[str, Any]:
    found = {"generation": 3, "restores": 1, "action": "started", "starting": True, "verified": False, "running": True}
    return {**found, "reason": None, "plan": plan(instance), **changes}


ANSWERS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "good": {"vllm_ready": [SERVES]},
    # Those that are accepted by the same play.
    "early": {"vllm_ready": [SERVES]},
    "unprobed": {"vllm_ready": [SERVES]},
    "running": {"vllm_launch": [{"action": "none", "generation": 2, "starting": False}], "vllm_ready": [SERVES]},
    "late": {"vllm_ready": [GAVE_UP, SERVES], "vllm_rollback": [back("late")], "vllm_acceptance": [RIGHT]},
    "first": {
        "vllm_ready": [GAVE_UP],
        "vllm_rollback": [back("first", restores=None, running=False, reason="No generation of first is accepted")],
    },
    "twice": {"vllm_ready": [GAVE_UP, {**GAVE_UP, "msg": "no GPU (SOC-D40)"}], "vllm_rollback": [back("twice")]},
    "gone": {"vllm_ready": [GAVE_UP], "vllm_rollback": [{"failed": True, "msg": "Its image is gone."}]},
    "wrongtwice": {
        "vllm_ready": [GAVE_UP, SERVES],
        "vllm_rollback": [back("wrongtwice")],
        "vllm_acceptance": [WRONG],
    },
    "refused": {
        "vllm_launch": [{"failed": True, "msg": "Will not start refused again."}],
        "vllm_rollback": [back("refused", action="none", verified=True, starting=False)],
    },
    "idle": {
        "vllm_launch": [{"action": "none", "generation": 2, "starting": False}],
        "vllm_ready": [{**TIMES, "failed": True, "msg": "It does not answer."}],
    },
    "off": {"vllm_ready": [GAVE_UP]},
    # Those that are accepted.
    "wrong": {
        "vllm_acceptance": [WRONG, RIGHT],
        "vllm_rollback": [back("wrong")],
        "vllm_ready": [SERVES],
    },
    "wrongoff": {"vllm_acceptance": [WRONG]},
}
ACCEPTED = ("wrong", "wrongoff")
AT_ONCE = ("early", "unprobed", "running")

PROBE = """
- shell: echo '["probe", {}]' >>FOLDER/{{ inventory_hostname }}.calls; test {{ inventory_hostname }} != unprobed
  when: socle_accept_at_once | default(false)
"""
"""It is on record only where it is prepared ahead of an acceptance, and cannot be on one host."""

PLAY = """
- hosts: all
  gather_facts: false
  vars:
    vllm_instances: "{{ {inventory_hostname: {}} }}"
    socle_facts: {gpu_facts: {gpus: []}}
    socle_collected: {socle_state: {instances: {}}}
    probe_python: "{{ ansible_playbook_python }}"
    socle_rollback: "{{ inventory_hostname not in ['off', 'wrongoff'] }}"
    socle_instance: {key: "{{ inventory_hostname }}", value: "{{ found }}"}
    found: {plan: "{{ plan }}", generation: 2, engine: podman, unit_active: active, status: started}
  tasks:
    - block:
        - include_tasks: "{{ tasks }}/{{ 'accept' if inventory_hostname in accepted else 'start' }}_instance.yml"
          vars: {socle_start_plan: "{{ plan }}"}
      rescue:
        - copy: {content: "{{ ansible_failed_result.msg }}", dest: "{{ folder }}/{{ inventory_hostname }}.said"}
"""


def scripted(folder: Path, answers: dict[str, Any], names: list[str]) -> Path:
    """A copy of the collection in which the modules *names* answer by script; the folder of what they are asked."""
    collection = folder / "collections/ansible_collections/socle/inference"
    for kind in ("modules", "action"):
        (collection / "plugins" / kind).mkdir(parents=True)
        for path in (ROOT / "plugins" / kind).glob("*.py"):
            if path.stem not in names:
                (collection / "plugins" / kind / path.name).symlink_to(path)
    for path in (ROOT / "plugins").iterdir():
        if path.name not in ("modules", "action", "__pycache__"):
            (collection / "plugins" / path.name).symlink_to(path)
    (collection / "roles/probe/tasks").mkdir(parents=True)
    (collection / "roles/vllm_service").symlink_to(ROOT / "roles/vllm_service")
    for name in ("galaxy.yml", "meta", "playbooks", "profiles"):
        (collection / name).symlink_to(ROOT / name)
    told = folder / "answers"
    told.mkdir()
    (collection / "roles/probe/tasks/main.yml").write_text(PROBE.replace("FOLDER", str(told)))
    (told / "answers.json").write_text(json.dumps(answers))
    for name in names:
        text = MODULE.replace("OPTIONS", repr(json.dumps(STUBS[name].split())))
        text = text.replace("FOLDER", repr(str(told))).replace("NAME", repr(name))
        (collection / "plugins/modules" / f"{name}.py").write_text(text)
    return told


def play(folder: Path, hosts: dict[str, Any], *words: str) -> str:
    """Output of ansible-playbook with the collection in *folder*."""
    variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    (folder / "inventory").mkdir(exist_ok=True)
    (folder / "inventory/hosts.yml").write_text(yaml.safe_dump({"all": {"vars": variables, "hosts": hosts}}))
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("ansible-playbook")),
            *["-i", str(folder / "inventory"), *words],
        ],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "ANSIBLE_COLLECTIONS_PATH": f"{folder}/collections",
            "ANSIBLE_NOCOLOR": "1",
            # As ansible.cfg of the project has it.
            "ANSIBLE_PIPELINING": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All scenarios in one play, a host for each; what each said, and which modules it called."""
    folder = tmp_path_factory.mktemp("way_back")
    for given in ANSWERS.values():
        given.setdefault("vllm_launch", [STARTED])
    told = scripted(folder, ANSWERS, [name for name in STUBS if name != "vllm_instances_info"])
    (folder / "play.yml").write_text(PLAY)
    extra = {"tasks": str(ROOT / "playbooks/tasks"), "folder": str(told), "accepted": list(ACCEPTED)}
    hosts = {name: {"plan": plan(name), "socle_accept_at_once": name in AT_ONCE} for name in ANSWERS}
    output = play(folder, hosts, str(folder / "play.yml"), "-e", json.dumps(extra))
    (told / "output").write_text(output)
    return told


def said(run: Path, instance: str) -> str | None:
    path = run / f"{instance}.said"
    return path.read_text().strip() if path.exists() else None


def calls(run: Path, instance: str) -> list[tuple[str, dict[str, Any]]]:
    return [tuple(json.loads(line)) for line in (run / f"{instance}.calls").read_text().splitlines()]


def names(run: Path, instance: str) -> list[str]:
    """The modules that were called, records with kind and verdict."""
    return [f"{given['kind']} {given['verdict']}" if name == "record" else name for name, given in calls(run, instance)]


FAILED = GAVE_UP["msg"]


@pytest.mark.parametrize(
    ("instance", "words"),
    [
        ("good", None),
        ("unprobed", None),
        ("late", f"{FAILED} late runs generation 3, which is generation 1 anew, and is accepted by suite smoke."),
        ("first", f"{FAILED} No generation of first is accepted: first is stopped."),
        (
            "twice",
            f"{FAILED} Going back to generation 1 of twice failed too: no GPU (SOC-D40). twice is stopped.",
        ),
        (
            "gone",
            f"{FAILED} Going back to an earlier generation of gone failed too: Its image is gone. gone is stopped.",
        ),
        (
            "wrongtwice",
            f"{FAILED} Going back to generation 1 of wrongtwice failed too: chat: expected Paris, found !!!!."
            " wrongtwice is stopped.",
        ),
        ("refused", "Will not start refused again. refused runs generation 3, which is accepted, as before."),
        ("idle", "It does not answer."),
        ("off", FAILED),
        (
            "wrong",
            "wrong is not accepted. chat: expected Paris, found !!!!. wrong runs generation 3, which is generation 1"
            " anew, and is accepted by suite smoke.",
        ),
        ("wrongoff", "wrongoff is not accepted. chat: expected Paris, found !!!!."),
    ],
)
def test_a_run_that_fails_says_what_failed_and_what_runs(run: Path, instance: str, words: str | None) -> None:
    assert said(run, instance) == words, (run / "output").read_text()[-5000:]


BROUGHT_BACK = ["vllm_rollback", "vllm_ready", "deploy passed", "vllm_acceptance", "acceptance passed"]


@pytest.mark.parametrize(
    ("instance", "called"),
    [
        ("good", ["vllm_launch", "vllm_ready", "deploy passed"]),
        # The probe is prepared while the engine starts, and if it cannot be, that is no failure of the launch.
        ("early", ["vllm_launch", "probe", "vllm_ready", "deploy passed"]),
        ("unprobed", ["vllm_launch", "probe", "vllm_ready", "deploy passed"]),
        ("running", ["vllm_launch", "vllm_ready", "deploy passed"]),
        (
            "late",
            [
                *["vllm_launch", "vllm_ready", "vllm_launch_failed", "deploy failed"],
                *BROUGHT_BACK,
                "vllm_launch_accepted",
            ],
        ),
        ("first", ["vllm_launch", "vllm_ready", "vllm_launch_failed", "deploy failed", "vllm_rollback"]),
        (
            "twice",
            [
                *["vllm_launch", "vllm_ready", "vllm_launch_failed", "deploy failed"],
                *["vllm_rollback", "vllm_ready", "deploy failed", "vllm_launch_failed"],
            ],
        ),
        (
            "wrongtwice",
            [
                *["vllm_launch", "vllm_ready", "vllm_launch_failed", "deploy failed"],
                *["vllm_rollback", "vllm_ready", "deploy passed", "vllm_acceptance", "acceptance failed"],
                *["vllm_launch_failed", "vllm_launch_stopped"],
            ],
        ),
        ("refused", ["vllm_launch", "vllm_rollback"]),
        # Neither stopped nor replaced, and no deployment.
        ("idle", ["vllm_launch", "vllm_ready"]),
        ("off", ["vllm_launch", "vllm_ready", "vllm_launch_failed", "deploy failed"]),
        (
            "wrong",
            ["vllm_acceptance", "acceptance failed", "vllm_launch_failed", *BROUGHT_BACK, "vllm_launch_accepted"],
        ),
        ("wrongoff", ["vllm_acceptance", "acceptance failed", "vllm_launch_failed"]),
    ],
)
def test_each_failure_takes_the_steps_that_it_needs(run: Path, instance: str, called: list[str]) -> None:
    assert names(run, instance) == called


def test_what_comes_back_is_marked_and_recorded_as_the_generation_that_it_is(run: Path) -> None:
    made = calls(run, "late")
    records = [given for name, given in made if name == "record"]
    assert [record.get("generation") for record in records] == [2, 3, 3]
    assert records[1]["results"]["restores"] == 1 and records[0]["results"]["restores"] is None
    marks = {name: given for name, given in made if name.startswith("vllm_launch_")}
    assert marks["vllm_launch_failed"]["generation"] == 2 and marks["vllm_launch_accepted"]["generation"] == 3
    (rollback,) = [given for name, given in made if name == "vllm_rollback"]
    assert rollback["automatic"] in (True, "True") and "generation" not in rollback


def running(*names: str) -> dict[str, Any]:
    found = {"generation": 3, "status": "accepted", "engine": "podman", "unit_active": "active"}
    return {"instances": {name: {**found, "plan": plan(name)} for name in names}}


FACTS = {"socle_facts": {"gpu_facts": {"schema": "socle.gpu_facts/2", "gpus": [], "engine": {"name": "podman"}}}}


class Playbook:
    """A playbook over one host with the instances *late* and *good*."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        answers = {
            "?": {"vllm_instances_info": [running("late", "good", "unmanaged")]},
            "late": {"vllm_rollback": [back("late")], "vllm_ready": [SERVES], "vllm_acceptance": [RIGHT]},
            "good": {"vllm_ready": [SERVES], "vllm_acceptance": [RIGHT]},
        }
        for name in ("late", "good"):
            answers[name]["vllm_launch"] = [{**STARTED, "generation": 3}]
        self.told = scripted(folder, answers, list(STUBS))

    def __call__(self, name: str, *words: str, **extra: Any) -> str:
        model = {"model": "smollm2-135m-instruct"}
        hosts = {"host-a": {"vllm_instances": {"late": model, "good": {**model, "port": 8001}}, "host_class": "cpu"}}
        extra = {**FACTS, "probe_python": sys.executable, **extra}
        said = play(self.folder, hosts, f"socle.inference.{name}", "-e", json.dumps(extra), *words)
        return " ".join(said.split())

    def called(self, instance: str) -> list[str]:
        return names(self.told, instance) if (self.told / f"{instance}.calls").exists() else []


@pytest.fixture
def playbook(tmp_path: Path) -> Playbook:
    return Playbook(tmp_path)


def test_a_person_brings_a_generation_back(playbook: Playbook) -> None:
    output = playbook("rollback", socle_generation=1)
    assert "socle_generation is 1, and host-a has several instances" in output and playbook.called("late") == []
    output = playbook("rollback", socle_instances=["late", "lat"])
    assert "socle_instances names lat, which vllm_instances of no host of this run has" in output
    output = playbook("rollback", "--check", socle_instances=["late"])
    assert "failed=0" in output and playbook.called("late") == ["vllm_rollback"]
    playbook("rollback", "--check", socle_instances=["late"], socle_generation=0)
    assert int(calls(playbook.told, "late")[-1][1]["generation"]) == 0, "not the accepted one"
    output = playbook("rollback", socle_instances=["late"], socle_generation=1)
    assert "host-a late runs generation 3, which is generation 1 anew, and is accepted by suite smoke." in output
    assert playbook.called("late")[2:] == [*BROUGHT_BACK, "vllm_launch_accepted"]
    assert playbook.called("good") == []
    (_checked, _none, (name, given), *_rest) = calls(playbook.told, "late")
    assert name == "vllm_rollback" and int(given["generation"]) == 1 and given["automatic"] in (False, "False")


def test_what_runs_is_restarted_and_accepted(playbook: Playbook) -> None:
    output = playbook("redeploy", socle_instances=["good"])
    assert "failed=0" in output, output[-3000:]
    assert playbook.called("good") == [
        *["vllm_launch", "vllm_ready", "deploy passed"],
        *["vllm_acceptance", "acceptance passed"],
    ]
    launched = calls(playbook.told, "good")[0][1]
    assert launched["restart"] in (True, "True") and launched["plan"]["launch_fingerprint"] == "sha256:b"
    assert playbook.called("late") == []


def test_flags_of_one_run_are_planned_on_top_of_the_inventory(playbook: Playbook) -> None:
    output = playbook("redeploy", socle_instances=["good"], socle_redeploy_flags={"max-num-sequences": 4})
    assert "max-num-sequences" in output and "variant redeploy" in output, output[-3000:]
    assert "vllm_instances.late" not in output
    assert playbook.called("good") == []
