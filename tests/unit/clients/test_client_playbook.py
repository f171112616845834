# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The endpoint playbook over the example, whose hosts do not exist."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
KEY = "sk-very-secret-0815"


def endpoint(*options: str, code: int = 0) -> str:
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            "playbooks/endpoint.yml",
            *("-i", "inventories/example", "--limit", "a800-1"),
            *options,
        ],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


INSTANCES = {
    "agents": {
        "model": "qwen3.8-27b",
        "gpus": [0, 1],
        "port": 8003,
        "expose": "address",
        "api_key": "{{ vault_agents_api_key }}",
        "effort_aliases": "medium",
    }
}


def test_a_format_that_there_is_not_is_refused() -> None:
    told = " ".join(endpoint("-e", "socle_format=yaml", code=2).split())
    assert "socle_format is yaml, expected text or json. Nothing was changed." in told


def test_json_is_one_document_with_a_key_s_name_and_not_the_key() -> None:
    variables = {
        "vault_agents_api_key": KEY,
        "vllm_instances": INSTANCES,
        "socle_format": "json",
        "endpoint_fallback": {"url": "https://other.example/v1", "model": "N"},
    }
    output = endpoint("-e", json.dumps(variables), "-vvv")
    assert KEY not in output
    text = output[output.index("\n[\n") : output.index("\n]\n") + 2]
    (card,) = json.loads(text)
    assert card["schema"] == "socle.client_card/1"
    assert card["key"] == {"required": True, "name": "vault_agents_api_key", "variable": "AGENTS_API_KEY"}
    assert card["effort"]["answers"]["high"]["messages"] == "200 medium"
    assert card["fallback"]["url"] == "https://other.example"


def test_text_is_for_a_person() -> None:
    output = endpoint()
    assert "a800-1 agents: qwen3.8-27b on vLLM 0.26.0" in output
    assert "  Anthropic clients  http://192.0.2.20:8003\n" in output
    assert '"ANTHROPIC_BASE_URL": "http://192.0.2.20:8004",' in output


def test_records_stand_in_for_a_host_that_is_not_asked() -> None:
    state = {
        "instances": {
            "agents": {
                "environment": {"host_class": "a800_pcie_80g"},
                "accepted": False,
                "capacity": {"kv_cache_size_tokens": 2595079},
            }
        }
    }
    variables = {"gpu_facts_file": "", "socle_state": state, "vllm_instances": INSTANCES, "vault_agents_api_key": KEY}
    output = endpoint("-e", json.dumps(variables))
    assert "2,595,079 for all requests at once" in output
    assert "note: It is not accepted: accept.yml checks it." in output
