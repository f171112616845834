# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host tells of the weights in its store, and what plans make of it."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.socle.inference.plugins.action import vllm_plan
from ansible_collections.socle.inference.plugins.action.model_weights_info import models_of
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._hub.lock import lock_location
from ansible_collections.socle.inference.plugins.module_utils._plan.held_weights import held_weights, weights_due
from ansible_collections.socle.inference.plugins.module_utils._plan.measured import calibration_of
from ansible_collections.socle.inference.plugins.module_utils._plan.seal import seal
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import COLLECTION

from tests.support.model_store import hold, safetensors
from tests.support.playbook import play
from tests.unit.plan.conftest import knowledge
from tests.unit.plan.test_plan_findings import errors, ids, real
from tests.unit.plan.test_plan_measured import STARTED
from tests.unit.plan.test_systems import CATALOGUE, facts_of, instances_of

GIB = 1024**3
REPO = "Qwen/Qwen3.8-27B"


def weights(gib: float, repo: str = REPO, **entry: Any) -> dict[str, Any]:
    """What a host tells of a model with so many GiB of weights that are cut."""
    group = {"part": "text", "mtp": False, "replicated": False, "float32": False, "bytes": int(gib * GIB)}
    return {repo: {"groups": [{**group, "tensors": 1000}], "fault": None, **entry}}


def test_the_headers_divide_the_memory_where_the_host_holds_the_model() -> None:
    by_file, by_headers = real("a800-1", "agents"), real("a800-1", "agents", weights=weights(50))
    assert (by_file["capacity"]["weights_source"], by_headers["capacity"]["weights_source"]) == (
        "architecture",
        "headers",
    )
    # Half of them on each GPU, and sines and cosines of all positions.
    assert by_headers["capacity"]["weights_gib_per_gpu"] == 25.12
    more = by_headers["capacity"]["kv_gib_per_gpu"] - by_file["capacity"]["kv_gib_per_gpu"]
    less = by_file["capacity"]["weights_gib_per_gpu"] - by_headers["capacity"]["weights_gib_per_gpu"]
    assert more == pytest.approx(less, abs=0.02)
    assert real("a800-1", "agents", weights=weights(50, "Other/Model"))["capacity"] == by_file["capacity"]


def test_what_does_not_fit_by_its_headers_is_refused_like_any_other_plan() -> None:
    (message,) = errors("a800-1", "agents", weights=weights(170))
    assert ": No memory is left for the KV cache: " in message and "SOC-C01" in message


def test_a_start_on_record_goes_before_the_headers() -> None:
    content = json.loads(json.dumps(calibration_of(STARTED, real("a800-1", "agents"))))
    plan = real("a800-1", "agents", calibrations=[content], weights=weights(170))
    assert (plan["capacity"]["weights_source"], plan["capacity"]["weights_gib_per_gpu"]) == ("boot", 26.08)
    assert plan == real("a800-1", "agents", calibrations=[content])


def test_what_is_launched_does_not_depend_on_how_the_weights_are_known() -> None:
    def sealed(plan: dict[str, Any]) -> dict[str, Any]:
        known = {"image_digest": "sha256:" + "1" * 64, "content_id": "sha256:" + "2" * 64, "model_path": "/m"}
        return seal({"plan": plan, **known, "secrets_hmac": "hmac-sha256:" + "3" * 64 if plan["secrets"] else ""})[0]

    before = sealed(real("a800-1", "agents"))
    for told in (weights(50), {REPO: {"groups": [], "fault": "it is no regular file"}}):
        after = sealed(real("a800-1", "agents", weights=told))
        assert after["launch_fingerprint"] == before["launch_fingerprint"]
        judged = {"capacity", "findings", "warnings"}
        assert {name: value for name, value in after.items() if name not in judged} == {
            name: value for name, value in before.items() if name not in judged
        }


def test_headers_that_cannot_be_used_are_a_warning_and_the_model_file_counts() -> None:
    plan = real("a800-1", "agents", weights={REPO: {"groups": [], "fault": "/m/a has 3 bytes, expected 5"}})
    assert plan["capacity"] == real("a800-1", "agents")["capacity"]
    (told,) = [warning for warning in plan["warnings"] if warning["id"] == "weights-unread"]
    assert told["message"].endswith("on a800-1 cannot be used: /m/a has 3 bytes, expected 5")
    assert ids(plan, "error") == []


@pytest.mark.parametrize(
    "wrong", [[], {REPO: []}, {REPO: {}}, {REPO: {"groups": [{"part": "text"}]}}, weights(1, tensors=-1)]
)
def test_what_is_no_answer_of_a_host_is_refused(wrong: Any) -> None:
    with pytest.raises(PlanError, match=r"^weights"):
        held_weights(wrong)


def test_a_host_is_asked_again_once_it_holds_something_else() -> None:
    stored = {REPO: {"content_id": "sha256:a"}, "Other/Absent": {"content_id": None}}
    assert weights_due(stored, None) and weights_due(stored, {})
    assert weights_due(stored, weights(1, content_id="sha256:b"))
    assert weights_due(stored, weights(1, content_id="sha256:a", fault="it was cut off"))
    assert not weights_due(stored, weights(1, content_id="sha256:a"))
    assert not weights_due({}, None)


def test_the_models_of_the_instances_are_asked_for_once_each() -> None:
    both = instances_of("a800-1")
    assert models_of({**both, "again": both["agents"], "x": {"model": "none"}, "y": 5}, CATALOGUE) == [
        {"repo": REPO, "revision": "master", "layers": 64},
        {"repo": f"{REPO}-FP8", "revision": "master", "layers": 64},
    ]
    assert models_of("nonsense", CATALOGUE) == []


def test_the_lock_tells_a_size_that_no_model_file_has(tmp_path: Path) -> None:
    manifest = hold(
        tmp_path / "store",
        REPO,
        {"a.safetensors": b"12345", "b.safetensors": b"123", "consolidated.safetensors": b"12345678", "c.json": b"1"},
    )
    find = vllm_plan._locked_sizes(tmp_path, "modelscope")
    assert find(REPO, "master") is None
    location = lock_location(str(tmp_path), "modelscope", REPO, "master")
    assert location is not None
    location.parent.mkdir(parents=True)
    location.write_text(manifest.dumps(), encoding="utf-8")
    assert find(REPO, "master") == 8
    assert vllm_plan._locked_sizes(None, "modelscope")(REPO, "master") is None
    location.write_text("{", encoding="utf-8")
    assert find(REPO, "master") is None, "whoever brings the model tells what is wrong with its lock"


def test_a_size_that_only_the_lock_tells_divides_the_memory(documents: Any, plan_one: Any, facts: Any) -> None:
    documents["profiles/models"]["small-chat"]["architecture"] = {"layers": 4, "kv_heads": 4, "head_dim": 64}
    settings = {"facts": facts["gpu"], "host_class": "a800_pcie_80g", "knowledge": knowledge()}
    unknown = plan_one({"gpus": [0, 1]}, **settings)
    known = plan_one({"gpus": [0, 1]}, **settings, find_size=lambda repo, revision: 10 * GIB)
    assert unknown["capacity"]["weights_source"] is None
    assert (known["capacity"]["weights_source"], known["capacity"]["weights_gib_per_gpu"]) == ("size", 5.0)


DEPLOY = yaml.safe_load((COLLECTION / "playbooks/deploy.yml").read_text(encoding="utf-8"))[0]["tasks"]


def task_of(name: str) -> tuple[int, dict[str, Any]]:
    return next((number, task) for number, task in enumerate(DEPLOY) if task["name"] == name)


def test_a_deployment_plans_anew_before_it_touches_what_runs() -> None:
    order = [
        task_of(name)[0]
        for name in (
            "Plan the host",
            "Bring the models to the host",
            "Plan the host anew with the models that were brought",
            "Launch each instance",
        )
    ]
    assert order == sorted(order)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A host "a800-1" that is this machine, with the facts of two A800 and a store of its own."""
    (tmp_path / "ansible.cfg").touch()
    hosts = {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "vllm_instances": {"agents": {**instances_of("a800-1")["agents"], "expose": "loopback"}},
        "model_store_path": "{{ inventory_dir }}/store",
        "socle_facts": {"gpu_facts": facts_of("a800-1")},
    }
    inventory = {"a800_pcie_80g": {"hosts": {"a800-1": hosts}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
    return tmp_path


def bring(site: Path, gib: float) -> dict[str, Any]:
    """Put the model into the store, with so many GiB of weights; what role model_store then leaves."""
    size = int(gib * GIB)
    content = safetensors({"model.language_model.embed_tokens.weight": size})
    manifest = hold(site / "store", REPO, {"model.safetensors": content}, {"model.safetensors": len(content) + size})
    return {REPO: {"content_id": manifest.content_id}}


def steps(*tasks: dict[str, Any]) -> str:
    return yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": list(tasks)}], sort_keys=False)


def included(name: str) -> dict[str, Any]:
    """A task of deploy.yml, to be run from another folder."""
    task = copy.deepcopy(task_of(name)[1])
    task["ansible.builtin.include_tasks"] = str(COLLECTION / "playbooks" / task["ansible.builtin.include_tasks"])
    return task


def run(site: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """How it ended, and the results of the host by task."""
    done, tasks = play(site, "play.yml", "-i", "hosts.yml", *arguments)
    return done, [{"task": task["task"]["name"], **task["hosts"].get("a800-1", {})} for task in tasks]


def test_playbooks_plan_by_what_the_host_holds_and_ask_it_once(site: Path) -> None:
    stored = bring(site, 50)
    (site / "play.yml").write_text(
        steps(
            included("Plan the host"),
            {"ansible.builtin.set_fact": {"model_store_result": stored}},
            included("Plan the host anew with the models that were brought"),
        ),
        encoding="utf-8",
    )
    for arguments in ([], ["--check"]):
        done, results = run(site, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        (asked,) = [each for each in results if "weights" in each]
        assert (asked["changed"], asked["weights"][REPO]["tensors"]) == (False, 1)
        (planned,) = [each for each in results if "plans" in each]
        assert planned["plans"]["agents"]["capacity"]["weights_source"] == "headers"
        assert planned["plans"]["agents"]["capacity"]["weights_gib_per_gpu"] == 25.12


def test_a_model_that_is_brought_and_does_not_fit_is_refused_before_any_launch(site: Path) -> None:
    """The first plan goes by the model file, which says 27 billion parameters."""
    stored = bring(site, 170)
    (site / "store").rename(site / "later")
    (site / "play.yml").write_text(
        steps(
            included("Plan the host"),
            {"ansible.builtin.command": {"cmd": "mv later store", "chdir": str(site)}},
            {"ansible.builtin.set_fact": {"model_store_result": stored}},
            included("Plan the host anew with the models that were brought"),
            {"name": "Launch", "ansible.builtin.debug": {"msg": "launched"}},
        ),
        encoding="utf-8",
    )
    done, results = run(site)
    assert done.returncode == 2, done.stdout + done.stderr
    first, last = [each for each in results if "plans" in each or "errors" in each]
    assert first["plans"]["agents"]["capacity"]["weights_source"] == "architecture"
    assert "SOC-C01" in last["errors"][0]
    assert not [each for each in results if each["task"] == "Launch"]
