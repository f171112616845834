# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock beside an inventory, against a real hub; once as ansible-playbook runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import HubError, SocleError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.held import held_commit
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import make_hub
from ansible_collections.socle.inference.plugins.module_utils._hub.lock import (
    LockRequest,
    Memo,
    UnreachableFromHost,
    ensure_lock,
    lock_location,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.origin import Hub
from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import HubUnreachable
from ansible_collections.socle.inference.plugins.plugin_utils.option_names import name_in_result, name_variables

from tests.simulators.hub.server import HubSimulator

PROJECT = Path(__file__).resolve().parents[3]
FAST = Policy(backoff_s=0.01, backoff_max_s=0.02, list_timeout_s=5)
Lock = Callable[..., dict[str, Any]]
PLAY = """
- name: Lock
  hosts: all
  gather_facts: false
  tasks:
    - name: Lock the model
      socle.inference.model_lock:
        repo: Org/Model
        endpoint: "{{ hub }}"
        token: "{{ lookup('ansible.builtin.env', 'MODEL_TOKEN') }}"
        moved: "{{ moved | default('refuse') }}"
        ask_from: "{{ ask_from | default('auto') }}"
        manifest: "{{ manifest | default(omit) }}"
        option_names: "{{ names | default({}) }}"
      environment: "{{ there | default({}) }}"
      register: lock
    - name: Show it
      ansible.builtin.debug:
        msg: "{{ inventory_hostname }} {{ lock.commit }} {{ lock.manifest.files | length }}"
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    (tmp_path / "inventory").mkdir()
    return tmp_path / "inventory"


@pytest.fixture
def lock(hub: HubSimulator, inventory: Path, tmp_path: Path) -> Lock:
    """One run after the other, unless *run* names the same one."""
    runs = iter(range(1000))

    def ensure(
        revision: str = "master",
        endpoint: str = hub.url,
        token: str | None = None,
        folder: Path | None = inventory,
        run: str | None = None,
        source: str = "modelscope",
        **options: Any,
    ) -> dict[str, Any]:
        location = lock_location(str(folder) if folder else None, source, "Org/Model", revision)
        memo = Memo(tmp_path / (run or f"run{next(runs)}"), "")
        return ensure_lock(
            LockRequest("Org/Model", revision, location, **options),
            lambda: make_hub(source, endpoint, token, proxy="", policy=FAST),
            memo,
        )

    return ensure


@pytest.fixture
def move(folder: Path) -> Callable[[], None]:
    """Let the branch have another commit."""

    def change() -> None:
        (folder / "config.json").write_text('{"architectures": ["Other"]}')
        (folder / "added.txt").write_text("new")

    return change


def texts(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_first_run_writes_the_lock_and_the_second_changes_nothing(
    lock: Lock, hub: HubSimulator, inventory: Path, folder: Path
) -> None:
    first = lock()
    assert first["changed"]
    place = inventory / ".socle/locks/modelscope/Org--Model@master.json"
    assert first["lock"] == str(place)
    assert json.loads(place.read_text()) == first["manifest"]
    assert {entry["path"] for entry in first["manifest"]["files"]} == set(texts(folder))
    assert first["commit"] == first["manifest"]["source"]["commit"]
    before = place.stat()
    second = lock()
    assert not second["changed"]
    assert {**second, "changed": True, "diff": 0} == {**first, "diff": 0}
    assert (place.stat().st_ino, place.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert set(texts(inventory)) == {".socle/locks/modelscope/Org--Model@master.json"}


def test_a_moved_branch_is_refused_with_both_commits_and_the_ways_on(
    lock: Lock, inventory: Path, move: Callable[[], None]
) -> None:
    old = lock()["commit"]
    before = texts(inventory)
    move()
    with pytest.raises(HubError) as caught:
        lock()
    new = caught.value.fields["commit"]
    assert new != old
    sentence = str(caught.value)
    for part in (old, new, "2 of 7 files differ (added.txt, config.json)", "-e model_store_moved=accept", "revision: "):
        assert part in sentence
    assert f"pin it with revision: {old}" in sentence
    assert texts(inventory) == before


def test_files_that_are_gone_count_among_those_that_differ(lock: Lock, folder: Path) -> None:
    lock()
    gone = sorted(place.name for place in folder.iterdir() if place.is_file())[:2]
    for name in gone:
        (folder / name).unlink()
    with pytest.raises(HubError, match="2 of 6 files differ"):
        lock()


def test_another_size_alone_counts_among_what_differs(lock: Lock, hub: HubSimulator) -> None:
    entry = {"Path": "config.json", "Type": "blob", "Size": 1, "Sha256": "ab" * 32}
    hub.add_rule(path="/repo/files", files=[entry])
    lock()
    hub.reset()
    hub.add_rule(path="/repo/files", files=[{**entry, "Size": 2}])
    with pytest.raises(HubError, match=r"1 of 1 files differ \(config.json\)"):
        lock()


def test_a_moved_branch_can_be_kept_and_be_accepted(lock: Lock, inventory: Path, move: Callable[[], None]) -> None:
    old = lock()
    before = texts(inventory)
    move()
    kept = lock(moved="keep")
    assert not kept["changed"]
    assert kept["manifest"] == old["manifest"]
    assert old["commit"] in kept["warnings"][0]
    assert texts(inventory) == before
    tried = lock(moved="accept", check=True)
    assert tried["changed"]
    assert texts(inventory) == before
    accepted = lock(moved="accept")
    assert accepted["changed"]
    assert accepted["commit"] == tried["commit"] != old["commit"]
    assert f"commit {old['commit']}" in accepted["diff"]["before"]
    assert "added.txt 3 " in accepted["diff"]["after"]
    assert lock()["commit"] == accepted["commit"]
    assert not lock(moved="accept")["changed"]


def test_other_content_of_the_same_commit_is_called_what_it_is(lock: Lock, hub: HubSimulator) -> None:
    commit = lock()["commit"]
    entry = {"Path": "config.json", "Type": "blob", "Size": 1, "Sha256": "ab" * 32, "Revision": commit}
    hub.add_rule(path="/repo/files", files=[entry])
    with pytest.raises(HubError, match=f"other files for commit {commit}.*which a hub never should"):
        lock()


def test_without_a_hub_the_lock_is_used_with_a_warning(lock: Lock) -> None:
    with pytest.raises(HubUnreachable, match=r"127.0.0.1:1 cannot be reached.*no lock yet.*NO_PROXY.*offline"):
        lock(endpoint="http://127.0.0.1:1")
    locked = lock()
    found = lock(endpoint="http://127.0.0.1:1")
    assert found["manifest"] == locked["manifest"]
    assert not found["changed"]
    assert "127.0.0.1:1 cannot be reached" in found["warnings"][0]
    assert locked["commit"] in found["warnings"][0]


def test_a_branch_that_is_gone_is_an_error_unless_the_lock_is_to_be_kept(
    lock: Lock, hub: HubSimulator, folder: Path
) -> None:
    (folder.parent / "Model@dev").mkdir()
    (folder.parent / "Model@dev/a.txt").write_text("a")
    commit = lock("dev")["commit"]
    shutil.rmtree(folder.parent / "Model@dev")
    with pytest.raises(HubError, match=f"no revision 'dev'.*holds commit {commit}.*model_store_moved=keep"):
        lock("dev")
    assert lock("dev", moved="keep")["commit"] == commit


def test_only_a_revision_that_is_gone_is_kept_by_keeping_the_lock(lock: Lock, hub: HubSimulator) -> None:
    lock()
    hub.add_rule(path="/repo/files", status=403, count=-1)
    with pytest.raises(HubError, match="refuses access") as caught:
        lock()
    assert "model_store_moved" not in str(caught.value)


def test_offline_and_a_commit_that_is_locked_ask_nothing(lock: Lock, hub: HubSimulator) -> None:
    with pytest.raises(StoreError, match=r"no lock at .* the option offline is set"):
        lock(offline=True)
    commit = lock()["commit"]
    assert lock(commit)["changed"]
    hub.reset()
    assert lock(offline=True)["commit"] == commit
    assert lock(commit)["commit"] == commit
    assert hub.requests == []


def test_check_mode_writes_nothing_and_returns_what_would_be_locked(lock: Lock, inventory: Path) -> None:
    found = lock(check=True)
    assert found["changed"]
    assert texts(inventory) == {}
    assert not (inventory / ".socle").exists()
    assert lock()["manifest"]["content_id"] == found["content_id"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: b"", "damaged"),
        (lambda text: text[:-30], "damaged"),
        (lambda text: text.replace(b'"size": 1,', b'"size": 2,'), "does not match its own content id"),
        (lambda text: text.replace(b"config.json", b"../../evil."), "leaves its folder"),
        (lambda text: text.replace(b'"schema": 1', b'"schema": 9'), "has schema 9"),
        (lambda text: b"\xff\xfe", "no UTF-8"),
        (lambda text: b"[" * 100_000, "damaged"),
        (lambda text: text.replace(b"Org/Model", b"Org/Other"), "is that of Org/Other"),
        (lambda text: text.replace(b'"master"', b'"other"'), "is that of Org/Model at other"),
    ],
)
def test_a_damaged_lock_is_named_and_left_alone(
    lock: Lock, hub: HubSimulator, damage: Callable[[bytes], bytes], message: str
) -> None:
    place = Path(lock()["lock"])
    damaged = damage(place.read_bytes())
    place.write_bytes(damaged)
    hub.reset()
    with pytest.raises(StoreError, match=message) as caught:
        lock(moved="accept")
    assert str(place) in str(caught.value)
    assert place.read_bytes() == damaged
    assert hub.requests == []


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_lock_that_is_no_file_does_not_hold_a_run_up(lock: Lock, make: Callable[[Path], None]) -> None:
    place = Path(lock()["lock"])
    place.unlink()
    make(place)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(StoreError, match=rf"^the lock {place} is damaged \(it is no regular file\): restore it"):
        lock()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_many_hosts_at_once_cost_one_listing_and_one_change(lock: Lock, hub: HubSimulator, inventory: Path) -> None:
    hub.add_rule(path="/repo/files", delay_s=0.3, count=-1)
    with ThreadPoolExecutor(8) as pool:
        results = [future.result(30) for future in [pool.submit(lock, run="one") for _number in range(8)]]
    assert len(hub.requests) == 1
    assert len({result["content_id"] for result in results}) == 1
    assert [result["changed"] for result in results].count(True) == 1
    assert len(texts(inventory)) == 1


def test_many_hosts_wait_for_a_dead_hub_once(lock: Lock, hub: HubSimulator) -> None:
    hub.add_rule(path="/repo/files", status=503, count=-1)
    for _host in range(3):
        with pytest.raises(HubUnreachable, match="status 503"):
            lock(run="one")
    assert len(hub.requests) == FAST.list_attempts


@pytest.mark.parametrize("moved", ["refuse", "accept"])
def test_a_host_without_a_way_to_the_hub_does_not_answer_for_the_next(
    inventory: Path, tmp_path: Path, hub: HubSimulator, moved: str
) -> None:
    place = lock_location(str(inventory), "modelscope", "Org/Model", "master")
    request = LockRequest("Org/Model", "master", place, moved=moved)
    asked = []

    class CutOff:
        def resolve(self, repo: str, revision: str) -> Manifest:
            asked.append(repo)
            raise UnreachableFromHost("no route")

    def near() -> Hub:
        return make_hub(endpoint=hub.url, proxy="", policy=FAST)

    with pytest.raises(HubUnreachable, match="no route"):
        ensure_lock(request, CutOff, Memo(tmp_path / "one", ""))
    locked = ensure_lock(request, near, Memo(tmp_path / "one", ""))
    assert locked["changed"]
    for _host in range(2):
        found = ensure_lock(request, CutOff, Memo(tmp_path / "two", ""))
        assert found["content_id"] == locked["content_id"]
        assert "no route" in found["warnings"][0]
    # With a lock, one long wait is enough, unless what the hub has now is to be taken.
    assert len(asked) == (2 if moved == "refuse" else 3)


def test_two_runs_at_once_agree(lock: Lock, hub: HubSimulator, inventory: Path) -> None:
    hub.add_rule(path="/repo/files", delay_s=0.3, count=-1)
    with ThreadPoolExecutor(2) as pool:
        results = [future.result(30) for future in [pool.submit(lock) for _number in range(2)]]
    assert len(hub.requests) == 2
    assert sorted(result["changed"] for result in results) == [False, True]
    assert len(texts(inventory)) == 1


@pytest.mark.parametrize(
    "revision", ["../../../evil", "a/b", "..", ".", "/etc/passwd", "a%2fb", "ä" * 200, "x" * 200, "a:b\\c", "-rf"]
)
def test_a_revision_never_leads_out_of_the_folder_of_locks(tmp_path: Path, revision: str) -> None:
    location = lock_location(str(tmp_path), "modelscope", "Org/Model", revision)
    assert location is not None
    assert location.parent == tmp_path / ".socle/locks/modelscope"
    assert len(os.fsencode(location.name)) < 240
    location.parent.mkdir(parents=True)
    location.write_text("")
    assert location.resolve().parent == location.parent.resolve()


def test_revisions_that_look_alike_have_locks_of_their_own(tmp_path: Path) -> None:
    names = ["a/b", "a%2Fb", "a-b", "x" * 200, "x" * 199 + "y", "é", "e\u0301"]
    assert len({lock_location(str(tmp_path), "modelscope", "Org/Model", name) for name in names}) == len(names)


@pytest.mark.parametrize(("repo", "revision"), [("../x", "master"), ("Model", "master"), ("Org/Model", "a b")])
def test_names_that_cannot_be_are_refused(tmp_path: Path, repo: str, revision: str) -> None:
    with pytest.raises(HubError, match="must be"):
        lock_location(str(tmp_path), "modelscope", repo, revision)


def test_an_inventory_that_cannot_be_written_is_named(lock: Lock, inventory: Path, move: Callable[[], None]) -> None:
    # Root may write everywhere, but not below a file.
    (inventory / ".socle").write_text("")
    with pytest.raises(StoreError, match=rf"lock {inventory}.* cannot be (read|written)"):
        lock()
    assert lock(folder=None)["lock"] is None


def test_a_lock_that_cannot_be_written_leaves_nothing(
    lock: Lock, inventory: Path, monkeypatch: pytest.MonkeyPatch, move: Callable[[], None]
) -> None:
    lock()
    before = texts(inventory)
    move()

    def refuse(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StoreError, match=r"cannot be written .No space left on device.: make its folder writable"):
        lock(moved="accept")
    assert texts(inventory) == before


def test_the_token_is_in_no_file(lock: Lock, hub: HubSimulator, tmp_path: Path, folder: Path) -> None:
    hub.protect("Org/Model", "very-secret")
    with pytest.raises(HubError, match="not valid for it: set the option token to one that may read it") as caught:
        lock(token="other-secret")
    assert "other-secret" not in str(caught.value) + str(caught.value.fields)
    result = lock(token="very-secret")
    assert any("very-secret" in str(request["headers"]) for request in hub.requests)
    assert "very-secret" not in str(result)
    assert not any(b"secret" in content for content in texts(tmp_path).values())


def test_hugging_face_and_modelscope_agree_on_the_content(lock: Lock) -> None:
    one, other = lock(), lock("main", source="huggingface")
    assert one["content_id"] == other["content_id"]
    assert other["lock"].endswith("/.socle/locks/huggingface/Org--Model@main.json")


@pytest.fixture
def play(hub: HubSimulator, inventory: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """ansible-playbook for four hosts, all of them this one."""
    (inventory / "hosts.yml").write_text(json.dumps({"all": {"hosts": {f"gpu{number}": {} for number in range(4)}}}))
    (inventory.parent / "play.yml").write_text(PLAY)
    (inventory.parent / "ansible.cfg").write_text("[defaults]\n")

    def run(*options: str, **given: Any) -> subprocess.CompletedProcess[str]:
        program = Path(sys.executable).with_name("ansible-playbook")
        python = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        extra = json.dumps({**python, "hub": hub.url, **given})
        return subprocess.run(
            [str(program), str(inventory.parent / "play.yml"), "-i", str(inventory), "-e", extra, *options],
            cwd=inventory.parent,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(inventory.parent),
                "LC_ALL": "C.UTF-8",
                "NO_PROXY": "127.0.0.1",
                "MODEL_TOKEN": "very-secret",
                "ANSIBLE_CONFIG": str(inventory.parent / "ansible.cfg"),
                "ANSIBLE_COLLECTIONS_PATH": str(PROJECT / "collections"),
                "ANSIBLE_FORKS": "4",
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def test_a_playbook_run_locks_once_for_all_hosts(
    play: Callable[..., subprocess.CompletedProcess[str]], hub: HubSimulator, folder: Path, inventory: Path
) -> None:
    hub.protect("Org/Model", "very-secret")
    checked = play("--check", "--diff")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert sorted(re.findall(r"changed=(\d)", checked.stdout)) == ["0", "0", "0", "1"]
    assert len(hub.requests) == 1
    assert "+config.json 27 " in checked.stdout
    assert not (inventory / ".socle").exists()
    first = play("-vvvv")
    assert first.returncode == 0, first.stdout + first.stderr
    assert sorted(re.findall(r"changed=(\d)", first.stdout)) == ["0", "0", "0", "1"]
    place = inventory / ".socle/locks/modelscope/Org--Model@master.json"
    commit = json.loads(place.read_text())["source"]["commit"]
    assert all(f"gpu{number} {commit} 6" in first.stdout for number in range(4))
    assert len(hub.requests) == 2
    assert "very-secret" not in first.stdout + first.stderr
    (folder / "config.json").write_text("{}")
    refused = play("--limit", "gpu0")
    assert refused.returncode == 2
    assert f"commit {commit}" in refused.stdout
    accepted = play("-e", "moved=accept")
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
    assert json.loads(place.read_text())["source"]["commit"] != commit
    assert not any(b"very-secret" in content for content in texts(inventory).values())


def test_a_host_is_asked_where_the_controller_has_no_way_to_the_hub(
    play: Callable[..., subprocess.CompletedProcess[str]], hub: HubSimulator, inventory: Path
) -> None:
    hub.protect("Org/Model", "very-secret")
    only_there = {"hub": "http://hub.invalid", "there": {"http_proxy": hub.url}}
    refused = play(**only_there, ask_from="controller")
    assert refused.returncode == 2
    assert "hub.invalid cannot be reached without a proxy" in refused.stdout
    assert "or the option proxy), or bring a lock and set the option offline" in " ".join(refused.stdout.split())
    assert hub.requests == []
    done = play("-vvv", **only_there)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [request["headers"]["Host"] for request in hub.requests] == ["hub.invalid"]
    assert "very-secret" not in done.stdout + done.stderr
    assert (inventory / ".socle/locks/modelscope/Org--Model@master.json").is_file()
    shutil.rmtree(inventory / ".socle")
    nowhere = play("--limit", "gpu0", hub="http://hub.invalid")
    assert nowhere.returncode == 2
    assert "(asked from gpu0 and from the controller), and Org/Model at master has no lock" in nowhere.stdout


def test_every_host_is_asked_until_one_reaches_the_hub_and_the_controller_once(
    play: Callable[..., subprocess.CompletedProcess[str]], hub: HubSimulator, inventory: Path
) -> None:
    ways = {"gpu1": {"http_proxy": hub.url}}
    there = "{{ " + str(ways) + "[inventory_hostname] | default({}) }}"
    done = play("--limit", "gpu0,gpu1", "-f", "1", hub="http://hub.invalid", there=there)
    assert done.returncode == 2
    assert "(asked from gpu0 and from the controller)" in done.stdout
    assert (inventory / ".socle/locks/modelscope/Org--Model@master.json").is_file()
    shutil.rmtree(inventory / ".socle")
    hub.reset()
    hub.add_rule(path="/repo/files", status=503, count=-1)
    assert play("--limit", "gpu0,gpu1").returncode == 2
    assert len(hub.requests) == 1 + 2 * Policy().list_attempts


def test_a_manifest_from_elsewhere_is_taken_for_the_hub_s_answer(
    play: Callable[..., subprocess.CompletedProcess[str]], hub: HubSimulator, inventory: Path
) -> None:
    manifest = make_hub(endpoint=hub.url, proxy="").resolve("Org/Model", "v1")
    hub.reset()
    done = play(manifest=json.loads(manifest.dumps()), hub="http://hub.invalid")
    assert done.returncode == 0, done.stdout + done.stderr
    place = inventory / ".socle/locks/modelscope/Org--Model@master.json"
    assert json.loads(place.read_text())["content_id"] == manifest.content_id
    assert json.loads(place.read_text())["source"]["requested"] == "master"
    other = json.loads(manifest.dumps().replace("Org/Model", "Org/Other"))
    refused = play(manifest=other)
    assert refused.returncode == 2
    assert "describes Org/Other, but Org/Model is to be locked" in refused.stdout
    assert hub.requests == []


def test_the_way_out_of_a_moved_branch_works(lock: Lock, folder: Path) -> None:
    shutil.copytree(folder, folder.parent / "Model@old")
    old = lock()["commit"]
    (folder / "config.json").write_text("{}")
    with pytest.raises(SocleError, match=f"pin it with revision: {old}"):
        lock()
    assert lock(old)["commit"] == old


def test_going_back_to_the_commit_before_an_accepted_one_needs_no_hub(
    lock: Lock, hub: HubSimulator, inventory: Path, move: Callable[[], None]
) -> None:
    old = lock()
    move()
    lock(moved="accept", check=True)
    assert len(texts(inventory)) == 1
    lock(moved="accept")
    hub.reset()
    back = lock(old["commit"], endpoint="http://127.0.0.1:1")
    assert (back["content_id"], back["changed"]) == (old["content_id"], False)
    assert hub.requests == []
    assert back["lock"].endswith(f"/Org--Model@{old['commit']}.json")


@pytest.mark.parametrize("offline", [False, True])
def test_a_commit_that_a_host_holds_is_locked_without_a_hub(
    inventory: Path, tmp_path: Path, hub: HubSimulator, offline: bool
) -> None:
    known = make_hub(endpoint=hub.url, proxy="", policy=FAST).resolve("Org/Model", "master")
    commit = str(known.commit)

    def dead() -> Hub:
        return make_hub(endpoint="http://127.0.0.1:1", proxy="", policy=FAST)

    def ask(revision: str, run: str, held: Manifest | None) -> dict[str, Any]:
        place = lock_location(str(inventory), "modelscope", "Org/Model", revision)
        request = LockRequest("Org/Model", revision, place, offline=offline, host="gpu1")
        return ensure_lock(request, dead, Memo(tmp_path / run, ""), held=lambda: held)

    # A name means something else tomorrow, and another commit is another content.
    for revision in ("master", "f" * 40):
        with pytest.raises(SocleError):
            ask(revision, revision, known)
    found = ask(commit, "one", known)
    assert (found["changed"], found["content_id"]) == (True, known.content_id)
    assert json.loads(Path(found["lock"]).read_text())["source"]["requested"] == commit
    assert offline or "gpu1 holds commit" in found["warnings"][0]
    assert not ask(commit, "two", None)["changed"]


@pytest.mark.parametrize("moved", [False, True])
def test_a_check_counts_the_change_of_a_lock_as_often_as_a_run(
    lock: Lock, move: Callable[[], None], moved: bool
) -> None:
    options = {"moved": "accept"} if moved else {}
    if moved:
        lock()
        move()
    hosts = ("gpu1", "gpu2", "gpu3")
    checked = [lock(run="check", host=host, check=True, **options)["changed"] for host in hosts]
    assert checked == [lock(run="run", host=host, **options)["changed"] for host in hosts] == [True, False, False]


def test_a_moved_branch_fails_every_host_and_is_explained_by_the_first(lock: Lock, move: Callable[[], None]) -> None:
    lock()
    move()
    said = []
    for host in ("gpu1", "gpu2", "gpu1"):
        with pytest.raises(HubError) as caught:
            lock(run="one", host=host)
        said.append(str(caught.value))
        # What repeats the message is left out where that only points to another host.
        assert caught.value.fields.get("files_changed") == (2 if host == "gpu1" else None)
    assert "model_store_moved=accept" in said[0]
    assert said[2] == said[0]
    assert "model_store_moved=keep" in said[0]
    assert said[1] == "Org/Model at master has moved: the message of gpu1 says what to do"


def test_messages_name_the_variables_that_options_come_from(
    play: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    dead = {"hub": "http://127.0.0.1:1", "ask_from": "controller"}
    named = {"proxy": "model_store_proxy", "offline": "model_store_offline"}
    done = play("--limit", "gpu0", names=named, **dead)
    assert "or model_store_proxy), or bring a lock and set model_store_offline" in " ".join(done.stdout.split())


def test_only_options_are_replaced_by_variables() -> None:
    names = {"adopt_from": "model_store_adopt_from", "token": "model_store_token"}
    text = "/adopt_from/x, which adopt_from names, the token, model_store_adopt_from, set the option token"
    assert name_variables(text, names) == (
        "/adopt_from/x, which model_store_adopt_from names, the token, model_store_adopt_from, set model_store_token"
    )

    assert name_variables("token holds a blank", names) == "model_store_token holds a blank"


def test_what_ansible_prints_first_names_the_variables_too() -> None:
    def failed(message: str, told: str) -> dict[str, Any]:
        return {"failed": True, "msg": message, "exception": SimpleNamespace(event=SimpleNamespace(msg=told))}

    names = {"store": "model_store_path"}
    renamed = failed("store must be absolute", "store must be absolute")
    name_in_result(renamed, names)
    assert renamed == {"failed": True, "msg": "model_store_path must be absolute"}
    for kept in (failed("no option at all", "no option at all"), failed("store must be absolute", "a crash")):
        name_in_result(kept, names)
        assert "exception" in kept


def test_a_host_s_store_names_what_it_holds_of_a_commit(ensure: Callable[..., dict[str, Any]], store: Path) -> None:
    result = ensure()
    found = held_commit(store, "modelscope", "Org/Model", result["commit"])
    assert found and found.content_id == result["content_id"]
    assert held_commit(store, "modelscope", "Org/Model", "master") is None
    assert held_commit(store, "modelscope", "Org/Model", result["commit"][:12] + "0" * 28) is None
    (Path(result["path"]) / "config.json").unlink()
    assert held_commit(store, "modelscope", "Org/Model", result["commit"]) is None
