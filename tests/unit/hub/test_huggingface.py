# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is Hugging Face's alone: small files without a SHA-256, pages, and hidden models."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import HubError
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import make_hub
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy

from tests.simulators.hub.server import HubSimulator

REPO = "Org/Model"
WEIGHTS = "model-00001-of-00002.safetensors"
FAST = Policy(backoff_s=0.01, backoff_max_s=0.02, list_timeout_s=5)


def resolve(hub: HubSimulator, revision: str = "main") -> Manifest:
    return make_hub("huggingface", hub.url, proxy="", policy=FAST).resolve(REPO, revision)


def sibling(path: Any, **values: Any) -> dict[str, Any]:
    return {"rfilename": path, "size": 2, "blobId": "0" * 40, **values}


def test_every_file_has_its_sha256_and_the_branch_its_commit(hub: HubSimulator, folder: Path) -> None:
    manifest = resolve(hub)
    assert {file.path: file.sha256 for file in manifest.files} == {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert manifest.commit is not None
    assert (manifest.hub, manifest.requested, len(manifest.commit)) == ("huggingface", "main", 40)
    asked = [request["path"] for request in hub.requests]
    assert not any(path.endswith(".safetensors") for path in asked), "weights are not read to list them"


def test_small_files_are_read_at_the_commit_that_was_listed(hub: HubSimulator) -> None:
    commit = resolve(hub).commit
    small = [request["path"] for request in hub.requests if "/resolve/" in request["path"]]
    assert len(small) == 4
    assert all(path.startswith(f"/Org/Model/resolve/{commit}/") for path in small)


def test_a_small_file_that_is_not_what_git_says_is_fetched_again_and_then_refused(hub: HubSimulator) -> None:
    hub.add_rule(path="config.json", corrupt_at=3, count=FAST.hash_tries - 1)
    assert resolve(hub).files
    hub.add_rule(path="config.json", corrupt_at=3, count=-1)
    with pytest.raises(HubError, match=r"config.json from 127.* wrong content: expected git id \w{12}, got \w{12}"):
        resolve(hub)


def test_a_large_file_that_has_no_sha256_is_refused_before_it_is_read(hub: HubSimulator) -> None:
    hub.add_rule(path="/revision/", siblings=[sibling("big.bin", size=17 << 20)])
    with pytest.raises(HubError, match=r"big.bin of Org/Model with 17825792 bytes and no SHA-256"):
        resolve(hub)
    assert len(hub.requests) == 1


def test_a_small_file_that_is_larger_than_listed_is_not_read_to_its_end(hub: HubSimulator, folder: Path) -> None:
    with (folder / "endless.txt").open("wb") as handle:
        handle.truncate(40 << 20)
    hub.add_rule(path="/revision/", siblings=[sibling("endless.txt")])
    with pytest.raises(HubError, match="more than 16 MiB"):
        resolve(hub)


@pytest.mark.parametrize("path", ["../evil", "/etc/passwd", "a\\b", "a\nb", None, 7])
def test_hostile_names_are_refused_before_any_further_request(hub: HubSimulator, path: Any) -> None:
    hub.add_rule(path="/revision/", siblings=[sibling("good.txt"), sibling(path)])
    with pytest.raises(HubError, match="nothing was downloaded"):
        resolve(hub)
    assert len(hub.requests) == 1


@pytest.mark.parametrize(
    "siblings",
    [
        [sibling("a"), sibling("a")],
        [sibling("A"), sibling("a")],
        [sibling("a", size=-1)],
        [sibling("a", size="2")],
        [sibling("a", lfs={"size": 2})],
        [sibling("a", lfs={"size": 2, "sha256": "00"})],
        ["a"],
    ],
)
def test_a_listing_that_cannot_be_is_refused(hub: HubSimulator, siblings: list[Any]) -> None:
    hub.add_rule(path="/revision/", siblings=siblings)
    with pytest.raises(HubError, match="listing is refused"):
        resolve(hub)
    assert len(hub.requests) == 1


def test_a_mirror_that_lists_names_only_is_asked_for_the_tree(hub: HubSimulator, folder: Path) -> None:
    expected = resolve(hub).files
    hub.reset()
    hub.add_rule(path="/revision/", no_blobs=True)
    assert resolve(hub).files == expected
    for number in range(1200):
        (folder / "extra" / f"{number}.safetensors").write_text(str(number))
    hub.add_rule(path="/revision/", no_blobs=True)
    assert len(resolve(hub).files) == 1206
    pages = [request["params"] for request in hub.requests if "/tree/" in request["path"]]
    assert [page.get("cursor") for page in pages] == [None, None, "1000"]


def test_an_endpoint_that_is_no_such_hub_is_named(hub: HubSimulator) -> None:
    hub.add_rule(path="/revision/", status=400)
    with pytest.raises(HubError, match=r"answered 400 .*no Hugging Face hub"):
        resolve(hub)


def test_a_gated_model_says_what_to_do(hub: HubSimulator) -> None:
    hub.add_rule(path="/revision/", status=403, headers={"X-Error-Code": "GatedRepo"})
    with pytest.raises(HubError, match="only to those who accepted its terms"):
        resolve(hub)
    assert len(hub.requests) == 1


def test_a_model_that_is_unknown_or_hidden_is_named(hub: HubSimulator) -> None:
    with pytest.raises(HubError, match=r"has no model Org/Nothing: check the spelling .*private model needs a token"):
        make_hub("huggingface", hub.url, proxy="", policy=FAST).resolve("Org/Nothing", "main")
