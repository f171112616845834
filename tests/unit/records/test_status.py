# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The status playbook, against local hosts and one that refuses the connection."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._records.files import write_collected, write_once
from ansible_collections.socle.inference.plugins.module_utils._records.schema import spool_name

from .conftest import FP1, ROOT, Ansible, make

# Three of the host's units as systemd would describe them; there is no systemd where unit tests run.
SYSTEMCTL = """#!/bin/sh
for name in chat old; do
  printf 'Id=vllm-%s.service\\nLoadState=loaded\\nActiveState=active\\nSubState=running\\n\\n' "$name"
done
"""


def install(state_dir: Path, name: str) -> None:
    """An instance as a launch leaves it on the host."""
    generation = state_dir / "instances" / name / "generations" / "1"
    generation.mkdir(parents=True)
    plan = {"instance": name, "argv": ["serve"], "port": 8000, "launch_fingerprint": FP1, "host_class": "cpu"}
    plan |= {"vllm_version": "0.11.0", "model": {"name": "qwen3-0.6b"}}
    (generation / "plan.json").write_text(json.dumps(plan))
    (generation / "state.json").write_text(json.dumps({"schema": "socle.generation/1", "applied": "started"}))
    (generation / f"vllm-{name}.container").write_text("[Container]\n")
    (generation.parents[1] / "current").symlink_to("generations/1")


@pytest.fixture
def refused_port() -> int:
    """A port of this machine where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_one_table_of_all_hosts(
    inventory: Path, tmp_path: Path, ansible: Ansible, refused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = tmp_path / "bin/systemctl"
    shim.parent.mkdir()
    shim.write_text(SYSTEMCTL)
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(shim.parent), prepend=":")
    lost = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": refused_port}
    (inventory / "hosts2.yml").write_text(json.dumps({"all": {"hosts": {"lost": lost}}}))
    declared = {"vllm_instances": {"chat": {"model": "qwen3-0.6b", "api_key": "{{ undefined_secret }}"}}}
    (inventory / "group_vars").mkdir()
    (inventory / "group_vars/all.yml").write_text(json.dumps({**declared, "ansible_become": False}))
    state_dir = tmp_path / "state/gpu1"
    for name in ("chat", "old"):
        install(state_dir, name)
    figures = {"B1": {"ttft_p50_ms": 31.5}, "B2": {"decode_p50_tok_per_s": 44.25}}
    fresh = [make("deploy", 1), make("acceptance", 2), make("benchmark", 3, results={"workloads": figures})]
    for record, text in fresh:
        write_once(state_dir / "records", spool_name(record, text), text)
    # The controller knows an older, failed acceptance only: the table must not show that.
    write_collected(inventory / ".socle/records", "gpu1", *make("acceptance", 0, verdict="failed"))
    write_collected(inventory / ".socle/records", "lost", *make("deploy", 1, host="lost"))
    write_collected(inventory / ".socle/records", "lost", *make("acceptance", 2, host="lost"))

    done = ansible("ansible-playbook", "-i", inventory, ROOT / "playbooks/status.yml")
    lines = [" ".join(line.strip(' ",').split()) for line in done.stdout.splitlines()]
    head = lines.index("HOST CLASS INSTANCE MODEL ENGINE STATE ACCEPTED TTFT ms TOK/S DRIFT")
    assert lines[head + 1 : head + 5] == [
        "gpu1 cpu chat qwen3-0.6b vllm 0.11.0 accepted 2026-11-30T09:02Z 31.5 44.2 -",
        "gpu1 cpu old qwen3-0.6b vllm 0.11.0 unmanaged - - - -",
        "gpu2 - chat qwen3-0.6b - absent - - - -",
        "lost - chat qwen3-0.6b - unreachable 2026-11-30T09:02Z - - -",
    ]
    assert "changed=0" in done.stdout and "changed=1" not in done.stdout


def test_only_unreachable_hosts_still_make_a_table(tmp_path: Path, ansible: Ansible, refused_port: int) -> None:
    arguments = ["-i", "127.0.0.1,", "-e", f"ansible_port={refused_port} ansible_connection=ssh ansible_become=false"]
    done = ansible("ansible-playbook", *arguments, ROOT / "playbooks/status.yml")
    assert "127.0.0.1  -      -         -      -       unreachable" in done.stdout
