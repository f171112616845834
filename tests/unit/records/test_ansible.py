# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plugins as Ansible runs them, against local hosts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._records.files import write_collected, write_once
from ansible_collections.socle.inference.plugins.module_utils._records.schema import spool_name

from .conftest import ENV1, FP1, ROOT, Ansible, make
from .hostile import JINJA, plant

RECORD = f"""
- name: Record
  hosts: all
  gather_facts: false
  tasks:
    - name: Record
      socle.inference.record:
        kind: "{{{{ kind | default('acceptance') }}}}"
        instance: chat
        started: "2026-11-30T09:00:00Z"
        finished: "2026-11-30T09:01:00Z"
        verdict: passed
        generation: "3"
        plan:
          launch_fingerprint: {FP1}
          environment_fingerprint: {ENV1}
        results: {{passed: 5, text: "the key is s3cret"}}
        secrets: [s3cret]
        state_dir: "{{{{ socle_state_dir }}}}"
      register: result
    - name: Show
      ansible.builtin.copy:
        content: "{{{{ result | to_json }}}}"
        dest: "{{{{ out }}}}/{{{{ inventory_hostname }}}}.json"
        mode: "0600"
      check_mode: false
      delegate_to: localhost
"""

COLLECT = """
- name: Collect
  hosts: all
  gather_facts: false
  tasks:
    - name: Collect
      socle.inference.records_collect:
        state_dir: "{{ socle_state_dir }}"
      register: result
    - name: Show
      ansible.builtin.copy:
        content: "{{ result | to_json }}"
        dest: "{{ out }}/{{ inventory_hostname }}.json"
        mode: "0600"
      check_mode: false
"""


@pytest.fixture
def play(tmp_path: Path, ansible: Ansible) -> Any:
    """Runs a playbook's text; returns the results by host and the output."""

    def run(text: str, *arguments: str | Path) -> tuple[dict[str, Any], str]:
        (tmp_path / "play.yml").write_text(text)
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        done = ansible("ansible-playbook", tmp_path / "play.yml", *arguments, "-e", f"out={out}")
        results = {path.stem: json.loads(path.read_text()) for path in out.iterdir()}
        return results, done.stdout + done.stderr

    return run


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_same_record_is_on_the_host_and_beside_the_inventory(inventory: Path, tmp_path: Path, play: Any) -> None:
    _results, _output = play(RECORD, "-i", inventory, "--check")
    assert not (tmp_path / "state").exists() and not (inventory / ".socle").exists(), "check mode writes nothing"

    results, output = play(RECORD, "-i", inventory, "--limit", "gpu1", "-vvv")
    result = results["gpu1"]
    spooled, collected = Path(result["spool_path"]), Path(result["collected_path"])
    assert result["changed"] is False and result["note"] is None
    assert collected == inventory / ".socle/records/gpu1/chat/20261130T090100Z-acceptance.json"
    assert spooled.parent == tmp_path / "state/gpu1/records"
    assert spooled.read_bytes() == collected.read_bytes()
    assert spooled.stat().st_mode & 0o777 == collected.stat().st_mode & 0o777 == 0o640
    record = json.loads(collected.read_text())
    assert record == result["record"]
    assert record["launch_fingerprint"] == FP1 and record["generation"] == 3
    assert record["results"] == {"passed": 5, "text": "the key is ***"}
    assert f"\nversion: {record['tool']['version']}\n" in (ROOT / "galaxy.yml").read_text()
    assert "s3cret" not in output


def test_a_host_from_no_file_keeps_its_record_in_the_spool(tmp_path: Path, play: Any) -> None:
    extra = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "socle_state_dir": str(tmp_path / "state"),
    }
    results, _output = play(RECORD, "-i", "gpu7,", "-e", json.dumps(extra))
    assert results["gpu7"]["collected_path"] is None and "spool" in results["gpu7"]["note"]
    assert len(files_below(tmp_path / "state/records")) == 1
    assert not list(tmp_path.rglob(".socle"))


def test_collecting_brings_what_is_missing_and_nothing_hostile(inventory: Path, tmp_path: Path, play: Any) -> None:
    spool = tmp_path / "state/gpu1/records"
    good = [make("deploy", 1), make("acceptance", 2), make("incident", 3, instance="../../gpu2/x")]
    for record, text in [*good, make("acceptance", 4, host="gpu2")]:
        write_once(spool, spool_name(record, text), text)
    (spool / "20261130T090000Z-chat-deploy-000000000000.json").write_text("not JSON")

    results, _output = play(COLLECT, "-i", inventory, "--check")
    assert results["gpu1"]["collected"] == 3 and not (inventory / ".socle").exists()
    assert results["gpu1"]["socle_state"]["instances"]["chat"]["accepted"] is True

    results, output = play(COLLECT, "-i", inventory)
    result = results["gpu1"]
    assert (result["collected"], result["known"], result["complete"], result["changed"]) == (3, 3, True, False)
    assert result["passed_over"] == {"of another host": 1, "whose content does not match the name": 1}
    assert output.count("Skipped 2 of") == 1
    assert result["socle_state"]["instances"]["chat"]["accepted"] is True, "the state is that after collecting"
    assert files_below(inventory / ".socle/records") == [
        "gpu1/%2E.%2F..%2Fgpu2%2Fx/20261130T090300Z-incident.json",
        "gpu1/chat/20261130T090100Z-deploy.json",
        "gpu1/chat/20261130T090200Z-acceptance.json",
    ]

    results, _output = play(COLLECT, "-i", inventory)
    assert [results["gpu1"][key] for key in ("received", "collected", "known")] == [0, 0, 3]


@pytest.mark.parametrize("hindrance", ["a file", "a link"])
def test_a_folder_that_takes_no_records_is_a_warning(
    inventory: Path, tmp_path: Path, play: Any, hindrance: str
) -> None:
    for record, text in (make("deploy", 1), make("acceptance", 2)):
        write_once(tmp_path / "state/gpu1/records", spool_name(record, text), text)
    if hindrance == "a file":
        (inventory / ".socle").touch()
    else:
        (tmp_path / "elsewhere").mkdir()
        (inventory / ".socle/records").mkdir(parents=True)
        (inventory / ".socle/records/gpu1").symlink_to(tmp_path / "elsewhere")
    results, output = play(COLLECT, "-i", inventory)
    result = results["gpu1"]
    assert (result["received"], result["collected"]) == (2, 0)
    assert result["socle_state"]["instances"]["chat"]["accepted"] is True, "the state is that of what was received"
    assert "2 records of gpu1 could not be kept beside the inventory" in " ".join(output.split())
    assert files_below(tmp_path) and not (tmp_path / "elsewhere/chat").exists()


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("host_vars/gpu1.yml", "vllm_instances:\n  chat:\n    model: a\n   gpus: [0]\n", "in line 4, column 4: "),
        ("host_vars/gpu1/main.yml", "a: 1\n\tb: 2\n", "in line 2, column 1: "),
        ("group_vars/all/main.yml", "model: {{ name }}\n", "in line 1, column 9: a map where a key is expected"),
        ("group_vars/all", "a: 'b\n", "in line 2, column 1: "),
    ],
)
def test_a_file_of_variables_that_is_no_yaml_is_named(
    inventory: Path, ansible: Ansible, name: str, text: str, told: str
) -> None:
    path = inventory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    # None of these is read by Ansible.
    (path.parent / ".hidden.yml").write_text(text, encoding="utf-8")
    (path.parent / "notes.txt").write_text(text, encoding="utf-8")
    done = ansible("ansible-inventory", "-i", inventory, "--host", "gpu1", check=False)
    shown = "".join((done.stdout + done.stderr).split())
    assert "".join(f"{path} is not valid YAML {told}".split()) in shown
    assert shown.count("isnotvalidYAML") == 1


def test_vaults_tags_and_files_of_nobody_are_no_fault(inventory: Path, ansible: Ansible) -> None:
    for name, text in {
        "host_vars/gpu1.yml": "key: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  3333\nraw: !unsafe '{{ a }}'\n",
        "host_vars/stranger.yml": "a: 'b\n",
        "group_vars/all/vault.yml": "$ANSIBLE_VAULT;1.1;AES256\n33363838\n3937\n",
        "group_vars/all/empty.yml": "",
    }.items():
        (inventory / name).parent.mkdir(parents=True, exist_ok=True)
        (inventory / name).write_text(text, encoding="utf-8")
    done = ansible("ansible-inventory", "-i", inventory, "--host", "gpu1", check=False)
    assert "is not valid YAML" not in " ".join((done.stdout + done.stderr).split())


def test_records_become_variables_and_groups(inventory: Path, ansible: Ansible) -> None:
    root = inventory / ".socle/records"
    figures = {"B1": {"ttft_p50_ms": 12.5, "note": JINJA}}
    write_collected(root, "gpu1", *make("deploy", 1, generation=3))
    write_collected(root, "gpu1", *make("acceptance", 2, results={"passed": 5, "failed": 0, "skipped": 1}))
    write_collected(root, "gpu1", *make("benchmark", 3, results={"workloads": figures}))
    write_collected(root, "gpu2", *make("deploy", 1, host="gpu2"))
    write_collected(root, "stranger", *make("deploy", 1, host="stranger"))

    listed = json.loads(ansible("ansible-inventory", "-i", inventory, "--list").stdout)
    assert listed["accepted"]["hosts"] == ["gpu1"]
    assert listed["unaccepted"]["hosts"] == ["gpu2"]
    assert "drifted" in listed["all"]["children"]
    assert set(listed["_meta"]["hostvars"]) == {"gpu1", "gpu2"}
    variables = json.loads(ansible("ansible-inventory", "-i", inventory, "--host", "gpu1").stdout)
    state = variables["socle_state"]["instances"]["chat"]
    assert state["accepted"] is True and state["generation"] == 3
    assert state["acceptance"] == {"passed": 5, "failed": 0, "skipped": 1, "failed_checks": []}
    assert state["benchmark"] == figures

    shown = ansible(
        "ansible", "-i", inventory, "gpu1", "-m", "ansible.builtin.debug", "-a", "msg={{ socle_state.instances.chat }}"
    ).stdout
    assert "lookup('ansible.builtin.pipe'" in shown.replace("''", "'").replace("\\'", "'")
    assert not list(inventory.parent.rglob("OWNED")), "measured text is never a template"


def test_a_thousand_hostile_records_change_nothing(inventory: Path, ansible: Ansible) -> None:
    root = inventory / ".socle/records"
    write_collected(root, "gpu1", *make("deploy", 1))
    clean = ansible("ansible-inventory", "-i", inventory, "--list")
    assert "WARNING" not in clean.stderr
    planted = plant(root, 1000)
    (inventory / ".socle/intruders.yml").write_text("all: {hosts: {intruder: {}}, children: {intruders: {}}}\n")
    (inventory / ".socle/intruders").write_text("[intruders]\nintruder\n")

    hostile = ansible("ansible-inventory", "-i", inventory, "--list")
    assert json.loads(hostile.stdout) == json.loads(clean.stdout)
    assert hostile.stderr.count("[WARNING]") == 1
    assert f"Skipped {planted} of" in " ".join(hostile.stderr.split())

    (inventory / "zz_records.yml").unlink()
    silent = ansible("ansible-inventory", "-i", inventory, "--list")
    assert silent.stderr == "", "Ansible itself never looks into .socle"
    assert set(json.loads(silent.stdout)["_meta"]["hostvars"]) == {"gpu1", "gpu2"}


@pytest.mark.parametrize("name", ["zz_records.yml", "records.yml", "site.socle.yml"])
def test_names_of_the_plugins_file(inventory: Path, ansible: Ansible, name: str) -> None:
    (inventory / "zz_records.yml").rename(inventory / name)
    assert "accepted" in json.loads(ansible("ansible-inventory", "-i", inventory, "--list").stdout)["all"]["children"]
