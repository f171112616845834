# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role model_store as Ansible runs it: several hosts, each with a store and an address of its own, and a hub."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.simulators.hub.server import HubSimulator

PROJECT = Path(__file__).resolve().parents[3]
ROLE = PROJECT / "roles/model_store"
PLAY = """
- name: Bring the models
  hosts: all
  gather_facts: false
  serial: "{{ batch | default('100%') }}"
  roles: [socle.inference.model_store]
  post_tasks:
    - ansible.builtin.copy:
        content: "{{ model_store_result | to_json }}"
        dest: "{{ model_store_path }}.json"
        mode: "0644"
      when: not ansible_check_mode
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def site(tmp_path: Path, hub: HubSimulator) -> Iterator[Run]:
    """Runs the role on hosts gpu1 to gpuN; variables of single hosts by name."""
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "ansible.cfg").write_text("[defaults]\n")

    def run(
        *arguments: str, count: int = 1, hosts: dict[str, dict[str, Any]] | None = None, **given: Any
    ) -> subprocess.CompletedProcess[str]:
        found = {
            f"gpu{number}": {
                "model_store_path": str(tmp_path / f"gpu{number}"),
                "model_store_lan_address": f"127.0.0.{20 + number}",
                **(hosts or {}).get(f"gpu{number}", {}),
            }
            for number in range(1, count + 1)
        }
        common = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "model_store_models": [{"repo": "Org/Model"}],
            "model_store_endpoint": hub.url,
            "model_store_proxy": "",
            "model_store_reserve_gib": 0,
            "model_store_force_prechecks": True,
            **given,
        }
        (tmp_path / "inventory").mkdir(exist_ok=True)
        inventory = {"all": {"hosts": found, "vars": common}}
        (tmp_path / "inventory/hosts.yml").write_text(yaml.safe_dump(inventory))
        return subprocess.run(
            [
                str(Path(sys.executable).with_name("ansible-playbook")),
                *[str(tmp_path / "play.yml"), "-i", str(tmp_path / "inventory"), *arguments],
            ],
            cwd=tmp_path,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "LC_ALL": "C.UTF-8",
                "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"),
                "ANSIBLE_COLLECTIONS_PATH": str(PROJECT / "collections"),
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    yield run


def wan_bytes(hub: HubSimulator) -> int:
    named = [request for request in hub.requests if {"name", "FilePath"} & set(request["params"])]
    return sum(request.get("sent") or 0 for request in named)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def has_model(tmp_path: Path, name: str, folder: Path, link: str = "Org--Model") -> bool:
    tree = tmp_path / name / link
    wanted = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return wanted == {path.relative_to(tree): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def test_models_of_one_name_and_two_owners_have_links_of_their_own(site: Run, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, folder.parents[1] / "Other/Model")
    (folder.parents[1] / "Other/Model/config.json").write_text('{"architectures": ["Other"]}')
    done = site(model_store_models=[{"repo": "Org/Model"}, {"repo": "Other/Model"}])
    assert done.returncode == 0, done.stdout + done.stderr
    store = tmp_path / "gpu1"
    links = {path.name: (path / "config.json").read_text() for path in store.iterdir() if path.is_symlink()}
    assert links == {"Org--Model": '{"architectures": ["Some"]}', "Other--Model": '{"architectures": ["Other"]}'}


def test_three_hosts_cost_one_copy_over_the_wan_and_a_rerun_nothing(
    site: Run, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    done = site("--forks", "2", count=3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(has_model(tmp_path, f"gpu{number}", folder) for number in (1, 2, 3))
    assert wan_bytes(hub) == size(folder)
    assert len([request for request in hub.requests if request["path"].endswith("/repo/files")]) == 1
    result = json.loads((tmp_path / "gpu3.json").read_text())["Org/Model"]
    assert result["path"] == str((tmp_path / "gpu3/Org--Model").resolve())
    assert result["content_id"].startswith("sha256:")
    assert (tmp_path / "inventory/.socle/locks/modelscope").is_dir()
    hub.reset()
    done = site(count=3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert wan_bytes(hub) == 0
    assert re.findall(r"changed=(\d+)", done.stdout) == ["0", "0", "0"]
    tasks = re.findall(r"^TASK \[socle.inference.model_store : (.*?)\]", done.stdout, re.MULTILINE)
    assert tasks[1:] == [
        "Fix what each revision is",
        "See what the host has of its models",
        "Bring what any host lacks",
        "Tell the other roles where the models are",
    ]


def test_a_check_run_reports_what_is_missing_and_writes_nothing(site: Run, hub: HubSimulator, tmp_path: Path) -> None:
    done = site("--check", count=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "gpu1").exists() and not (tmp_path / "inventory/.socle").exists()
    assert wan_bytes(hub) == 0
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("  gpu")]
    assert [row[0] for row in rows] == ["gpu1", "gpu2"]
    assert rows[0][1] == "6" and "fits" in rows[0] and "MiB" in rows[0]
    assert re.search(r"gpu1 .*changed=[1-9]", done.stdout)


def test_nothing_begins_anywhere_while_one_host_has_no_room(site: Run, hub: HubSimulator, tmp_path: Path) -> None:
    hosts = {"gpu2": {"model_store_reserve_gib": 1e6}}
    done = site(count=3, hosts=hosts, model_store_force_prechecks=False, model_store_allow_volatile=True)
    assert done.returncode != 0
    assert re.search(r"gpu2: .* must stay free.*Nothing was downloaded on any host", done.stdout, re.DOTALL)
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("  gpu")}
    assert "refused" in rows["gpu2"]
    assert wan_bytes(hub) == 0
    assert not any((tmp_path / name / ".store").exists() for name in ("gpu1", "gpu2", "gpu3"))
    done = site(count=3, hosts=hosts)
    assert done.returncode == 0, done.stdout + done.stderr


def test_hosts_with_different_models_share_what_they_have_in_common(
    site: Run, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    other = folder.parents[1] / "Other/Thing"
    shutil.copytree(folder, other)
    (other / "config.json").write_text('{"architectures": ["Other"]}')
    both = [{"repo": "Other/Thing"}, {"repo": "Org/Model"}]
    hosts = {"gpu1": {"model_store_models": both[1:]}, "gpu2": {"model_store_models": both}}
    done = site(count=3, hosts=hosts, model_store_models=both[:1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert has_model(tmp_path, "gpu1", folder) and has_model(tmp_path, "gpu2", folder)
    assert has_model(tmp_path, "gpu2", other, "Other--Thing") and has_model(tmp_path, "gpu3", other, "Other--Thing")
    assert not (tmp_path / "gpu3/Org--Model").exists()
    assert wan_bytes(hub) == size(folder) + size(other)


def test_one_host_after_the_other_still_costs_one_copy(
    site: Run, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    done = site(count=3, batch=1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(has_model(tmp_path, f"gpu{number}", folder) for number in (1, 2, 3))
    assert wan_bytes(hub) == size(folder)


def test_a_host_that_has_the_model_serves_a_new_one(site: Run, hub: HubSimulator, folder: Path, tmp_path: Path) -> None:
    assert site(count=2, fanout="auto").returncode == 0
    hub.reset()
    done = site(count=3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert has_model(tmp_path, "gpu3", folder)
    assert wan_bytes(hub) == 0


def test_without_fanout_every_host_downloads(site: Run, hub: HubSimulator, folder: Path) -> None:
    done = site(count=2, model_store_fanout="never")
    assert done.returncode == 0, done.stdout + done.stderr
    assert wan_bytes(hub) == 2 * size(folder)


def test_a_host_that_fails_does_not_stop_the_others(site: Run, hub: HubSimulator, folder: Path, tmp_path: Path) -> None:
    hosts = {"gpu2": {"model_store_lan_address": "192.0.2.1"}}
    done = site(count=3, hosts=hosts)
    assert done.returncode != 0
    assert "cannot be served on 192.0.2.1" in done.stdout
    assert has_model(tmp_path, "gpu1", folder) and has_model(tmp_path, "gpu3", folder)
    assert wan_bytes(hub) == size(folder)


def test_progress_of_every_host_is_on_the_terminal_and_no_secret(site: Run, hub: HubSimulator) -> None:
    hub.add_rule(path="cdn/", count=-1, shared_bytes_per_s=300_000)
    done = site("-vvv", count=2, model_store_token="hubsecret")
    assert done.returncode == 0, done.stdout + done.stderr
    for name, source in (("gpu1", r"127\.0\.0\.1:\d+"), ("gpu2", r"gpu1 \(127\.0\.0\.21:\d+\)")):
        assert re.search(rf"\[{name}\] Org/Model: downloading, .* of 1\.1 MiB, .*/s, .* from {source}", done.stdout)
        assert re.search(rf"\[{name}\] Org/Model: complete, 1\.1 MiB from", done.stdout)
    assert "hubsecret" not in done.stdout + done.stderr
    assert "relay_token" not in done.stdout


def test_a_failure_ends_with_its_reason(site: Run, hub: HubSimulator) -> None:
    hub.add_rule(path="note.txt", count=-1, status=404)
    done = site(count=2)
    assert done.returncode != 0
    assert re.search(r"\[gpu1\] Org/Model: .*answered 404 for extra/note.txt", done.stdout)


def test_options_and_defaults_have_the_same_names() -> None:
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    specified = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    assert list(defaults) == list(specified)
    for name, value in defaults.items():
        assert "{{" in str(value) or specified[name].get("default") == value, name
