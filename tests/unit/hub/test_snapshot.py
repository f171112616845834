# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a user sees of modelscope_snapshot, against a real server."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import HubError, SocleError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import make_hub
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import parse_files
from ansible_collections.socle.inference.plugins.module_utils._hub.modelscope import ModelScopeHub
from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy
from ansible_collections.socle.inference.plugins.module_utils._hub.snapshot import Request, ensure_snapshot
from ansible_collections.socle.inference.plugins.module_utils._hub.store import RepoStore
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import Client, HubUnreachable
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

from tests.simulators.hub.server import HubSimulator
from tests.support.model_store import base, contents, finish, flip_byte, overwrite, published, wait_for

Ensure = Callable[..., dict[str, Any]]
Start = Callable[..., subprocess.Popen[str]]
WEIGHTS = "model-00001-of-00002.safetensors"
MORE_WEIGHTS = "model-00002-of-00002.safetensors"
FAST = Policy(backoff_s=0.01, backoff_max_s=0.02, list_timeout_s=5)
ON_STORAGE = rf"^/cdn/.*{WEIGHTS}"


def written(store: Path) -> dict[Path, tuple[int, ...]]:
    """Everything of a store that a write would change; its reader changes the times of access, which are no part."""
    found = ((entry, entry.lstat()) for entry in sorted(store.rglob("*")))
    return {
        entry: (status.st_ino, status.st_mode, status.st_nlink, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        for entry, status in found
    }


def stage(store: Path) -> list[str]:
    return sorted(entry.name for entry in (base(store) / "stage").iterdir())


def trust_again(store: Path, path: Path) -> None:
    """As with bit rot: the ledger agrees with every number that stat gives."""
    status = path.stat()
    ledger = json.loads((base(store) / "ledger.json").read_text())
    entry = ledger["revisions"][path.parent.name]["files"][path.name]
    entry.update(mtime_ns=status.st_mtime_ns, ctime_ns=status.st_ctime_ns)
    (base(store) / "ledger.json").write_text(json.dumps(ledger))


def test_a_download_is_complete_named_and_read_only(ensure: Ensure, folder: Path, store: Path) -> None:
    result = ensure()
    assert result["changed"]
    path = Path(result["path"])
    assert contents(path) == contents(folder)
    assert (store / "Model").resolve() == path
    assert not (store / "Model").readlink().is_absolute()
    assert path.name == result["commit"][:12]
    assert result["bytes"]["wan"] == result["bytes"]["total"] == sum(map(len, contents(folder).values()))
    assert {entry.stat().st_mode & 0o777 for entry in path.rglob("*") if entry.is_file()} == {0o444}
    assert {entry.stat().st_mode & 0o777 for entry in store.rglob("*") if entry.is_dir()} == {0o755}
    assert stage(store) == []


def test_an_unchanged_tree_costs_one_listing_and_no_write(ensure: Ensure, hub: HubSimulator, store: Path) -> None:
    first = ensure()
    hub.reset()
    ledger = (base(store) / "ledger.json").stat()
    second = ensure()
    assert not second["changed"]
    assert (second["path"], second["content_id"]) == (first["path"], first["content_id"])
    assert [request["path"] for request in hub.requests] == ["/api/v1/models/Org/Model/repo/files"]
    assert second["verify"]["hashed_files"] == 0
    assert second["seconds"] < 1
    after = (base(store) / "ledger.json").stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        ledger.st_ino,
        ledger.st_mtime_ns,
        ledger.st_ctime_ns,
    )


def test_a_commit_that_is_proven_asks_the_hub_nothing(ensure: Ensure, hub: HubSimulator) -> None:
    commit = ensure()["commit"]
    hub.reset()
    assert not ensure(revision=commit)["changed"]
    assert hub.requests == []


def test_a_tag_of_the_same_commit_downloads_nothing(ensure: Ensure, hub: HubSimulator) -> None:
    ensure()
    hub.reset()
    assert not ensure(revision="v1")["changed"]
    assert len(hub.requests) == 1


def test_a_new_commit_fetches_only_what_changed(ensure: Ensure, folder: Path, store: Path) -> None:
    old = ensure()
    overwrite(folder / "config.json", b'{"architectures": ["Other"]}')
    new = ensure()
    assert new["previous"]["commit"] == old["commit"]
    assert new["bytes"]["wan"] == len(b'{"architectures": ["Other"]}')
    assert new["bytes"]["reused_link"] == new["bytes"]["total"] - new["bytes"]["wan"]
    assert contents(Path(new["path"])) == contents(folder)
    assert len(published(store)) == 2
    # Linking changed the inodes' ctime: neither revision may need hashing for that.
    assert ensure(revision=old["commit"])["verify"]["hashed_files"] == 0
    assert (store / "Model").resolve() == Path(old["path"])
    assert ensure()["verify"]["hashed_files"] == 0


def test_wrong_content_is_kept_aside_and_never_published(ensure: Ensure, hub: HubSimulator, store: Path) -> None:
    hub.add_rule(path=ON_STORAGE, corrupt_at=1000, count=-1)
    with pytest.raises(HubError, match=rf"{WEIGHTS}.*wrong content.*2 tries.*nothing was published") as caught:
        ensure()
    assert published(store) == []
    assert not (store / "Model").is_symlink()
    assert Path(caught.value.fields["kept"]).parent == base(store) / "stage" / "rejected"
    assert Path(caught.value.fields["kept"]).stat().st_size > 900_000
    assert sum(request["path"].startswith("/cdn/") and WEIGHTS in str(request) for request in hub.requests) == 2
    hub.reset()
    result = ensure()
    assert result["bytes"]["wan"] < result["bytes"]["total"], "the files that were right are taken over"
    assert list((base(store) / "stage" / "rejected").iterdir()) == []


def test_a_flipped_byte_on_the_way_is_fetched_again(ensure: Ensure, hub: HubSimulator, folder: Path) -> None:
    hub.add_rule(path=ON_STORAGE, corrupt_at=1000)
    assert contents(Path(ensure()["path"])) == contents(folder)


def test_a_hash_that_the_listing_gets_wrong_is_never_published(ensure: Ensure, hub: HubSimulator, store: Path) -> None:
    hub.add_rule(path="/repo/files", sha256={"config.json": "0" * 64})
    with pytest.raises(HubError, match=r"config.json.*expected SHA-256 000000000000"):
        ensure()
    assert published(store) == []


def test_an_unknown_revision_names_those_that_exist(ensure: Ensure, store: Path) -> None:
    with pytest.raises(HubError, match=r"no revision 'v9' of Org/Model.*branches: master; tags: v1"):
        ensure(revision="v9")
    assert not store.exists()


def test_an_unknown_model_is_named(ensure: Ensure) -> None:
    with pytest.raises(HubError, match=r"has no model Org/Nothing.*a private model needs a token"):
        ensure(repo="Org/Nothing")


def test_without_a_hub_what_is_proven_is_used_with_a_warning(ensure: Ensure, store: Path) -> None:
    path = ensure()["path"]
    result = ensure(endpoint="http://127.0.0.1:1")
    assert not result["changed"]
    assert result["path"] == path
    assert "127.0.0.1:1 cannot be reached without a proxy" in result["warnings"][0]


def test_without_a_hub_and_without_a_snapshot_it_is_an_error_with_a_way_out(ensure: Ensure, store: Path) -> None:
    with pytest.raises(HubUnreachable, match=r"127.0.0.1:1 cannot be reached without a proxy .*refused.*HTTPS_PROXY"):
        ensure(endpoint="http://127.0.0.1:1")
    assert not store.exists()


def test_without_a_hub_a_damaged_snapshot_is_an_error(ensure: Ensure) -> None:
    flip_byte(Path(ensure()["path"]) / WEIGHTS)
    with pytest.raises(HubUnreachable, match="not complete"):
        ensure(endpoint="http://127.0.0.1:1")


def test_a_dead_proxy_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch, hub: HubSimulator) -> None:
    monkeypatch.setenv("http_proxy", "http://user:geheim@127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    client = ModelScopeHub(Client("http://hub.invalid", sleep=lambda _seconds: None))
    with pytest.raises(HubUnreachable, match=r"through the proxy 127.0.0.1:1") as caught:
        client.list_entries("Org/Model", "master")
    assert "geheim" not in str(caught.value) + str(caught.value.fields)


def test_offline_uses_what_is_proven_and_asks_nothing(ensure: Ensure, hub: HubSimulator) -> None:
    with pytest.raises(StoreError, match="not in the store"):
        ensure(offline=True)
    path = ensure()["path"]
    hub.reset()
    assert ensure(offline=True)["path"] == path
    flip_byte(Path(path) / WEIGHTS)
    with pytest.raises(StoreError, match="1 missing or damaged files"):
        ensure(offline=True)
    assert hub.requests == []


@pytest.mark.parametrize("drops", [1, 5])
def test_a_dropped_connection_goes_on_where_it_ended(
    ensure: Ensure, hub: HubSimulator, folder: Path, drops: int
) -> None:
    hub.add_rule(path=ON_STORAGE, drop_after=150_000, count=drops)
    result = ensure()
    assert contents(Path(result["path"])) == contents(folder)
    assert result["bytes"]["wan"] == result["bytes"]["total"], "no byte came twice"
    ranges = [request["range"] for request in hub.requests if request["path"].startswith("/cdn/") and request["range"]]
    assert ranges == [f"bytes={150_000 * number}-" for number in range(1, drops + 1)]


def test_a_server_that_ignores_ranges_starts_the_file_over(ensure: Ensure, hub: HubSimulator, folder: Path) -> None:
    hub.add_rule(path=ON_STORAGE, drop_after=150_000)
    hub.add_rule(path=ON_STORAGE, ignore_range=True, count=-1)
    assert contents(Path(ensure()["path"])) == contents(folder)
    asked = [request for request in hub.requests if request["path"].startswith("/cdn/") and WEIGHTS in str(request)]
    assert len(asked) == 2, "what came before the drop was put aside, not mixed with the new start"


def test_drops_without_progress_end_with_a_message(ensure: Ensure, hub: HubSimulator, store: Path) -> None:
    hub.add_rule(path=ON_STORAGE, drop_after=100, count=-1)
    with pytest.raises(HubError, match=rf"{WEIGHTS} from 127.0.0.1.*gave up after 8 tries"):
        ensure()
    assert published(store) == []


def test_an_expired_storage_address_is_asked_for_again(ensure: Ensure, hub: HubSimulator, folder: Path) -> None:
    hub.add_rule(path=ON_STORAGE, status=403)
    hub.add_rule(path="/repo$", status=503, retry_after=0)
    hub.add_rule(path="/repo/files$", status=403)
    assert contents(Path(ensure()["path"])) == contents(folder)


def test_another_run_is_waited_for_and_then_nothing_is_left_to_do(
    start: Start, hub: HubSimulator, folder: Path, store: Path
) -> None:
    hub.add_rule(path=ON_STORAGE, bytes_per_s=600_000)
    first = start()
    wait_for(lambda: any(request["path"].startswith("/cdn/") for request in hub.requests))
    second = start()
    results = [finish(first), finish(second)]
    assert [result["changed"] for result in results] == [True, False]
    assert contents(Path(results[0]["path"])) == contents(folder)
    names = [(request["params"].get("FilePath") or request["params"].get("name")) for request in hub.requests]
    assert names.count(WEIGHTS) == 2, "once at the hub, once at its storage"


def test_a_lock_that_is_held_too_long_names_its_holder(ensure: Ensure, store: Path) -> None:
    base(store).mkdir(parents=True)
    with (base(store) / "lock").open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        holder.write(json.dumps({"host": "gpu7", "pid": 4711, "since": "2026-11-30T09:28:44Z"}))
        holder.flush()
        with pytest.raises(StoreError, match="process 4711 on gpu7 since 2026-11-30T09:28:44Z"):
            ensure(lock_timeout_s=0.1)


def test_killed_in_the_middle_the_next_run_goes_on(start: Start, hub: HubSimulator, folder: Path, store: Path) -> None:
    hub.add_rule(path=ON_STORAGE, bytes_per_s=400_000)
    process = start()
    wait_for(lambda: any(part.stat().st_size > 200_000 for part in base(store).glob("stage/*/part/*")))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert published(store) == []
    assert not (store / "Model").is_symlink()
    result = finish(start())
    assert result["changed"]
    assert contents(Path(result["path"])) == contents(folder)
    assert result["bytes"]["reused_part"] > 200_000
    assert result["bytes"]["wan"] + result["bytes"]["reused_part"] == result["bytes"]["total"]
    assert stage(store) == []


def test_killed_anywhere_while_publishing_a_rerun_converges(
    ensure: Ensure, folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Die before each change of a name in turn: what is visible stays whole, and the next run ends well."""

    class Death(BaseException):
        pass

    for number in range(1, 200):
        overwrite(folder / "config.json", json.dumps({"number": number}).encode())
        left = number

        def step(original: Callable[..., Any]) -> Callable[..., Any]:
            def patched(*args: Any, **options: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Death
                return original(*args, **options)

            return patched

        with monkeypatch.context() as patch:
            for owner, name in (
                (Path, "replace"),
                (Path, "rename"),
                (os, "link"),
                (Path, "symlink_to"),
                (Path, "mkdir"),
            ):
                patch.setattr(owner, name, step(getattr(owner, name)))
            try:
                ensure()
                died = False
            except Death:
                died = True
        for name in published(store):
            assert set(contents(base(store) / "rev" / name)) == set(contents(folder)), "no revision is there in part"
        if (store / "Model").is_symlink():
            assert set(contents((store / "Model").resolve())) == set(contents(folder))
        result = ensure()
        assert contents(Path(result["path"])) == contents(folder)
        assert (store / "Model").resolve() == Path(result["path"])
        assert stage(store) == []
        if not died:
            break
    assert not died and number > 10


def test_the_token_stays_with_the_hub(folder: Path, ensure: Ensure) -> None:
    with HubSimulator(folder.parents[1], cdn_host="localhost") as hub:
        result = ensure(endpoint=hub.url, token="very-secret")
        seen = {request["path"].split("/")[1]: request["headers"] for request in hub.requests}
    assert "very-secret" in seen["api"]["Authorization"]
    assert seen["cdn"]["Host"].startswith("localhost")
    assert "very-secret" not in str(seen["cdn"])
    assert "very-secret" not in str(result)


def test_the_token_is_in_no_result(start: Start, hub: HubSimulator, store: Path) -> None:
    stdout, stderr = start(token="very-secret").communicate(timeout=60)
    assert json.loads(stdout)["changed"]
    assert any("very-secret" in str(request["headers"]) for request in hub.requests)
    assert "very-secret" not in stdout + stderr
    assert not any(b"very-secret" in content for content in contents(store).values())


def test_a_disk_that_is_too_small_is_noticed_before_the_first_byte(
    ensure: Ensure, hub: HubSimulator, store: Path
) -> None:
    with pytest.raises(
        StoreError, match=r"iB free, but [0-9.]+ [KM]?i?B are to be downloaded and 1024.0 TiB must stay free"
    ):
        ensure(reserve_bytes=1 << 50)
    assert [request["path"] for request in hub.requests] == ["/api/v1/models/Org/Model/repo/files"]
    assert published(store) == []


def test_check_mode_writes_nothing_and_says_what_would_come(ensure: Ensure, store: Path) -> None:
    result = ensure(check=True)
    assert result["changed"]
    assert result["plan"]["bytes"] == result["bytes"]["total"] > 1_200_000
    assert result["plan"]["missing_files"] == len(result["plan"]["missing"]) == 6
    assert result["plan"]["free"] > 0
    assert not store.exists()
    path = ensure()["path"]
    os.utime(Path(path) / WEIGHTS)
    before = written(store)
    assert not ensure(check=True)["changed"]
    assert written(store) == before
    flip_byte(Path(path) / WEIGHTS)
    before = written(store)
    assert ensure(check=True)["plan"]["missing"] == [WEIGHTS]
    assert written(store) == before


def test_quick_notices_a_change_by_the_clock_and_repairs_only_that(ensure: Ensure, folder: Path) -> None:
    path = Path(ensure()["path"])
    flip_byte(path / WEIGHTS)
    result = ensure()
    assert result["changed"]
    assert result["files"]["repaired"] == 1
    assert result["bytes"]["wan"] == (folder / WEIGHTS).stat().st_size
    assert contents(path) == contents(folder)


def test_quick_hashes_what_was_touched_but_is_the_same(ensure: Ensure, hub: HubSimulator) -> None:
    path = Path(ensure()["path"])
    os.utime(path / WEIGHTS)
    result = ensure()
    assert not result["changed"]
    assert result["verify"]["hashed_files"] == 1
    assert ensure()["verify"]["hashed_files"] == 0


def test_full_notices_what_no_clock_shows(ensure: Ensure, folder: Path, store: Path) -> None:
    path = Path(ensure()["path"])
    flip_byte(path / WEIGHTS)
    (path / WEIGHTS).chmod(0o444)
    trust_again(store, path / WEIGHTS)
    assert not ensure()["changed"]
    result = ensure(full=True)
    assert result["changed"]
    assert result["files"]["repaired"] == 1
    assert contents(path) == contents(folder)


def test_a_lost_ledger_costs_hashing_and_no_download(ensure: Ensure, store: Path) -> None:
    ensure()
    (base(store) / "ledger.json").write_text("{")
    result = ensure()
    assert not result["changed"]
    assert result["verify"]["hashed_files"] == 6


def test_missing_files_come_back_and_foreign_ones_are_moved_aside(ensure: Ensure, folder: Path, store: Path) -> None:
    path = Path(ensure()["path"])
    (path / "config.json").unlink()
    (path / "foreign").mkdir()
    (path / "foreign" / "file").write_text("mine")
    result = ensure()
    assert (result["files"]["fetched"], result["files"]["removed"]) == (1, 1)
    assert contents(path) == contents(folder)
    assert any(content == b"mine" for content in contents(base(store) / "stage" / "rejected").values())


def test_pinned_content_that_differs_is_refused(ensure: Ensure, store: Path) -> None:
    with pytest.raises(HubError, match="is pinned"):
        ensure(content_id="sha256:" + "0" * 64)
    assert not store.exists()
    pin = ensure()["content_id"]
    assert not ensure(content_id=pin)["changed"]


def test_a_name_that_is_taken_is_left_alone(ensure: Ensure, store: Path) -> None:
    store.mkdir()
    (store / "Model").mkdir()
    with pytest.raises(StoreError, match="is no link of this store"):
        ensure()
    assert ensure(link="other")["link"] == str(store / "other")


def test_a_listing_that_is_cut_off_is_walked(ensure: Ensure, hub: HubSimulator, folder: Path) -> None:
    hub.list_cap = 8  # one more than the entries: five files, one folder, one file in it
    for number in range(4):
        (folder / "extra" / f"{number}.txt").write_text(str(number))
    assert contents(Path(ensure(list_cap=8)["path"])) == contents(folder)
    (folder / "extra" / "4.txt").write_text("4")
    (folder / "extra" / "5.txt").write_text("5")
    (folder / "extra" / "6.txt").write_text("6")
    with pytest.raises(HubError, match=r"folder 'extra'.*cannot be listed completely"):
        ensure(list_cap=8)


def test_a_broken_upload_is_not_activated(ensure: Ensure, folder: Path, store: Path) -> None:
    old = ensure()["path"]
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1])
    with pytest.raises(HubError, match="its header describes"):
        ensure()
    assert (store / "Model").resolve() == Path(old)
    assert len(published(store)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repo": "../../etc"}, "repo must be"),
        ({"repo": "Model"}, "repo must be"),
        ({"revision": "a b"}, "revision must be"),
        ({"link": "../x"}, "link must be"),
        ({"link": ".store"}, "link must be"),
        ({"store": Path("models")}, "absolute"),
        ({"endpoint": "file:///etc"}, "http"),
        ({"endpoint": "https://user:geheim@hub.example"}, "credentials"),
    ],
)
def test_impossible_wishes_are_refused(
    ensure: Ensure, hub: HubSimulator, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SocleError, match=message) as caught:
        ensure(**options)
    assert hub.requests == []
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("full", [False, True])
def test_a_file_that_changes_during_the_download_is_fetched_instead_of_linked(
    ensure: Ensure, hub: HubSimulator, folder: Path, full: bool
) -> None:
    old = Path(ensure()["path"])
    flip_byte(folder / MORE_WEIGHTS)
    hub.reset()
    hub.add_rule(path=rf"^/cdn/.*{MORE_WEIGHTS}", bytes_per_s=300_000, count=-1)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ensure, full=full)
        wait_for(lambda: any("/cdn/" in request["path"] for request in hub.requests))
        flip_byte(old / WEIGHTS)
        new = running.result(60)
    assert contents(Path(new["path"])) == contents(folder)
    assert new["bytes"]["wan"] == sum((folder / name).stat().st_size for name in (WEIGHTS, MORE_WEIGHTS))
    assert new["bytes"]["reused_link"] == new["bytes"]["total"] - new["bytes"]["wan"]
    assert ensure(full=True)["verify"]["hashed_files"] == new["files"]["total"]


def test_full_links_nothing_that_is_rotten(ensure: Ensure, folder: Path, store: Path) -> None:
    old = ensure()
    rotten = Path(old["path"]) / WEIGHTS
    flip_byte(rotten)
    trust_again(store, rotten)
    config = (folder / "config.json").read_bytes()
    overwrite(folder / "config.json", b"{}")
    assert ensure(check=True, full=True)["plan"]["bytes"] == rotten.stat().st_size + 2
    new = ensure(full=True)
    assert contents(Path(new["path"])) == contents(folder)
    assert new["bytes"]["wan"] == rotten.stat().st_size + 2
    overwrite(folder / "config.json", config)
    repaired = ensure(revision=old["commit"])
    assert repaired["files"]["repaired"] == 1
    assert rotten.read_bytes() == (folder / WEIGHTS).read_bytes()


@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_a_lost_manifest_comes_back(ensure: Ensure, hub: HubSimulator, store: Path, damage: str) -> None:
    first = ensure()
    manifest = next((base(store) / "manifest").iterdir())
    before = manifest.read_bytes()
    manifest.unlink()
    if damage == "damaged":
        manifest.write_text("{}")
    assert not ensure()["changed"]
    assert json.loads(manifest.read_bytes())["files"] == json.loads(before)["files"]
    hub.reset()
    assert not ensure(revision=first["commit"], content_id=first["content_id"])["changed"]
    assert not ensure(offline=True)["changed"]
    assert hub.requests == []


def test_a_lost_manifest_comes_back_when_only_the_link_is_missing(ensure: Ensure, store: Path) -> None:
    ensure()
    manifest = next((base(store) / "manifest").iterdir())
    manifest.unlink()
    (store / "Model").unlink()
    assert ensure()["bytes"]["wan"] == 0
    assert manifest.is_file()


def test_foreign_files_are_kept_for_a_week(ensure: Ensure, store: Path) -> None:
    path = Path(ensure()["path"])
    (path / "foreign.bin").write_text("x")
    (path / "other").mkdir()
    (path / "other" / "deep.bin").write_text("x")
    os.utime(path / "foreign.bin", (0, 0))
    ensure()
    rejected = base(store) / "stage" / "rejected"
    assert len(list(rejected.iterdir())) == 2
    ensure()
    assert len(list(rejected.iterdir())) == 2, "they are young, however old the file was"
    for place in rejected.iterdir():
        os.utime(place, (time.time() - 8 * 86400,) * 2)
    assert not ensure()["changed"]
    assert list(rejected.iterdir()) == []


@pytest.mark.parametrize(
    "token", ["sec\nret", "secret\n", "sec\rret", "sec ret", "sec\x00ret", "s\u00e9cret", "sec\ud800ret"]
)
def test_a_token_that_cannot_be_one_is_refused_before_any_request(
    ensure: Ensure, hub: HubSimulator, token: str
) -> None:
    with pytest.raises(HubError, match=r"^token holds a line break") as caught:
        ensure(token=token)
    assert "ret" not in str(caught.value).replace("break", "")
    assert caught.value.fields == {}
    assert hub.requests == []


def test_a_login_page_is_named_and_other_faults_are_not_called_one(
    ensure: Ensure, hub: HubSimulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("urllib.request.proxy_bypass", lambda _host: False)
    monkeypatch.setenv("http_proxy", "http://proxy.example:port")
    client = ModelScopeHub(Client(hub.url, policy=FAST))
    with pytest.raises(HubUnreachable, match=r"through a proxy whose address .* is not valid") as caught:
        client.list_entries("Org/Model", "master")
    assert "login page" not in str(caught.value)
    assert "nonnumeric" not in str(caught.value)
    with pytest.raises(HubError, match=r"cannot be asked") as refused:
        make_hub(endpoint=f"http://{'a' * 70}.example", proxy="", policy=FAST).resolve("Org/Model", "master")
    assert "login page" not in str(refused.value)


@pytest.mark.parametrize(
    "address",
    ["http://[::1", "http://host:port", "http://host:99999", "http://host:0", "http://a b", "http://h\n", "x"],
)
def test_addresses_that_are_none_are_refused(address: str) -> None:
    with pytest.raises(HubError, match=r"^endpoint must be an http or https address"):
        make_hub(endpoint=address)
    with pytest.raises(HubError, match=r"^proxy must be an http or https address"):
        make_hub(endpoint="http://127.0.0.1", proxy=address)


@pytest.mark.parametrize("reserve", ["nan", "inf", "-inf", -1])
def test_a_reserve_that_is_no_size_is_refused(start: Start, reserve: Any) -> None:
    result = finish(start(reserve_gib=reserve))
    assert result["msg"].startswith("reserve_gib must be a number of GiB")


@pytest.mark.parametrize(
    "damage",
    [
        lambda ledger: ledger["revisions"].update(dict.fromkeys(ledger["revisions"], 3)),
        lambda ledger: [value.update(files=[1]) for value in ledger["revisions"].values()],
        lambda ledger: [value["files"].update({WEIGHTS: None}) for value in ledger["revisions"].values()],
        lambda ledger: [value["files"][WEIGHTS].update(sha256=[]) for value in ledger["revisions"].values()],
        lambda ledger: [value["files"][WEIGHTS].update(size={}) for value in ledger["revisions"].values()],
        lambda ledger: [
            value["files"].update({"a\0": value["files"][WEIGHTS]}) for value in ledger["revisions"].values()
        ],
        lambda ledger: ledger["revisions"].update({"../\0": {"files": {}}}),
        lambda ledger: ledger.update(revisions=[]),
        lambda ledger: ledger.update(refs=7),
        lambda ledger: ledger["refs"].update(master=["x"]),
        lambda ledger: ledger["refs"].update(master="\0"),
        lambda ledger: [value.update(full=10**400) for value in ledger["revisions"].values()],
        lambda ledger: [value.update(full=float("inf")) for value in ledger["revisions"].values()],
        lambda ledger: [value["files"][WEIGHTS].update(ctime_ns=10**400) for value in ledger["revisions"].values()],
    ],
)
def test_a_ledger_with_nonsense_in_it_heals(
    ensure: Ensure, folder: Path, store: Path, damage: Callable[[Any], Any]
) -> None:
    ensure()
    ledger = json.loads((base(store) / "ledger.json").read_text())
    damage(ledger)
    (base(store) / "ledger.json").write_text(json.dumps(ledger))
    assert not ensure(offline=True)["changed"]
    (base(store) / "ledger.json").write_text(json.dumps(ledger))
    overwrite(folder / "config.json", b"{}")
    assert contents(Path(ensure()["path"])) == contents(folder)
    assert ensure()["verify"]["hashed_files"] == 0


@pytest.mark.parametrize("text", ["[" * 100_000, '{"schema": 1}', "\0", '{"schema": 1' + "0" * 5000 + "}", "{}"])
def test_a_damaged_ledger_is_told_and_counts_as_empty(ensure: Ensure, store: Path, text: str) -> None:
    ensure()
    (base(store) / "ledger.json").write_text(text)
    result = ensure()
    assert not result["changed"] and result["verify"]["hashed_files"] == 6
    assert [warning for warning in result["warnings"] if "ledger.json is damaged and counts as empty" in warning]
    again = ensure()
    assert not again["warnings"] and again["verify"]["hashed_files"] == 0


def test_the_newest_proof_of_each_file_counts(ensure: Ensure, folder: Path, store: Path) -> None:
    """Files that a later revision was wholly hashed with were hashed then, for the earlier ones too."""
    first = Path(ensure()["path"])
    ledger = json.loads((base(store) / "ledger.json").read_text())
    ledger["revisions"][first.name]["full"] = 1000.0
    (base(store) / "ledger.json").write_text(json.dumps(ledger))
    (folder / "config.json").write_text('{"architectures": ["Other"]}')
    second = Path(ensure()["path"])
    ensure(full=True)
    (folder / "config.json").write_text('{"architectures": ["Third"]}')
    third = Path(ensure()["path"])
    repo = RepoStore(store, "modelscope", "Org/Model").read_ledger()
    newest = repo.full_check(second.name)
    assert newest and (repo.full_check(third.name) or 0) >= newest
    assert repo.full_check(first.name) == 1000.0, "its own file was not hashed again"


def test_a_path_that_is_no_unicode_is_refused_in_one_sentence() -> None:
    entry = {"Path": "a\ud800", "Type": "blob", "Size": 1, "Sha256": "0" * 64}
    with pytest.raises(HubError, match=r"is not valid Unicode; nothing was downloaded") as caught:
        parse_files([entry])
    assert caught.value.fields["path"].encode() == b"a\\ud800"
    str(caught.value).encode()


def test_a_revision_that_is_no_unicode_is_refused(ensure: Ensure) -> None:
    with pytest.raises(HubError, match=r"^revision must be"):
        ensure(revision="a\ud800")


def test_a_refused_token_is_in_no_result(start: Start, hub: HubSimulator) -> None:
    stdout, stderr = start(token="se-12345\ncret-67890").communicate(timeout=60)
    assert json.loads(stdout)["msg"].startswith("token holds a line break")
    assert "12345" not in stdout + stderr
    assert "67890" not in stdout + stderr
    assert hub.requests == []


def test_a_linked_file_that_changes_before_it_is_published_is_noticed(
    ensure: Ensure, hub: HubSimulator, folder: Path, store: Path
) -> None:
    old = Path(ensure()["path"])
    overwrite(folder / "config.json", b"{}")

    class Meddler(Progress):
        def update(self, phase: str, *args: Any, **values: Any) -> None:
            if phase == "publishing":
                flip_byte(old / WEIGHTS)

    request = Request(repo="Org/Model", revision="master", store=store, reserve_bytes=0)
    with pytest.raises(StoreError, match=rf"{WEIGHTS}, which .* shares with another revision, was changed"):
        ensure_snapshot(request, make_hub(endpoint=hub.url, proxy="", policy=FAST), Meddler())
    assert published(store) == [old.name]
    assert contents(Path(ensure()["path"])) == contents(folder)


def test_what_is_only_noted_waits_for_nobody_and_fails_no_run(ensure: Ensure, store: Path) -> None:
    """Another run has the lock: what was found out is told all the same, and the next run notes it."""
    path = Path(ensure()["path"])
    (base(store) / "stage" / "1-dead").mkdir()
    with (base(store) / "lock").open("r+") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert not ensure()["changed"]
        flip_byte(path / WEIGHTS)
        with pytest.raises(StoreError, match=rf"1 missing or damaged files \({WEIGHTS}\)"):
            ensure(offline=True, activate=False, full=True)
    assert (base(store) / "stage" / "1-dead").exists()
    assert ensure()["files"]["repaired"] == 1
    assert not (base(store) / "stage" / "1-dead").exists()
