# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data files: the collection's own, and how mistakes in a user's are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.data import Catalogue
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import COLLECTION, DataPath, data_path

OWN = DataPath([])
SERVING = OWN.names("profiles/serving")


def test_every_own_file_is_sound() -> None:
    catalogue = Catalogue(OWN)
    catalogue.engine()
    for name in catalogue.class_names():
        catalogue.host_class(name)
    for name in catalogue.model_names():
        catalogue.model(name)
    for name in catalogue.serving_names():
        model, host_class = name.split("--")
        assert model in catalogue.model_names()
        assert host_class in catalogue.class_names()
        catalogue.serving(model, host_class)


@pytest.mark.parametrize("name", SERVING)
def test_every_own_choice_has_evidence(name: str) -> None:
    for profile in Catalogue(OWN).serving(*name.split("--")).profiles.values():
        choices = {*profile.flags, *profile.env, "image", "shm_size_bytes", "start_timeout_s"}
        assert choices - set(profile.evidence) == set()


def test_the_lab_s_profile_is_the_measured_one() -> None:
    profile = Catalogue(OWN).serving("smollm2-135m-instruct", "cpu").profiles["default"]
    assert profile.flags == {"enforce-eager": True, "max-model-len": 4096, "max-num-seqs": 8}
    assert profile.env == {"VLLM_CPU_KVCACHE_SPACE": "1"}
    assert profile.shm_size_bytes == 512 * 1024**2


CLASS = "name: big\nkind: gpu\n"


def user_data(root: Path, relative: str, text: str) -> Catalogue:
    path = root / "site_data" / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return Catalogue(DataPath([root / "site_data"]))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (CLASS + "kinds: x\n", ["unknown key 'kinds'", "did you mean 'kind'"]),
        ("name: big\n", ["lacks the key 'kind'"]),
        ("name: big\nkind: tpu\n", ["kind must be one of cpu, gpu", "'tpu'"]),
        ("name: small\nkind: gpu\n", ["'small'", "'big'", "agree"]),
        (CLASS + "memory_gib: 80 GB\n", ["memory_gib must be a number", "'80 GB'"]),
        (CLASS + "flags: {max_num_seqs: 1}\n", ["flags", "write 'max-num-seqs'"]),
        (CLASS + "env: {A: true}\n", ["env.A"]),
        (CLASS + "evidence: {a: {}}\n", ["evidence.a", "'source'"]),
        (CLASS + "kind: cpu\n", ["not valid YAML in line 3", "'kind' is written twice"]),
        (CLASS + "  x: [\n", ["not valid YAML"]),
        ("- a\n", ["must be a map", "a list"]),
        ("", ["must be a map", "nothing"]),
    ],
)
def test_a_bad_file_is_told_with_file_and_key(tmp_path: Path, text: str, parts: list[str]) -> None:
    catalogue = user_data(tmp_path, "profiles/host_classes/big.yml", text)
    with pytest.raises(PlanError) as refused:
        catalogue.host_class("big")
    assert refused.value.message.startswith("site_data/profiles/host_classes/big.yml")
    assert [part for part in parts if part not in refused.value.message] == []
    assert str(tmp_path) not in refused.value.message


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("recommended: default", "recommended: defalut", "did you mean 'default'"),
        ("model: smollm2-135m-instruct", "model: other", "make them agree"),
        ("      start_timeout_s:\n        source", "      start_timeout:\n        source", "evidence.start_timeout"),
        ("vllm_version: 0.32.0", "vllm_version: 0.32", "vllm_version"),
    ],
)
def test_a_bad_serving_file_is_told(tmp_path: Path, old: str, new: str, part: str) -> None:
    relative = "profiles/serving/smollm2-135m-instruct--cpu.yml"
    text = (COLLECTION / relative).read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(PlanError) as refused:
        user_data(tmp_path, relative, text.replace(old, new)).serving("smollm2-135m-instruct", "cpu")
    assert part in refused.value.message


def test_a_user_s_file_comes_before_the_own_one(tmp_path: Path) -> None:
    catalogue = user_data(tmp_path, "profiles/host_classes/cpu.yml", "name: cpu\nkind: cpu\nenv: {A: '1'}\n")
    assert catalogue.host_class("cpu").env == {"A": "1"}
    assert "smollm2-135m-instruct" in catalogue.model_names()


@pytest.mark.parametrize("given", ["option", "variable", "default"])
def test_where_data_are_looked_for(tmp_path: Path, given: str) -> None:
    (tmp_path / "site_data").mkdir()
    (tmp_path / "inventories" / "paris").mkdir(parents=True)
    variables: dict[str, Any] = {"inventory_dir": str(tmp_path / "inventories" / "paris"), "playbook_dir": "/"}
    option = None
    if given == "option":
        option = [str(tmp_path / "site_data")]
    elif given == "variable":
        variables = {"socle_data_path": str(tmp_path / "site_data")}
    assert data_path(option, variables).folders == [tmp_path / "site_data", COLLECTION]


def test_without_a_data_folder_only_the_own_is_used() -> None:
    assert data_path(None, {}).folders == [COLLECTION]


def test_a_missing_data_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="is no folder"):
        data_path([str(tmp_path / "nothing")], {})
