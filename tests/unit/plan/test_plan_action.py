# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vllm_plan as a playbook sees it: run by Ansible, in check mode and not, with a vaulted key."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.action import vllm_plan
from ansible_collections.socle.inference.plugins.module_utils._engine import unit
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError, PlanError

from tests.support.playbook import play

ROOT = Path(__file__).resolve().parents[3]
KEY = "sk-very-secret-0815"

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - socle.inference.vllm_plan:
        instances: "{{ vllm_instances }}"
        facts_file: "{{ inventory_dir }}/facts.json"
      register: planned
    - socle.inference.vllm_plan:
        seal:
          plan: "{{ planned.plans.chat }}"
          image_digest: "sha256:{{ 'a' * 64 }}"
          content_id: "sha256:{{ 'b' * 64 }}"
          model_path: /var/lib/socle/models/m
          secrets_hmac: "hmac-sha256:{{ 'c' * 64 }}"
      register: sealed
    - ansible.builtin.debug:
        msg: "{{ planned.plans.chat | socle.inference.plan_table }}"
"""


def ansible(
    folder: Path, *arguments: str, playbook: str = "play.yml", host: str | None = "gpu1"
) -> tuple[int, dict[str, Any], str]:
    """(return code, results by task number, all output)"""
    words = [playbook, "-i", "hosts.yml", "--vault-password-file", "vault.pass", *arguments]
    done, shown = play(folder, *words, timeout_s=120)
    tasks = [task["hosts"][host] for task in shown] if host else []
    return done.returncode, dict(enumerate(tasks)), done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path, facts: Any) -> Path:
    (tmp_path / "vault.pass").write_text("pass\n", encoding="utf-8")
    (tmp_path / "ansible.cfg").write_text("[defaults]\n", encoding="utf-8")
    (tmp_path / "play.yml").write_text(PLAY, encoding="utf-8")
    (tmp_path / "facts.json").write_text(json.dumps({"gpu_facts": facts["cpu"]}), encoding="utf-8")
    vault = subprocess.run(
        [
            str(Path(sys.executable).with_name("ansible-vault")),
            *["encrypt_string", "--vault-password-file", str(tmp_path / "vault.pass"), KEY],
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    indented = "\n".join(f"                {line.strip()}" for line in vault.strip().splitlines()[1:])
    (tmp_path / "hosts.yml").write_text(
        f"""
cpu:
  hosts:
    gpu1:
      # Nothing listens there: a plan must not need the host.
      ansible_host: 192.0.2.1
      vllm_instances:
        chat:
          model: smollm2-135m-instruct
          port: "{{{{ 8000 + 3 }}}}"
          flags: {{default-chat-template-kwargs: {{text: "100% {{ $HOME"}}}}
          api_key: !vault |
{indented}
""",
        encoding="utf-8",
    )
    return tmp_path


def test_plan_and_seal_in_check_mode_and_not(folder: Path) -> None:
    outcomes = []
    for arguments in ([], ["--check", "--diff"]):
        code, tasks, output = ansible(folder, *arguments, "-vv")
        assert code == 0, output
        assert KEY not in output
        plan = tasks[0]["plans"]["chat"]
        assert (tasks[0]["changed"], tasks[1]["changed"]) == (False, False)
        assert (plan["port"], plan["api_key_required"], plan["host"]) == (8003, True, "gpu1")
        assert '{"text":"100% { $HOME"}' in plan["argv"]
        assert tasks[1]["plan"]["sealed"] is True
        outcomes.append((plan, tasks[1]["plan"]))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("state_dir", ["relative", "/a b", "/a:b", "/a%n", "/a$b", "/a,b", "/a;b", "/a/../b"])
def test_a_state_folder_that_a_unit_cannot_mount_is_refused(state_dir: str) -> None:
    with pytest.raises(PlanError) as refused:
        vllm_plan._state_dir(state_dir)
    assert repr(state_dir) in refused.value.message
    assert "socle_state_dir (option state_dir) is " in refused.value.message
    assert "which a unit cannot mount from" in refused.value.message
    with pytest.raises(EngineError):
        # Planning and the unit must agree.
        unit.checked_path(state_dir, "mount source")


def test_refusal_names_everything_but_the_key(folder: Path) -> None:
    hosts = (folder / "hosts.yml").read_text(encoding="utf-8")
    hosts = hosts.replace("model: smollm2-135m-instruct", "model: smollm2").replace("8000 + 3", "800000")
    (folder / "hosts.yml").write_text(hosts, encoding="utf-8")
    code, tasks, output = ansible(folder)
    assert code != 0
    assert tasks[0]["failed"] is True
    assert len(tasks[0]["errors"]) == 1 and "800000" in tasks[0]["msg"]
    assert KEY not in output


@pytest.mark.parametrize("playbook", ["plan", "deploy", "accept", "benchmark"])
def test_a_host_whose_instances_cannot_be_evaluated_fails_alone_and_is_named(folder: Path, playbook: str) -> None:
    (folder / "hosts.yml").write_text(
        """
cpu:
  vars:
    ansible_connection: local
    gpu_facts_file: "{{ inventory_dir }}/facts.json"
    base: {chat: {model: smollm2-135m-instruct}}
    socle_state_dir: "{{ inventory_dir }}/state"
  hosts:
    absent: {}
    none: {vllm_instances: null}
    good: {vllm_instances: "{{ base }}"}
    undefined: {vllm_instances: "{{ nope }}"}
    misspelt: {vllm_instances: "{{ base | combine(typoo) }}"}
    number: {vllm_instances: 5}
    zero: {vllm_instances: 0}
""",
        encoding="utf-8",
    )
    # What follows the check needs a host to work on.
    limit = {"plan": "all", "deploy": "all:!good"}.get(playbook, "all:!good:!absent:!none")
    code, _tasks, output = ansible(
        folder,
        "-l",
        limit,
        "-e",
        "ansible_become=false",
        playbook=str(ROOT / "playbooks" / f"{playbook}.yml"),
        host=None,
    )
    assert code == 2, output
    stats = json.JSONDecoder().raw_decode(output[output.index("{") :])[0]["stats"]
    failed = {name for name, counts in stats.items() if counts["failures"]}
    assert failed == {"undefined", "misspelt", "number", "zero"}
    for name in failed:
        assert f"vllm_instances of {name} cannot be used" in output
    assert "'typoo' is undefined" in output
    if playbook == "plan":
        assert output.count("smollm2-135m-instruct on cpu") == 1, "only one of them has an instance"


def test_findings_reach_whoever_plans_and_a_site_passes_them_over(folder: Path) -> None:
    (folder / "hosts.yml").write_text(
        """
cpu:
  vars:
    gpu_facts_file: "{{ inventory_dir }}/facts.json"
    misspelt: {max-num-sekvs: 4}
    vllm_flags_group: "{{ misspelt }}"
    vllm_instances: {chat: {model: smollm2-135m-instruct}}
  hosts:
    refused: {}
    unknown: {vllm_rules_ignored: {SOC-F77: none}}
    patched: {vllm_rules_ignored: {SOC-F01: "{{ 'our own image' }}"}, socle_notes: true}
    undefined: {vllm_rules_ignored: "{{ nope }}"}
""",
        encoding="utf-8",
    )
    code, _tasks, output = ansible(
        folder, "-e", "ansible_become=false", playbook=str(ROOT / "playbooks/plan.yml"), host=None
    )
    assert code == 2, output
    stats = json.JSONDecoder().raw_decode(output[output.index('{\n    "custom_stats"') :])[0]["stats"]
    assert {name for name, counts in stats.items() if counts["failures"]} == {"refused", "unknown", "undefined"}
    assert "vllm_instances.chat (max-num-sekvs by vllm_flags_group): Neither vLLM" in output
    assert "(SOC-F01, which vllm_rules_ignored can pass over with a reason)" in output
    assert "vllm_rules_ignored names 'SOC-F77', which is the id of no rule" in output
    assert "vllm_rules_ignored of undefined cannot be evaluated" in output
    told = " ".join(output.split())
    assert "warning SOC-F01: " in told and "(passed over by vllm_rules_ignored: our own image)" in told
    assert "    SOC-R58: " in output, "notes were asked for"


def test_a_deployment_on_record_calibrates_the_next_plan(folder: Path) -> None:
    (folder / "zz_records.yml").write_text("plugin: socle.inference.records\n", encoding="utf-8")
    (folder / "hosts.yml").write_text(
        f"""
a800_pcie_80g:
  vars:
    ansible_connection: local
    ansible_python_interpreter: "{{{{ ansible_playbook_python }}}}"
    gpu_facts_file: {ROOT}/inventories/example/.facts/a800-1.json
    vllm_instances: {{agents: {{model: qwen3.8-27b, gpus: [0, 1]}}}}
  hosts:
    gpu1: {{}}
    gpu2: {{}}
""",
        encoding="utf-8",
    )
    (folder / "play.yml").write_text(
        """
- hosts: gpu1
  gather_facts: false
  tasks:
    - socle.inference.vllm_plan:
        facts_file: "{{ gpu_facts_file }}"
      register: planned
    - socle.inference.record:
        kind: deploy
        instance: agents
        plan: "{{ planned.plans.agents }}"
        started: "2026-11-30T09:00:00Z"
        finished: "2026-11-30T09:05:00Z"
        verdict: passed
        results:
          max_model_len: 262144
          milestones: {weights: {gib: 26.08}, kv_memory: {gib: 45.5}}
        state_dir: "{{ inventory_dir }}/state"
""",
        encoding="utf-8",
    )
    inventory = ["-i", "zz_records.yml"]
    code, tasks, output = ansible(folder, *inventory)
    assert code == 0, output
    assert tasks[1]["record"]["results"]["calibration"]["weights_bytes"] == int(26.08 * 1024**3)
    plan = str(ROOT / "playbooks/plan.yml")
    code, _tasks, output = ansible(folder, *inventory, "-e", "ansible_become=false", playbook=plan, host=None)
    assert code == 0, output
    # On both: the second has the class of the first.
    text = " ".join(output.split())
    assert text.count("GiB (as a start logged), KV cache 45.50 GiB (give or take 1.00), headroom") == 2, output
    assert output.count("measured on this host class") == 2
