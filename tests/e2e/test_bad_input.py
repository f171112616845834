# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What cannot work is refused in one sentence, before anything on the host is touched.

Each case is a host of its own inventory; all of them are the lab host, and one deploy.yml meets them all.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.simulators.hub.server import HubSimulator
from tests.support import lab

MODEL = "smollm2-135m-instruct"
REPO = "HuggingFaceTB/SmolLM2-135M-Instruct"
WRONG_HASH = "Org/Wrong-Hash"
SCRATCH = "/var/tmp/socle-e2e"
"""On the lab host: model stores of the cases that get as far as the hub."""
TUNNEL_PORT = 18790
"""On the lab host's loopback: leads to the hub simulator in this process."""
PLAIN_USER = "socle-e2e"


def one(**changes: Any) -> dict[str, Any]:
    return {"bad": {"model": MODEL, "port": 8900, **changes}}


def two(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return {"bad": one(**first)["bad"], "worse": one(**second)["bad"]}


def with_store(name: str, **variables: Any) -> dict[str, Any]:
    return {"vllm_instances": one(), "model_store_path": f"{SCRATCH}/{name}", **variables}


SIMULATOR = f"http://127.0.0.1:{TUNNEL_PORT}"
TWO_GPUS = {"host_class": "two_gpus", "socle_facts_file": "{{ socle_data_path }}/two_gpus.json"}

CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    # variables of the host, and what the sentence must hold: what was found, what was expected, what to do
    "profile": ({"vllm_instances": one(profile="defualt")}, ("'defualt'", "default, safe", "did you mean 'default'")),
    "model": ({"vllm_instances": one(model="smollm3")}, ("'smollm3'", MODEL, "add profiles/models/<name>.yml")),
    "model-typo": (
        {"vllm_instances": one(model="smollm2-135-instruct")},
        ("known model", f"did you mean '{MODEL}'"),
    ),
    "class": (
        {"vllm_instances": one(), "host_class": "a100_80g"},
        ("'a100_80g'", "known: a100_pcie_40g", "did you mean 'a100_"),
    ),
    "port": ({"vllm_instances": two({}, {})}, ("port 8900", "bad and worse", "give one of them another port")),
    "gpu": (
        {"vllm_instances": two({"gpus": [0], "port": 8901}, {"gpus": [0]}), **TWO_GPUS},
        ("GPU 0", "bad and worse", "give each its own GPUs"),
    ),
    "gpu-unknown": ({"vllm_instances": one(gpus=[5]), **TWO_GPUS}, ("GPU 5", "its driver shows 0, 1", "correct it")),
    "flag-type": (
        {"vllm_instances": one(flags={"max-num-seqs": [[4]]})},
        ("vllm_instances.bad.flags.max-num-seqs[0] must be a number, a string or a map", "is a list", "correct it"),
    ),
    "flag-false": (
        {"vllm_instances": one(), "vllm_flags_host": {"enforce-eager": False}},
        ("vllm_flags_host.enforce-eager is false", "'no-enforce-eager: true'"),
    ),
    "flag-name": (
        {"vllm_instances": one(), "vllm_flags_group": {"max_num_seqs": 4}},
        ("'max_num_seqs'", "lower-case words joined by dashes", "write 'max-num-seqs'"),
    ),
    "flag-owned": ({"vllm_instances": one(flags={"port": 9})}, ("flags.port", "set port of the instance instead")),
    "key": ({"vllm_instances": one(modell=MODEL)}, ("unknown key 'modell'", "did you mean 'model'")),
    "revision": (
        {**with_store("revision"), "vllm_instances": one(model="no-revision"), "model_store_endpoint": SIMULATOR},
        ("no revision 'v9'", "branches: master", "tags: v1", "or a full commit hash"),
    ),
    "hub": (
        with_store("hub", model_store_endpoint="http://127.0.0.1:9"),
        ("127.0.0.1:9 cannot be reached", "Connection refused", "check address, network and proxy"),
    ),
    "hash": (
        {**with_store("hash"), "vllm_instances": one(model="wrong-hash"), "model_store_endpoint": SIMULATOR},
        ("config.json", "expected SHA-256 000000000000", "nothing was published", f"kept in {SCRATCH}/hash/"),
    ),
    "disk": (
        with_store("disk", model_store_endpoint="http://lab-hub:8090", model_store_reserve_gib=1000000),
        (
            "iB free",
            "iB are to be downloaded",
            "976.6 TiB must stay free",
            "make room",
            "Nothing was downloaded on any host",
        ),
    ),
    "sudo": (
        {**with_store("sudo"), "ansible_user": PLAIN_USER},
        (f"{PLAIN_USER} cannot become root on sudo", "Missing sudo password", "allow this user to use sudo"),
    ),
    "no-sudo": (
        {**with_store("no-sudo"), "ansible_user": PLAIN_USER, "ansible_become_exe": "/usr/bin/sudo-is-not-here"},
        (f"{PLAIN_USER} cannot become root on no-sudo", "not found", "or connect as root"),
    ),
    "podman": (
        with_store("podman", ansible_python_interpreter=f"{SCRATCH}/python-without-podman"),
        ("on podman: found no Podman", "expected Podman 4.6 or Docker 20.10 or newer", "install"),
    ),
}


@dataclass(frozen=True)
class Refusals:
    run: lab.Run
    before: list[str]
    after: list[str]
    hub: HubSimulator


def _data(folder: Path) -> Path:
    """A class, a model and profiles of the site's own."""
    serving = yaml.safe_load((lab.PROJECT / f"profiles/serving/{MODEL}--cpu.yml").read_text())
    model = yaml.safe_load((lab.PROJECT / f"profiles/models/{MODEL}.yml").read_text())
    documents = {
        "host_classes/two_gpus": {
            **{"name": "two_gpus", "kind": "gpu", "family": "any", "architecture": "any", "compute_capability": "9.9"},
            **{"pci_ids": ["10de:ffff"], "products": ["Any"], "memory_mib": 1024, "link": "pcie"},
            **{"fp8": False, "fp4": False, "driver": {"flavour": "open", "minimum": "580"}},
        },
        "models/no-revision": {**model, "name": "no-revision", "revision": "v9"},
        "models/wrong-hash": {**model, "name": "wrong-hash", "repo": WRONG_HASH},
        f"serving/{MODEL}--two_gpus": {**serving, "host_class": "two_gpus", "gpus_per_instance": 1},
        "serving/no-revision--cpu": {**serving, "model": "no-revision"},
        "serving/wrong-hash--cpu": {**serving, "model": "wrong-hash"},
    }
    for name, content in documents.items():
        path = folder / "profiles" / f"{name}.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content))
    return folder


def _inventory(folder: Path, data: Path) -> Path:
    gpus = [
        {"index": index, "uuid": f"GPU-{index}", "pci_bus_id": None, "product": "Any", "pci_device_id": "10de:ffff"}
        for index in range(2)
    ]
    hosts = {name: {**variables, "socle_data_path": str(data)} for name, (variables, _words) in CASES.items()}
    lab.write_inventory(folder, hosts)
    (data / "two_gpus.json").write_text(json.dumps({"schema": "socle.gpu_facts/2", "gpus": gpus}))
    return folder


PREPARE = f"""
rm -rf {SCRATCH} && mkdir -p {SCRATCH}/bin
useradd --create-home {PLAIN_USER} && install -d -m 700 -o {PLAIN_USER} /home/{PLAIN_USER}/.ssh
install -m 600 -o {PLAIN_USER} /root/.ssh/authorized_keys /home/{PLAIN_USER}/.ssh/authorized_keys
ln -s /usr/bin/* {SCRATCH}/bin/ && rm {SCRATCH}/bin/podman
# Modules also look in folders of their own choice, none of which holds Podman on Debian.
printf '#!/bin/sh\\nPATH={SCRATCH}/bin exec /usr/bin/python3 "$@"\\n' >{SCRATCH}/python-without-podman
chmod 755 {SCRATCH}/python-without-podman
"""

CLEAN = f"""
for name in bad worse; do
  systemctl stop vllm-$name 2>/dev/null || true
  systemctl reset-failed vllm-$name 2>/dev/null || true
  rm -rf /etc/containers/systemd/vllm-$name.container /var/lib/socle/instances/$name
done
systemctl daemon-reload
pkill -KILL -u {PLAIN_USER} 2>/dev/null || true
userdel --remove {PLAIN_USER} 2>/dev/null || true
rm -rf {SCRATCH}
"""


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory, line: object) -> Iterator[Refusals]:
    folder = tmp_path_factory.mktemp("bad")
    for repo in (REPO, WRONG_HASH):
        models = folder / "hub" / repo
        models.mkdir(parents=True)
        (models / "config.json").write_text('{"architectures": ["Some"]}')
        (models / "notes.txt").write_text("x" * 1000)
    inventory = _inventory(folder / "inventories" / "bad", _data(folder / "site"))
    lab.on_host(CLEAN)
    lab.on_host(PREPARE)
    with HubSimulator(folder / "hub") as hub:
        hub.add_rule(path="/repo/files", count=-1, sha256={"config.json": "0" * 64})
        forward = f"{TUNNEL_PORT}:127.0.0.1:{hub.port}"
        tunnel = subprocess.Popen(lab.ssh_command("-N", "-o", "ExitOnForwardFailure=yes", "-R", forward))
        try:
            _wait_for_tunnel()
            before = lab.host_fingerprint()
            run = lab.play("playbooks/deploy.yml", "--limit", "all:!disk", inventory=inventory)
            # A host without room keeps all hosts of a play from beginning, so it has a run of its own.
            full = lab.play("playbooks/deploy.yml", "--limit", "disk", inventory=inventory)
            run.recap.update(full.recap)
            run.failures.update(full.failures)
            yield Refusals(run, before, lab.host_fingerprint(), hub)
        finally:
            tunnel.terminate()
            tunnel.wait(timeout=10)
            lab.on_host(CLEAN)


def _wait_for_tunnel() -> None:
    deadline = time.monotonic() + 15
    while "ok" not in lab.on_host(f"(exec 3<>/dev/tcp/127.0.0.1/{TUNNEL_PORT}) 2>/dev/null && echo ok || true"):
        assert time.monotonic() < deadline, "the tunnel to the hub simulator did not open"
        time.sleep(0.2)


def test_every_case_fails_and_no_other(refusals: Refusals) -> None:
    assert refusals.run.rc != 0
    assert {name for name, host in refusals.run.recap.items() if host["failed"] + host["unreachable"]} == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_one_clear_sentence(refusals: Refusals, case: str) -> None:
    _variables, words = CASES[case]
    message = refusals.run.failures[case]["msg"]
    assert "\n" not in message.strip()
    assert len(message) < 700
    assert not re.search(r"Traceback|\bMODULE FAILURE\b|object at 0x|<class ", message)
    for word in words:
        assert word in message, f"{word!r} is missing in: {message}"


def test_nothing_on_the_host_was_touched(refusals: Refusals) -> None:
    assert refusals.after == refusals.before
    # What a revision means is locked beside the inventory before hosts are judged.
    assert {name for name, host in refusals.run.recap.items() if host["changed"]} <= {"disk", "hash"}
    assert refusals.run.changed <= 2


@pytest.mark.parametrize("case", ["revision", "hub", "sudo", "no-sudo", "podman"])
def test_no_store_is_begun(refusals: Refusals, case: str) -> None:
    assert lab.on_host(f"ls -d {SCRATCH}/{case} 2>/dev/null || true") == ""


def test_what_arrived_wrong_is_kept_aside_and_never_published(refusals: Refusals) -> None:
    store = f"{SCRATCH}/hash/.store/modelscope/{WRONG_HASH.replace('/', '--')}"
    assert lab.on_host(f"ls {store}/rev").split() == []
    assert lab.on_host(f"find {SCRATCH}/hash -maxdepth 1 -type l").split() == []
    kept = lab.on_host(f"find {store}/stage/rejected -type f").split()
    assert len(kept) == 1
    assert kept[0] in refusals.run.failures["hash"]["msg"]
    assert lab.on_host(f"cat {kept[0]}") == '{"architectures": ["Some"]}'


def test_a_full_disk_downloads_nothing(refusals: Refusals) -> None:
    assert lab.on_host(f"find {SCRATCH} -path '{SCRATCH}/disk/*' -type f").split() == []


def test_a_hub_that_does_not_answer_is_no_trouble_once_the_model_is_there(line: object, tmp_path: Path) -> None:
    variables = yaml.safe_load((lab.INVENTORY / "host_vars" / f"{lab.HOST}.yml").read_text())
    wanted = {"vllm_instances": variables["vllm_instances"], "model_store_endpoint": "http://127.0.0.1:9"}
    before = lab.unit()
    inventory = lab.write_inventory(tmp_path / "inventory", {lab.HOST: wanted})
    lab.copy_locks(inventory)
    run = lab.play("playbooks/deploy.yml", inventory=inventory)
    run.expect_success()
    assert run.changed == 0
    said = " ".join(run.output.split())
    assert "127.0.0.1:9 cannot be reached" in said and re.search(r"the lock \S+ is used", said)
    assert lab.unit() == before
