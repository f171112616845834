# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What public clients of model hubs do wrong, done right by the whole of a run: public failures of other clients.

Interruption and resume
    killed in the middle, one connection: test_snapshot (killed_in_the_middle); ended by a signal, here
    killed with several connections, then other settings: test_download and tests/slow/test_hub_kills.py; what is left
    over afterwards, here
    the beginning of a part is wrong: test_download (spoilt_meanwhile)
    ranges ignored, connections dropped, dropped every few bytes: test_snapshot and test_download
    503 twice and always, 429 with a pause, 403 of the storage: here, test_download and test_snapshot
    silence, a trickle: test_download; no limit for a whole file: here (slow_but_steady)
    disk full: test_download, test_prechecks and test_snapshot; read-only store: here
    hub unreachable, tree complete: test_snapshot (without_a_hub)
Integrity
    truncated or flipped on disk: here and test_snapshot; wrong on the way, wrong in the listing: test_snapshot
    no hash in the listing, object shorter than listed: here
    a second run that hashes everything: test_snapshot (unchanged_tree)
Silent failures
    two writers, one killed: here
    a file that is there is taken for right without a look: here (truncated)
    unknown revision, no files at all: test_snapshot (unknown_revision) and here
    names that leave the folder: test_listing
    stale files of an earlier revision: here and test_snapshot (foreign)
    an index that is trusted for ever: test_snapshot (no_clock_shows) and here (truncated)
Revisions
    a branch that moves during the download: here
Others
    clock jumps, shards that only the index knows, pointers, dead proxies, TLS: here
    tokens on redirects, of the real module: here
    a listing of exactly 3000 entries, hostile names: test_hubs, test_listing
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import HubError, SocleError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import make_hub
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy
from ansible_collections.socle.inference.plugins.module_utils._hub.snapshot import Request, ensure_snapshot
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import HubUnreachable
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

from tests.simulators.hub.server import HubSimulator
from tests.support.model_store import base, contents, finish, published, wait_for
from tests.unit.hub.certificates import make_certificates

Ensure = Callable[..., dict[str, Any]]
Start = Callable[..., "subprocess.Popen[str]"]
WEIGHTS = "model-00001-of-00002.safetensors"
MORE_WEIGHTS = "model-00002-of-00002.safetensors"
ON_STORAGE = rf"^/cdn/.*{WEIGHTS}"
FAST = Policy(backoff_s=0.01, backoff_max_s=0.02, list_timeout_s=5, stall_s=5)


def staged(store: Path) -> list[Path]:
    return list((base(store) / "stage").iterdir())


def on_storage(hub: HubSimulator, name: str = WEIGHTS) -> list[dict[str, Any]]:
    return [
        request
        for request in hub.requests
        if request["path"].startswith("/cdn/") and request["params"].get("name") == name
    ]


def test_two_writers_of_which_one_is_killed_end_with_the_right_files(
    start: Start, hub: HubSimulator, folder: Path, store: Path
) -> None:
    hub.add_rule(path=ON_STORAGE, bytes_per_s=400_000, count=2)
    first, second = start(), start()
    wait_for(lambda: any(part.stat().st_size > 100_000 for part in base(store).glob("stage/*/part/*")))
    holder = json.loads((base(store) / "lock").read_text())["pid"]
    killed, other = (first, second) if first.pid == holder else (second, first)
    assert killed.pid == holder
    killed.kill()
    result = finish(other)
    assert result["changed"]
    assert contents(Path(result["path"])) == contents(folder)
    assert published(store) == [Path(result["path"]).name]
    assert staged(store) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_ended_by_a_signal_nothing_is_visible_and_a_rerun_goes_on(
    start: Start, hub: HubSimulator, folder: Path, store: Path, number: signal.Signals
) -> None:
    hub.add_rule(path=ON_STORAGE, bytes_per_s=400_000)
    process = start()
    wait_for(lambda: any(part.stat().st_size > 200_000 for part in base(store).glob("stage/*/part/*")))
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert published(store) == []
    assert not (store / "Model").is_symlink()
    result = finish(start())
    assert contents(Path(result["path"])) == contents(folder)
    assert result["bytes"]["reused_part"] > 0
    assert staged(store) == [], "no part is left behind for ever"


def test_a_hub_that_fails_twice_is_asked_a_third_time(ensure: Ensure, hub: HubSimulator, folder: Path) -> None:
    hub.add_rule(path=rf"/repo {WEIGHTS}", status=503, count=2)
    hub.add_rule(path="/repo/files", status=503, count=2)
    assert contents(Path(ensure()["path"])) == contents(folder)


def test_a_hub_that_fails_always_is_named(ensure: Ensure, hub: HubSimulator, store: Path) -> None:
    hub.add_rule(path=rf"/repo {WEIGHTS}", status=503, count=-1)
    with pytest.raises(HubError, match=rf"{WEIGHTS} .*127.0.0.1:{hub.port}.*status 503"):
        ensure()
    assert published(store) == []


def test_a_pause_that_storage_asks_for_is_taken(ensure: Ensure, hub: HubSimulator, folder: Path) -> None:
    hub.add_rule(path=ON_STORAGE, status=429, retry_after=1)
    result = ensure()
    assert contents(Path(result["path"])) == contents(folder)
    assert result["seconds"] >= 1


def test_storage_that_takes_few_connections_is_enough(ensure: Ensure, hub: HubSimulator, folder: Path) -> None:
    hub.add_rule(path="^/cdn/", max_connections=1, bytes_per_s=10_000_000, count=-1, retry_after=1)
    assert contents(Path(ensure()["path"])) == contents(folder)


def test_storage_that_refuses_for_ever_is_named_without_its_signed_address(ensure: Ensure, hub: HubSimulator) -> None:
    hub.add_rule(path="^/cdn/", status=403, count=-1)
    with pytest.raises(HubError, match="403") as caught:
        ensure()
    assert "sig=" not in str(caught.value) + str(caught.value.fields)


def test_slow_but_steady_is_no_failure(hub: HubSimulator, folder: Path, store: Path) -> None:
    """No clock runs out for a file as long as bytes come, however long that takes in units of every other limit."""
    hub.add_rule(path="^/cdn/", bytes_per_s=600_000, count=-1)
    policy = Policy(
        backoff_s=0.01, list_timeout_s=5, stall_s=0.5, slow_window_s=0.3, slow_bytes_per_s=1024, failures=1, lines=1
    )
    client = make_hub(endpoint=hub.url, proxy="", policy=policy)
    result = ensure_snapshot(Request("Org/Model", "master", store, reserve_bytes=0), client, Progress())
    assert contents(Path(result["path"])) == contents(folder)
    assert len(on_storage(hub)) == 1


@pytest.mark.parametrize("revision", ["master", "commit"])
@pytest.mark.parametrize("size", [0, 1000])
def test_a_truncated_file_is_no_file(ensure: Ensure, folder: Path, revision: str, size: int) -> None:
    first = ensure()
    place = Path(first["path"]) / WEIGHTS
    place.chmod(0o644)
    os.truncate(place, size)
    result = ensure(revision=first["commit"] if revision == "commit" else "master")
    assert result["files"]["repaired"] == 1
    assert result["bytes"]["wan"] == (folder / WEIGHTS).stat().st_size
    assert contents(Path(result["path"])) == contents(folder)


def test_without_a_hash_in_the_listing_the_storage_s_own_is_held_against_the_bytes(
    ensure: Ensure, hub: HubSimulator, folder: Path, store: Path
) -> None:
    hub.add_rule(path="/repo/files", nosha=True, count=-1)
    hub.add_rule(path=ON_STORAGE, corrupt_at=1000, count=-1)
    with pytest.raises(HubError, match=rf"{WEIGHTS} from .* has the wrong content"):
        ensure()
    assert published(store) == []
    hub.reset()
    hub.add_rule(path="/repo/files", nosha=True, count=-1)
    assert contents(Path(ensure()["path"])) == contents(folder)


def test_an_object_that_is_shorter_than_listed_is_never_published(
    ensure: Ensure, hub: HubSimulator, store: Path
) -> None:
    hub.add_rule(path=ON_STORAGE, claim_size=500_000, count=-1)
    with pytest.raises(HubError, match=rf"{WEIGHTS}.* bytes were listed, 500000 are offered"):
        ensure()
    assert published(store) == []


def test_an_empty_body_has_its_own_words(ensure: Ensure, hub: HubSimulator, store: Path) -> None:
    hub.add_rule(path=ON_STORAGE, empty=True, count=-1)
    with pytest.raises(HubError, match=rf"{WEIGHTS}.*body is empty"):
        ensure()
    assert published(store) == []


def test_no_files_at_all_are_no_success(ensure: Ensure, hub: HubSimulator, store: Path) -> None:
    hub.add_rule(path="/repo/files", files=None)
    with pytest.raises(HubError, match="Org/Model at master has no files"):
        ensure()
    hub.add_rule(path="/repo/files", files=[{"Path": "only", "Type": "tree"}])
    with pytest.raises(HubError, match="has no files"):
        ensure()
    assert not store.exists()


def test_a_later_revision_holds_nothing_of_the_former(ensure: Ensure, folder: Path) -> None:
    old = ensure()
    (folder / "extra" / "note.txt").unlink()
    new = ensure()
    assert contents(Path(new["path"])) == contents(folder)
    assert "extra/note.txt" in contents(Path(old["path"]))


def test_a_branch_that_moves_during_the_download_changes_nothing_about_it(
    ensure: Ensure, hub: HubSimulator, folder: Path
) -> None:
    shutil.copytree(folder, folder.parent / "Model@next")
    content = (folder / WEIGHTS).read_bytes()
    (folder.parent / "Model@next" / WEIGHTS).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    hub.add_rule(path="^/cdn/", bytes_per_s=1_000_000, count=-1)
    hub.add_rule(path=rf"/repo {WEIGHTS}", delay_s=0.5)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ensure)
        wait_for(lambda: any(request["path"].endswith("/repo") for request in hub.requests))
        hub.move("Org/Model", "master", "next")
        result = running.result(60)
    assert contents(Path(result["path"])) == contents(folder)
    assert ensure()["commit"] != result["commit"]


def test_a_branch_that_moves_where_no_commit_is_known_is_never_published_in_part(
    ensure: Ensure, hub: HubSimulator, folder: Path, store: Path
) -> None:
    manifest = make_hub(endpoint=hub.url, proxy="").resolve("Org/Model", "master")
    entries = [{"Path": file.path, "Type": "blob", "Size": file.size, "Sha256": file.sha256} for file in manifest.files]
    hub.add_rule(path="/repo/files", files=entries)
    (folder.parent / "Model@next").mkdir()
    for name in (WEIGHTS, "config.json"):
        (folder.parent / "Model@next" / name).write_bytes(b"\0" * (folder / name).stat().st_size)
    hub.move("Org/Model", "master", "next")
    with pytest.raises(HubError, match=r"nothing was published|wrong content"):
        ensure()
    assert published(store) == []
    assert not (store / "Model").is_symlink()


def test_a_shard_that_only_the_index_knows_is_noticed_before_anything_is_visible(
    ensure: Ensure, folder: Path, store: Path
) -> None:
    (folder / MORE_WEIGHTS).unlink()
    with pytest.raises(HubError, match=rf"{MORE_WEIGHTS}.*not part of the revision"):
        ensure()
    assert published(store) == []
    assert not (store / "Model").is_symlink()


def test_a_pointer_in_place_of_weights_is_named_before_anything_is_visible(
    ensure: Ensure, folder: Path, store: Path
) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'ab' * 32}\nsize 900000\n"
    (folder / WEIGHTS).write_text(pointer)
    with pytest.raises(HubError, match=rf"{WEIGHTS} .*Git LFS pointer"):
        ensure()
    assert published(store) == []


@pytest.mark.parametrize("shift_s", [-20 * 365 * 86400, 20 * 365 * 86400])
def test_a_clock_that_jumps_costs_no_download(ensure: Ensure, store: Path, shift_s: int) -> None:
    path = Path(ensure()["path"])
    for place in path.rglob("*"):
        status = place.stat()
        os.utime(place, (status.st_atime + shift_s, status.st_mtime + shift_s))
    result = ensure()
    assert not result["changed"]
    assert result["verify"]["hashed_files"] == result["files"]["total"], "times prove nothing any more"
    assert ensure()["verify"]["hashed_files"] == 0


def test_a_clock_that_was_never_set_is_named_before_the_first_byte(
    ensure: Ensure, hub: HubSimulator, monkeypatch: pytest.MonkeyPatch, store: Path
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    with pytest.raises(StoreError, match="clock of the host says 1970-01-01"):
        ensure()
    assert not any(request["path"].startswith("/cdn/") for request in hub.requests)
    assert published(store) == []


def run_read_only(hub: HubSimulator, store: Path) -> subprocess.CompletedProcess[str]:
    """The module in a mount namespace of its own, in which the store cannot be written."""
    options = {"repo": "Org/Model", "endpoint": hub.url, "store": str(store), "reserve_gib": 0, "proxy": ""}
    driver = (
        "import json, sys\n"
        "from ansible.module_utils.testing import patch_module_args\n"
        "from ansible_collections.socle.inference.plugins.modules import modelscope_snapshot\n"
        "with patch_module_args(json.loads(sys.argv[1])):\n"
        "    modelscope_snapshot.main()\n"
    )
    script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
    command = [sys.executable, "-c", driver, json.dumps(options)]
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(store), *command],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "collections")},
        timeout=60,
        check=False,
    )


def test_a_read_only_store_is_used_as_it_is_and_named_when_it_has_to_change(
    ensure: Ensure, hub: HubSimulator, folder: Path, store: Path
) -> None:
    able = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if able.returncode:
        pytest.skip("no mount namespace can be made here")
    ensure()
    same = run_read_only(hub, store)
    assert same.stdout, same.stderr
    assert json.loads(same.stdout)["changed"] is False
    (folder / "config.json").write_text("{}")
    result = json.loads(run_read_only(hub, store).stdout)
    assert result["failed"]
    assert str(store) in result["msg"]
    assert "read-only" in result["msg"].lower()
    assert len(published(store)) == 1


@pytest.mark.parametrize("source", ["modelscope", "huggingface"])
def test_the_module_sends_its_token_to_the_hub_alone(start: Start, folder: Path, store: Path, source: str) -> None:
    with HubSimulator(folder.parents[1]) as hub:
        hub.protect("Org/Model", "very-secret")
        hub.add_rule(path=f"{WEIGHTS}$", redirect_host="localhost", count=-1)
        process = start(source=source, endpoint=hub.url, token="very-secret", revision="v1")
        stdout, stderr = process.communicate(timeout=60)
        storage = on_storage(hub)
    result = json.loads(stdout)
    assert result["changed"], stdout
    assert {request["headers"]["Host"].split(":")[0] for request in storage} == {"localhost"}
    assert "very-secret" not in str(storage)
    assert "very-secret" not in stdout + stderr
    assert contents(Path(result["path"])) == contents(folder)
    assert not any(b"very-secret" in content for content in contents(store).values())


def sync(store: Path, **options: Any) -> dict[str, Any]:
    client = make_hub(**{"proxy": "", "policy": FAST, **options})
    return ensure_snapshot(Request("Org/Model", "master", store, reserve_bytes=0), client, Progress())


def test_a_hub_behind_a_private_authority_works_with_ca_file(folder: Path, store: Path, tmp_path: Path) -> None:
    authority, certificate = make_certificates(tmp_path)
    with HubSimulator(folder.parents[1], certificate=certificate) as hub:
        with pytest.raises(HubUnreachable, match=rf"127.0.0.1:{hub.port} cannot be reached .*not trusted.*ca_file"):
            sync(store, endpoint=hub.url)
        assert not store.exists()
        result = sync(store, endpoint=hub.url, ca_file=str(authority))
    assert contents(Path(result["path"])) == contents(folder)


def test_a_dead_proxy_is_named_with_what_to_do(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.proxy_bypass", lambda _host: False)
    with pytest.raises(
        HubUnreachable, match=r"through the proxy 127.0.0.1:1 \(.*refused\).*HTTPS_PROXY, NO_PROXY.*disk"
    ):
        sync(store, endpoint="http://hub.invalid", proxy="http://127.0.0.1:1")
    assert not store.exists()


def test_every_hub_brings_the_same_bytes(hub: HubSimulator, folder: Path, tmp_path: Path) -> None:
    results = {
        source: sync(tmp_path / source, source=source, **options)
        for source, options in {
            "modelscope": {"endpoint": hub.url},
            "directory": {"path": str(folder)},
        }.items()
    }
    client = make_hub("huggingface", hub.url, proxy="", policy=FAST)
    request = Request("Org/Model", "main", tmp_path / "huggingface", reserve_bytes=0)
    results["huggingface"] = ensure_snapshot(request, client, Progress())
    assert {result["content_id"] for result in results.values()} == {results["modelscope"]["content_id"]}
    for result in results.values():
        assert contents(Path(result["path"])) == contents(folder)
    assert results["directory"]["bytes"]["wan"] == 0
    assert results["huggingface"]["bytes"]["wan"] == results["huggingface"]["bytes"]["total"]


def test_a_folder_that_changes_while_it_is_imported_is_noticed(
    folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_hub("directory", path=str(folder), policy=FAST)
    resolve = client.resolve

    def meddle(repo: str, revision: str) -> Manifest:
        manifest = resolve(repo, revision)
        text = (folder / "config.json").read_text()
        (folder / "config.json").write_text(text.replace("a", "b"))
        return manifest

    monkeypatch.setattr(client, "resolve", meddle)
    with pytest.raises(SocleError):
        ensure_snapshot(Request("Org/Model", "master", store, reserve_bytes=0), client, Progress())
    assert not list(store.glob(".store/*/*/rev/*"))
