# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role model_store as Ansible runs it; more of it is in the slow suite."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from ansible_collections.socle.inference.plugins.modules import model_lock, model_sync

from tests.simulators.hub.server import HubSimulator
from tests.support.model_site import PROJECT, Site, size
from tests.support.playbook import play

ROLE = PROJECT / "roles/model_store"


@pytest.fixture
def site(tmp_path: Path, hub: HubSimulator) -> Iterator[Site]:
    site = Site(tmp_path, hub)
    yield site
    site.clean()


def test_models_of_one_name_and_two_owners_have_links_of_their_own(site: Site, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, folder.parents[1] / "Other/Model")
    (folder.parents[1] / "Other/Model/config.json").write_text('{"architectures": ["Other"]}')
    done = site.run(model_store_models=[{"repo": "Org/Model"}, {"repo": "Other/Model"}])
    assert done.returncode == 0, done.stdout + done.stderr
    store = tmp_path / "gpu1"
    links = {path.name: (path / "config.json").read_text() for path in store.iterdir() if path.is_symlink()}
    assert links == {"Org--Model": '{"architectures": ["Some"]}', "Other--Model": '{"architectures": ["Other"]}'}


def test_three_hosts_cost_one_copy_over_the_wan_and_a_rerun_nothing(
    site: Site, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    done = site.run("--forks", "2", count=3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(site.has_model(f"gpu{number}", folder) for number in (1, 2, 3))
    assert site.wan_bytes() == size(folder)
    assert len([request for request in hub.requests if request["path"].endswith("/repo/files")]) == 1
    locking = done.stdout.partition("Fix what each revision is]")[2].partition("TASK [")[0]
    assert re.findall(r"^(\w+): \[(\w+)\]", locking, re.M) == [("changed", "gpu1"), ("ok", "gpu2"), ("ok", "gpu3")]
    result = json.loads((tmp_path / "gpu3.json").read_text())["Org/Model"]
    assert result["path"] == str((tmp_path / "gpu3/Org--Model").resolve())
    assert result["content_id"].startswith("sha256:")
    assert (tmp_path / "inventory/.socle/locks/modelscope").is_dir()
    assert re.search(r"^gpu1:  Org/Model@master  fetched .* from the hub in .*; activated \w{12}$", done.stdout, re.M)
    assert re.search(r"^gpu3:  Org/Model@master  fetched .* from neighbours in .*", done.stdout, re.M)
    hub.reset()
    done = site.run(count=3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^(gpu\d):  Org/Model@master  nothing to do: proven \d+ \w+ ago$", done.stdout, re.M) == [
        "gpu1",
        "gpu2",
        "gpu3",
    ]
    assert site.wan_bytes() == 0
    assert re.findall(r"changed=(\d+)", done.stdout) == ["0", "0", "0"]
    tasks = re.findall(r"^TASK \[socle.inference.model_store : (.*?)\]", done.stdout, re.MULTILINE)
    assert tasks[1:] == [
        "Refuse variables that there are not, or not with this value",
        "Look for commits that only a host may have",
        "Fix what each revision is",
        "See what the host has of its models",
        "Bring what any host lacks",
        "Say what was done for each model",
        "Tell the other roles where the models are",
    ]


def test_a_check_run_reports_what_is_missing_and_writes_nothing(site: Site, hub: HubSimulator, tmp_path: Path) -> None:
    done = site.run("--check", count=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "gpu1").exists() and not (tmp_path / "inventory/.socle").exists()
    assert site.wan_bytes() == 0
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("  gpu")]
    assert [row[0] for row in rows] == ["gpu1", "gpu2"]
    locking = done.stdout.partition("Fix what each revision is]")[2].partition("TASK [")[0]
    assert re.findall(r"^(\w+): \[(\w+)\]", locking, re.M) == [("changed", "gpu1"), ("ok", "gpu2")]
    assert rows[0][1] == "Org/Model@master" and "fetch" in rows[0] and "MiB" in rows[0] and "6:" in rows[0]
    assert re.search(r"gpu1 .*changed=[1-9]", done.stdout)


def test_going_back_to_a_commit_that_only_the_last_host_holds_needs_neither_hub_nor_lock(
    site: Site, folder: Path, tmp_path: Path
) -> None:
    commits = []
    for content in ("{}", "[]"):
        (folder / "config.json").write_text(content)
        commits.append(site.bring("gpu2"))
    commit = commits[0]
    given = {"model_store_models": [{"repo": "Org/Model", "revision": commit}]}
    done = site.run("--check", count=2, model_store_offline=True, **given)
    switch = "switch (all files are here, only the link changes)"
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("  gpu")}
    assert "fetch" in rows["gpu1"] and switch in rows["gpu2"], done.stdout + done.stderr
    locks = tmp_path / "inventory/.socle/locks/modelscope"
    assert [place.name for place in locks.iterdir()] == ["Org--Model@master.json"]
    done = site.run(count=2, model_store_endpoint="http://127.0.0.1:1", **given)
    assert done.returncode == 0, done.stdout + done.stderr
    for host in ("gpu1", "gpu2"):
        assert (tmp_path / host / "Org--Model/config.json").read_text() == "{}"
    assert re.search(r"^gpu1:  Org/Model@\w+  fetched .* from neighbours in .*", done.stdout, re.M)
    assert re.search(rf"^gpu2:  Org/Model@\w+  switched from \w+ to {commit[:12]}$", done.stdout, re.M)


def test_the_playbook_says_where_no_models_are_named(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory"
    inventory.mkdir()
    hosts = {"gpu1": {"model_store_models": []}, "gpu2": {"model_store_models": None}, "gpu3": {}}
    common = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    (inventory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": common}}))
    (tmp_path / "ansible.cfg").write_text("[defaults]\n")
    done, _tasks = play(tmp_path, str(PROJECT / "playbooks/models.yml"), "-i", str(inventory))
    assert done.returncode == 0, done.stdout + done.stderr
    shown = done.stdout.partition("\n{")[0]
    assert shown.count("no models are named") == 1
    assert "gpu1, gpu2, gpu3: no models are named, so nothing was done there. Name them in model_store_models" in shown


def test_a_misspelt_variable_of_one_host_ends_the_role_on_all_of_them(site: Site, hub: HubSimulator) -> None:
    done = site.run(count=2, hosts={"gpu2": {"model_store_pth": "/x"}})
    assert done.returncode != 0
    assert "gpu2: model_store_pth is no variable of socle (did you mean model_store_path?)" in done.stdout
    assert hub.requests == []


def test_nothing_begins_anywhere_while_one_host_has_no_room(site: Site, hub: HubSimulator, tmp_path: Path) -> None:
    hosts = {"gpu2": {"model_store_reserve_gib": 1e6}}
    done = site.run(count=2, hosts=hosts, model_store_force_prechecks=False, model_store_allow_volatile_fs=True)
    assert done.returncode != 0
    assert re.search(r"gpu2: .* must stay free.*Nothing was downloaded on any host", done.stdout, re.DOTALL)
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("  gpu")}
    assert "refused" in rows["gpu2"]
    assert site.wan_bytes() == 0
    assert not any((tmp_path / name / ".store").exists() for name in ("gpu1", "gpu2"))
    done = site.run("--check", count=2, hosts=hosts)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refused" not in done.stdout


def test_a_host_that_fails_does_not_stop_the_others(
    site: Site, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    hosts = {"gpu2": {"model_store_lan_address": "192.0.2.1"}}
    done = site.run(count=3, hosts=hosts)
    assert done.returncode != 0
    assert "cannot be served on 192.0.2.1" in done.stdout
    assert site.has_model("gpu1", folder) and site.has_model("gpu3", folder)
    assert site.wan_bytes() == size(folder)


def test_what_fails_for_a_model_is_told_without_its_manifest(site: Site, tmp_path: Path) -> None:
    done = site.run(count=2, model_store_owner="nobody-of-that-name")
    assert done.returncode != 0
    failures = [line for line in done.stdout.splitlines() if line.startswith("failed:")]
    assert len(failures) == 2 and all("model_store_owner is 'nobody-of-that-name'" in line for line in failures)
    assert all(len(line) < 600 and "sha256" not in line for line in failures), failures


def test_a_branch_that_moved_is_explained_once_at_the_first_host_with_all_ways_out(site: Site, folder: Path) -> None:
    site.bring("gpu1", "gpu2", "gpu3")
    (folder / "config.json").write_text("{}")
    done = site.run(count=3)
    assert done.returncode != 0
    first, *others = (line for line in done.stdout.splitlines() if line.startswith("failed:"))
    assert first.startswith("failed: [gpu1]")
    for way in ("-e model_store_moved=accept", "-e model_store_moved=keep", "or pin it with revision: "):
        assert first.count(way) == 1
    assert [re.sub(r".*\"msg\": ", "", line) for line in others] == [
        '"Org/Model at master has moved: the message of gpu1 says what to do"}'
    ] * 2


def test_a_run_that_fails_leaves_no_relay_behind(site: Site, hub: HubSimulator) -> None:
    hub.add_rule(path="config.json", count=-1, status=404)
    done = site.run(count=2)
    assert done.returncode != 0
    assert "answered 404 for config.json" in done.stdout
    assert [site.job(name) for name in ("gpu1", "gpu2")] == [None, None]


def test_a_helper_that_fails_leaves_its_batch_to_the_hub(site: Site, hub: HubSimulator, folder: Path) -> None:
    # Nobody takes from it in its own batch; as a helper it is asked for an address that it does not have.
    hosts = {"gpu1": {"model_store_lan_address": "192.0.2.1"}}
    done = site.run("-e", "batch=1", count=2, hosts=hosts)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cannot be served on 192.0.2.1" in done.stdout
    assert site.has_model("gpu1", folder) and site.has_model("gpu2", folder)
    assert site.wan_bytes() == 2 * size(folder)


def test_messages_name_the_host_the_model_and_the_variables_of_the_role(site: Site, tmp_path: Path) -> None:
    given = {"model_store_adopt_from": [str(tmp_path / "none")], "model_store_force_prechecks": False}
    done = site.run("--check", count=2, model_store_reserve_gib=1e6, **given)
    assert done.returncode != 0
    said, warned = " ".join(done.stdout.split()), " ".join(done.stderr.split())
    assert ": make room, choose another store or lower model_store_reserve_gib. Nothing was downloaded" in said
    assert f"gpu2: Org/Model@master: {tmp_path}/gpu2 (" in said and " MiB are to be downloaded" in said
    assert said.lower().count("nothing was downloaded") == said.count("fatal:") + said.count("[ERROR]")
    assert "option " not in said
    for host in ("gpu1", "gpu2"):
        expected = f"{host}: Org/Model: {tmp_path}/none, which model_store_adopt_from names, is no folder on this host"
        assert expected in warned, done.stdout


def test_every_option_that_messages_rename_is_one_and_becomes_a_variable_of_the_role() -> None:
    names = yaml.safe_load((ROLE / "vars/main.yml").read_text())["__model_store_option_names"]
    variables = set(yaml.safe_load((ROLE / "defaults/main.yml").read_text()))
    assert set(names.values()) <= variables
    options = {*yaml.safe_load(model_sync.DOCUMENTATION)["options"], *model_lock.ARGUMENT_SPEC, "force"}
    assert set(names) <= options
    # The option path is that of a model in the list.
    assert {name for name in options if f"model_store_{name}" in variables} <= {*names, "path"}


def test_options_and_defaults_have_the_same_names() -> None:
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    specified = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    assert list(defaults) == list(specified)
    for name, value in defaults.items():
        assert "{{" in str(value) or specified[name].get("default") == value, name
