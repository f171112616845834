# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data files: the collection's own, and how mistakes in a user's are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan import schema
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


CLASS = """\
name: big
kind: gpu
family: big
architecture: hopper
compute_capability: "9.0"
pci_ids: ["10de:beef"]
products: [NVIDIA Big]
memory_mib: 81559
link: nvlink
fp8: true
fp4: false
driver: {flavour: open, minimum: "580"}
"""


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
        (CLASS.replace("name: big", "name: small"), ["'small'", "'big'", "agree"]),
        (CLASS + "memory_gib: 80\n", ["unknown key 'memory_gib'", "did you mean 'memory_mib'"]),
        (CLASS.replace("81559", "80 GB"), ["memory_mib must be a whole number", "'80 GB'"]),
        (CLASS.replace('"9.0"', "9.0"), ["compute_capability must be a compute capability in quotes", "number 9.0"]),
        (CLASS.replace("10de:beef", "10DE:BEEF"), ["pci_ids[0] must be a PCI id in lower case", "'10DE:BEEF'"]),
        (CLASS.replace('["10de:beef"]', "[]"), ["pci_ids must be a list with at least one entry"]),
        (CLASS.replace("link: nvlink", "link: nvlnk"), ["link must be one of", "did you mean 'nvlink'"]),
        (CLASS.replace("hopper", "Hopper"), ["architecture must be", "lower case", "'Hopper'"]),
        (CLASS.replace("fp8: true", "fp8: 1"), ["fp8 must be true or false"]),
        (CLASS.replace('"580"', "580"), ["driver.minimum must be a driver version in quotes", "number 580"]),
        (CLASS.replace("flavour: open", "flavour: free"), ["driver.flavour must be one of open, proprietary"]),
        (CLASS + "nvlink_expected: NVLINK\n", ["nvlink_expected must be a link such as 'NV12'"]),
        (CLASS + "nvswitch: maybe\n", ["nvswitch must be one of possible, never"]),
        ("name: big\nkind: gpu\nfamily: big\n", ["is of kind gpu and lacks architecture, compute_capability, pci_ids"]),
        ("name: big\nkind: cpu\nfamily: big\n", ["is of kind cpu and has family", "remove"]),
        (
            CLASS.replace("link: nvlink", "link: pcie\nnvlink_expected: NV8"),
            ["nvlink_expected is 'NV8'", "link is pcie"],
        ),
        (CLASS + "evidence: {memory_gib: {source: x}}\n", ["evidence.memory_gib is about nothing", "'memory_mib'"]),
        (CLASS + "flags: {max_num_seqs: 1}\n", ["flags", "write 'max-num-seqs'"]),
        (CLASS + "env: {A: true}\n", ["env.A"]),
        (CLASS + "evidence: {a: {}}\n", ["evidence.a", "'source'"]),
        ("name: big\nkind: gpu\nkind: cpu\n", ["not valid YAML in line 3", "'kind' is written twice"]),
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


def test_a_class_says_everything_of_its_file(tmp_path: Path) -> None:
    text = CLASS + "flags: {a: 1}\nevidence: {a: {source: x}, memory_mib: {source: y}}\npower_default_w: 700\n"
    known = user_data(tmp_path, "profiles/host_classes/big.yml", text).host_class("big")
    assert (known.family, known.architecture, known.compute_capability) == ("big", "hopper", "9.0")
    assert (known.pci_ids, known.products, known.memory_mib) == (("10de:beef",), ("NVIDIA Big",), 81559)
    assert (known.link, known.nvlink_expected, known.nvswitch) == ("nvlink", None, "never")
    assert (known.fp8, known.fp4, known.peer_to_peer, known.power_default_w) == (True, False, True, 700)
    assert (known.driver, known.flags) == ({"flavour": "open", "minimum": "580"}, {"a": 1})


def test_classes_are_read_one_by_one(tmp_path: Path) -> None:
    classes = user_data(tmp_path, "profiles/host_classes/big.yml", "- broken\n").host_classes()
    assert {"big", "cpu"} <= set(classes) and classes["cpu"].kind == "cpu" and "huge" not in classes
    with pytest.raises(PlanError, match=r"host_classes/big\.yml"):
        dict(classes)


@pytest.mark.parametrize("cuda", ["13", "11.8", "13.0.2", "next"])
def test_a_cuda_whose_driver_is_not_known_is_refused(tmp_path: Path, cuda: str) -> None:
    relative = "profiles/serving/smollm2-135m-instruct--cpu.yml"
    text = (COLLECTION / relative).read_text(encoding="utf-8")
    text = text.replace("    vllm_version", f'    cuda: "{cuda}"\n    vllm_version')
    with pytest.raises(PlanError, match=r"cuda must be the image's CUDA, 12 or 13"):
        user_data(tmp_path, relative, text).serving("smollm2-135m-instruct", "cpu")


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


def test_what_is_made_of_a_file_is_made_once_and_anew_when_it_changes(tmp_path: Path) -> None:
    folder = tmp_path / "site_data"
    path = folder / "profiles/host_classes/mine.yml"
    path.parent.mkdir(parents=True)
    calls: list[Any] = []

    def make(origin: str, content: Any) -> Any:
        calls.append(content)
        return origin, content

    def made() -> Any:
        return DataPath([folder]).made("profiles/host_classes", "mine", make)

    path.write_text("a: 1\n", encoding="utf-8")
    assert made() == made() == ("site_data/profiles/host_classes/mine.yml", {"a": 1})
    assert len(calls) == 1
    path.write_text("a: 1\nb: 2\n", encoding="utf-8")
    assert made()[1] == {"a": 1, "b": 2}
    path.unlink()
    with pytest.raises(PlanError, match=r"profiles/host_classes/mine\.yml was looked for in"):
        made()


def test_what_is_wrong_is_told_each_time(tmp_path: Path) -> None:
    catalogue = user_data(tmp_path, "profiles/host_classes/big.yml", "name: big\nkind: tpu\n")
    for _attempt in range(2):
        with pytest.raises(PlanError, match="kind must be one of cpu, gpu"):
            catalogue.host_class("big")
    user_data(tmp_path, "profiles/host_classes/big.yml", CLASS)
    assert Catalogue(DataPath([tmp_path / "site_data"])).host_class("big").name == "big"


@pytest.mark.parametrize(
    ("written", "remedy"),
    [
        ("16g", "write 17179869184 for 16 GiB"),
        ("16GiB", "write 17179869184 for 16 GiB"),
        ("16 gb", "write 17179869184 for 16 GiB"),
        ("0.5T", "write 549755813888 for 0.5 TiB"),
        ("512m", "write 536870912 for 512 MiB"),
        ("1024 bytes", "write 1024 for 1024 bytes"),
        ("17179869184", "remove the quotes"),
        ("plenty", "correct it"),
        ("0g", "correct it"),
        (0, "correct it"),
        (True, "correct it"),
        (1.5, "correct it"),
        (2**80, "correct it"),
    ],
)
def test_a_size_with_a_unit_is_told_as_the_number_that_is_meant(written: Any, remedy: str) -> None:
    problems = schema.Problems()
    schema.size("bytes")(written, "shm_size_bytes", problems)
    (told,) = problems.sentences
    assert told.startswith("shm_size_bytes must be a whole number of bytes without a unit, but is ")
    assert told.endswith(f"; {remedy}.")


def test_a_size_is_told_in_the_unit_of_its_key() -> None:
    problems = schema.Problems()
    schema.size("MiB")("80 GB", "memory_mib", problems)
    schema.size("MiB")("512k", "memory_mib", problems)
    schema.size("MiB")(81559, "memory_mib", problems)
    assert [told.rpartition("; ")[2] for told in problems.sentences] == ["write 81920 for 80 GiB.", "correct it."]


@pytest.mark.parametrize(
    ("folder", "name", "where"),
    [
        ("profiles/serving", "small-chat--cpu", ("profiles", "default", "shm_size_bytes")),
        ("profiles/models", "small-chat", ("size_bytes",)),
    ],
)
def test_sizes_of_data_files_are_checked_so(
    errors_of: Any, documents: Any, folder: str, name: str, where: tuple[str, ...]
) -> None:
    place = documents[folder][name]
    for key in where[:-1]:
        place[key] = dict(place[key])
        place = place[key]
    place[where[-1]] = "16g"
    told = errors_of({"chat": {"model": "small-chat"}})
    assert any(f"{'.'.join(where)} must be a whole number of bytes" in one and "17179869184" in one for one in told), (
        told
    )
