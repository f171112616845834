# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The flag variables of an inventory, as plan.yml reads them: only an absent one means none."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FACTS = {
    "schema": "socle.gpu_facts/2",
    "host_class": "cpu",
    "gpus": [],
    "driver": {"version": None},
    "cpu": {"model": "x", "cores": 2},
    "memory_mib": 8000,
    "kernel": "6",
    "os": {"id": "debian", "version_id": "13"},
    "engine": {"name": "podman", "version": "5.4.2"},
    "cgroup_version": 2,
}


def test_a_misspelt_variable_in_the_flags_fails_its_host_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_text(json.dumps(FACTS))
    common = {
        "ansible_connection": "local",
        "ansible_become": False,
        "gpu_facts_file": str(tmp_path / "facts.json"),
        "host_class": "cpu",
        "vllm_instances": {"chat": {"model": "smollm2-135m-instruct"}},
    }
    hosts = {
        "good": {"vllm_flags_host": {"max-num-seqs": 4}},
        "absent": {},
        "nulled": {"vllm_flags_group": None},
        "typo": {"vllm_flags_host": "{{ nope }}"},
        "slip": {"vllm_flag_host": {"max-num-seqs": 4}},
        "empty": {"vllm_instances": {}},
        # These two are not known by a file.
        "asked_slip": {"gpu_facts_file": "", "vllm_instance": {}},
        "asked_empty": {"gpu_facts_file": "", "vllm_instances": None},
    }
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"vars": common, "hosts": hosts}}))
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "playbooks/plan.yml", "-i", tmp_path / "hosts.json"],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = dict(re.findall(r"^(\w+) .*failed=(\d+)", done.stdout, re.MULTILINE))
    wrong = {"typo", "slip", "asked_slip"}
    assert failed == {name: str(int(name in wrong)) for name in hosts}
    output = done.stdout + done.stderr
    assert "'nope' is undefined" in output
    assert "vllm_flag_host is no variable of socle (did you mean vllm_flags_host?). Nothing was changed." in output
    assert "vllm_instance is no variable of socle (did you mean vllm_instances?). Nothing was changed." in output
    assert "\nempty: vllm_instances names none, so that nothing is planned\n" in output
    assert "\nasked_empty: vllm_instances names none, so that nothing is planned\n" in output
