# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Going back: to what, whether it is still there, once, and whatever interrupts it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.generations import overrides_of
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._engine.instances import list_instances
from ansible_collections.socle.inference.plugins.module_utils._engine.launch import Launcher
from ansible_collections.socle.inference.plugins.module_utils._engine.quadlet import QuadletBackend
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError

from .conftest import DIGEST, Host
from .test_launch import Fuse, FusedFiles, Killed, nobody


@pytest.fixture
def good(plan: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """A launch whose image, model and secret are on the host."""
    model = tmp_path / "models/rev"
    model.mkdir(parents=True)
    plan["mounts"][0]["source"] = str(model)
    plan["mounts"][1]["source"] = str(tmp_path / "cache")
    return plan


@pytest.fixture
def wrong(good: dict[str, Any]) -> dict[str, Any]:
    return {**good, "launch_fingerprint": "sha256:bbbb", "argv": [*good["argv"], "--max-num-seqs", "4000"]}


def stocked(host: Host) -> Host:
    host.images[DIGEST.removeprefix("sha256:")] = []
    host.secrets["socle-chat-api_key"] = ("value", "mark")
    return host


class Site:
    """A host on which generation 1 was accepted and generation 2 failed."""

    def __init__(self, folder: Path, good: dict[str, Any], wrong: dict[str, Any]) -> None:
        self.folder, self.good, self.wrong = folder, good, wrong
        self.host = stocked(Host())
        self.launcher = self.make()
        self.launcher.start(good)
        self.host.active = "active"
        self.launcher.mark("chat", "accepted")
        self.launcher.start(wrong)
        self.launcher.mark("chat", "failed", "the KV cache is too small (SOC-D21).")
        self.host.active = "inactive"

    def make(self, runner: Any = None, files: Files | None = None) -> Launcher:
        backend = QuadletBackend(runner or self.host, self.folder / "systemd", [Path("/bin/true")])
        return Launcher(backend, self.folder / "instances", files or Files(), listens=nobody)

    @property
    def instance(self) -> dict[str, Any]:
        backend = QuadletBackend(self.host, self.folder / "systemd", [Path("/bin/true")])
        found: dict[str, Any] = list_instances(backend, self.folder / "instances", Files())[0]["chat"]
        return found

    @property
    def unit(self) -> str:
        return (self.folder / "systemd/vllm-chat.container").read_text()


@pytest.fixture
def site(tmp_path: Path, good: dict[str, Any], wrong: dict[str, Any]) -> Site:
    return Site(tmp_path / "site", good, wrong)


def test_the_accepted_launch_comes_back_by_its_own_plan_and_unit(site: Site, good: dict[str, Any]) -> None:
    unit_of_1 = (site.folder / "instances/chat/generations/1/vllm-chat.container").read_text()
    result = site.launcher.roll_back("chat", automatic=True)
    assert (result["action"], result["generation"], result["restores"], result["starting"]) == ("started", 3, 1, True)
    assert result["plan"] == good and result["verified"] is False
    assert site.unit == unit_of_1
    assert site.instance["restores"] == 1 and site.instance["accepted_generation"] == 1
    site.host.active = "active"
    site.launcher.mark("chat", "accepted", generation=3)
    again = site.launcher.roll_back("chat", automatic=True)
    assert (again["action"], again["verified"], again["changed"]) == ("none", True, False)
    # The inventory still says what failed: it is not tried again, and what came back is left alone.
    restarts = site.host.restarts
    with pytest.raises(EngineError, match=r"generation 2 of it failed \(the KV cache is too small.*retry=true"):
        site.launcher.start(site.wrong)
    assert site.host.restarts == restarts and site.instance["generation"] == 3


def test_the_unit_of_that_time_comes_back_even_where_it_is_written_in_another_way_today(site: Site) -> None:
    stored = site.folder / "instances/chat/generations/1/vllm-chat.container"
    stored.write_text(stored.read_text() + "# written by an older version\n")
    site.launcher.roll_back("chat", automatic=True)
    assert site.unit.endswith("# written by an older version\n")


def test_a_failure_by_the_same_launch_with_another_unit_is_not_tried_for_ever(site: Site, good: dict[str, Any]) -> None:
    # As by a changed start_timeout_s: one fingerprint, two units.
    site.launcher.roll_back("chat", automatic=True)
    site.host.active = "active"
    site.launcher.mark("chat", "accepted")
    other = {**good, "start_timeout_s": 5}
    site.launcher.start(other)
    site.launcher.mark("chat", "failed", "too late")
    site.host.active = "inactive"
    assert site.launcher.roll_back("chat", automatic=True)["restores"] == 3
    site.host.active = "active"
    site.launcher.mark("chat", "accepted")
    with pytest.raises(EngineError, match="generation 4 of it failed"):
        site.launcher.start(other)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("running", [False, True])
def test_a_rollback_killed_at_any_step_is_continued_with_one_restart_in_all(
    tmp_path: Path, good: dict[str, Any], wrong: dict[str, Any], running: bool, after: bool
) -> None:
    for step in range(1, 80):
        site = Site(tmp_path / str(step), good, wrong)
        # Running where it failed a check, stopped where it did not become ready.
        site.host.active = "active" if running else "inactive"
        restarts = site.host.restarts
        fuse = Fuse(step, after)
        runner: Any = lambda argv, **kw: fuse.around(lambda: site.host(argv, **kw))  # noqa: B023, E731
        with contextlib.suppress(Killed):
            site.make(runner, FusedFiles(fuse)).roll_back("chat", automatic=True)
        if not fuse.burnt:
            assert step > 10, "a rollback has more steps than that"
            return
        site.host.active = "active" if site.host.active == "activating" else site.host.active
        # What the next run does: the failed launch first, which is refused or left alone, then the rollback.
        with contextlib.suppress(EngineError):
            site.launcher.start(wrong)
        result = site.launcher.roll_back("chat", automatic=True)
        assert site.host.restarts - restarts == 1, f"step {step}: {result}"
        assert (result["generation"], result["restores"]) == (3, 1), f"step {step}"
        assert site.launcher.roll_back("chat", automatic=True)["action"] == "none"
        assert site.instance["generations"] == [1, 2, 3] and site.instance["generation"] == 3
        state = json.loads((site.folder / "instances/chat/current/state.json").read_text())
        assert state["applied"] == "started"
    raise AssertionError("the rollback does not end")


@pytest.mark.parametrize("check", [True, False])
def test_a_trial_is_not_accepted_once_a_rollback_took_its_place(site: Site, check: bool) -> None:
    # Its probe went on meanwhile, and had its last answers from what came back.
    site.launcher.roll_back("chat")
    site.host.active = "active"
    with pytest.raises(
        EngineError, match=r"generation 2 of chat as accepted: generation 3 is .*socle_generation=2'\)\.$"
    ):
        site.launcher.mark("chat", "accepted", generation=2, check=check)
    assert site.instance["accepted_generation"] == 1
    # That it failed may be noted at any time.
    assert site.launcher.mark("chat", "failed", "wrong answers", generation=2)["changed"] is True


def test_a_mark_is_refused_where_the_rollback_came_while_it_waited(
    site: Site, wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.launcher.start(wrong, retry=True)
    lock = site.launcher._lock

    def held(instance: str) -> Any:
        monkeypatch.setattr(site.launcher, "_lock", lock)
        site.launcher.roll_back("chat")
        return lock(instance)

    monkeypatch.setattr(site.launcher, "_lock", held)
    with pytest.raises(EngineError, match="generation 3 is what is installed"):
        site.launcher.mark("chat", "accepted", generation=2)
    assert (site.instance["accepted_generation"], site.instance["generation"]) == (1, 3)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("verdict", ["accepted", "failed"])
def test_a_mark_killed_at_any_step_leaves_nothing_accepted_that_failed(
    tmp_path: Path, good: dict[str, Any], wrong: dict[str, Any], verdict: str, after: bool
) -> None:
    for step in range(1, 20):
        site = Site(tmp_path / str(step), good, wrong)
        site.launcher.roll_back("chat")
        site.host.active = "active"
        if verdict == "failed":
            site.launcher.mark("chat", "accepted")
        fuse = Fuse(step, after)
        with contextlib.suppress(Killed):
            site.make(files=FusedFiles(fuse)).mark("chat", verdict, "wrong answers")
        found = site.instance
        assert not (found["accepted_generation"] == 3 and found["status"] == "failed"), f"step {step}"
        site.launcher.mark("chat", verdict, "wrong answers")
        expected = 3 if verdict == "accepted" else None
        assert (site.instance["status"], site.instance["accepted_generation"]) == (verdict, expected)
        if not fuse.burnt:
            assert step > 2, "a mark has more steps than that"
            return
    raise AssertionError("the mark does not end")


def test_where_there_is_no_generation_none_is_offered(tmp_path: Path, host: Host) -> None:
    backend = QuadletBackend(host, tmp_path / "systemd", [Path("/bin/true")])
    launcher = Launcher(backend, tmp_path / "instances", Files(), listens=nobody)
    for number in (None, 4):
        with pytest.raises(EngineError, match=r"it has none; deploy it first\.$"):
            launcher.roll_back("chat", number)


def test_without_an_accepted_generation_nothing_comes_back_and_the_reason_is_told(
    tmp_path: Path, good: dict[str, Any], host: Host
) -> None:
    backend = QuadletBackend(host, tmp_path / "systemd", [Path("/bin/true")])
    launcher = Launcher(backend, tmp_path / "instances", Files(), listens=nobody)
    launcher.start(good)
    launcher.mark("chat", "failed", "it ended.")
    host.active = "inactive"
    result = launcher.roll_back("chat", automatic=True)
    assert (result["action"], result["restores"], result["running"]) == ("none", None, False)
    assert result["reason"] == "No generation of chat is accepted that could come back"
    assert host.restarts == 1
    with pytest.raises(EngineError, match=r"none is accepted, it has 1 \(failed: it ended\)"):
        launcher.roll_back("chat")


@pytest.mark.parametrize("automatic", [True, False])
def test_a_trial_that_a_deployment_took_back_does_not_come_back(
    site: Site, good: dict[str, Any], wrong: dict[str, Any], automatic: bool
) -> None:
    site.launcher.roll_back("chat", automatic=True)
    site.host.active = "active"
    site.launcher.mark("chat", "accepted")
    trial = {**good, "launch_fingerprint": "sha256:trial"}
    site.launcher.start(trial)
    site.host.active = "active"
    site.launcher.mark("chat", "accepted")
    # The launch of before, which a deployment alone does not accept again.
    assert site.launcher.start(good)["generation"] == 5
    site.host.active = "active"
    site.launcher.start({**wrong, "launch_fingerprint": "sha256:worse"})
    site.launcher.mark("chat", "failed", "it ended.")
    site.host.active = "inactive"
    assert site.launcher.roll_back("chat", automatic=automatic)["restores"] == 5


def test_what_is_not_known_to_be_wrong_does_not_give_way_by_itself(site: Site, good: dict[str, Any]) -> None:
    site.launcher.start({**good, "launch_fingerprint": "sha256:cccc"})
    site.host.active = "active"
    result = site.launcher.roll_back("chat", automatic=True)
    assert result["action"] == "none" and "not known to be wrong" in result["reason"]
    # A person may want it all the same.
    assert site.launcher.roll_back("chat")["restores"] == 1


def test_a_rollback_that_failed_is_not_repeated_unless_asked(site: Site) -> None:
    site.launcher.roll_back("chat", automatic=True)
    site.launcher.mark("chat", "failed", "the driver is gone", generation=3)
    site.host.active = "inactive"
    for automatic in (True, False):
        with pytest.raises(EngineError, match=r"generation 3 of it failed \(the driver is gone\)"):
            site.launcher.roll_back("chat", automatic=automatic)
    assert site.launcher.roll_back("chat", automatic=True, retry=True)["action"] == "started"


def test_a_person_chooses_a_generation_and_is_told_which_there_are(site: Site, wrong: dict[str, Any]) -> None:
    with pytest.raises(
        EngineError, match=r"it has 2 \(failed: the KV cache is too small \(SOC-D21\)\), 1 \(accepted\)"
    ):
        site.launcher.roll_back("chat", number=7)
    with pytest.raises(EngineError, match="retry=true"):
        site.launcher.roll_back("chat", number=2)
    # The current one is no other one: it is only started again.
    result = site.launcher.roll_back("chat", number=2, retry=True)
    assert (result["generation"], result["restores"], result["plan"]) == (2, 2, wrong)
    site.host.active = "active"
    assert site.launcher.roll_back("chat", number=2)["action"] == "none"
    result = site.launcher.roll_back("chat", number=1)
    assert (result["generation"], result["restores"], result["action"]) == (3, 1, "restarted")


def test_check_mode_says_what_would_run_and_writes_nothing(site: Site) -> None:
    before = sorted(str(path) for path in site.folder.rglob("*"))
    result = site.launcher.roll_back("chat", check=True)
    assert (result["action"], result["generation"], result["restores"]) == ("would_start", 3, 1)
    assert result["argv_changes"] == {"added": [], "removed": ["--max-num-seqs 4000"]}
    assert sorted(str(path) for path in site.folder.rglob("*")) == before and site.host.restarts == 2


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ("image", r"image localhost/socle/vllm-cpu:0.32.0 .* is not on this host any more; pull it with 'podman pull"),
        ("model", r"model .* is not on this host any more, expected .*models/rev"),
        ("secret", r"needs the secret api_key, which Podman does not have any more; set api_key of chat"),
    ],
)
def test_what_the_host_lost_is_named_before_anything_changes(site: Site, lost: str, words: str) -> None:
    if lost == "image":
        site.host.images.clear()
    elif lost == "secret":
        site.host.secrets.clear()
    else:
        Path(site.good["mounts"][0]["source"]).rmdir()
    before = site.unit
    with pytest.raises(EngineError, match=f"Cannot bring back generation 1 of chat: .*{words}"):
        site.launcher.roll_back("chat", automatic=True)
    assert site.unit == before and site.host.restarts == 2 and site.instance["generations"] == [1, 2]


def test_a_refused_successor_leaves_the_accepted_one_or_starts_it_again(site: Site) -> None:
    site.launcher.roll_back("chat", automatic=True)
    site.host.active = "active"
    site.launcher.mark("chat", "accepted")
    assert site.launcher.roll_back("chat", automatic=True)["verified"] is True
    # It was stopped for a successor that then did not get the memory of its GPUs.
    site.host.active = "inactive"
    result = site.launcher.roll_back("chat", automatic=True)
    assert (result["action"], result["generation"]) == ("started", 3)


def test_what_one_run_asked_for_is_told_apart() -> None:
    plan = {
        "image": "x:2",
        "sources": {
            "max-num-seqs": {"value": 4, "origin": "variant redeploy"},
            "port": {"value": 8000, "origin": "vllm_instances.chat"},
        },
        "env_sources": {"A": {"value": "1", "origin": "profiles/engine.yml"}},
        "image_source": {"value": "x:2", "origin": "variant"},
    }
    assert overrides_of(plan) == {"flags": {"max-num-seqs": 4}, "image": "x:2"}
    assert overrides_of({}) == {}


def test_a_way_back_that_is_blocked_leaves_nothing_wrong_running(site: Site) -> None:
    # It failed its acceptance, so that it serves.
    site.host.active = "active"
    site.host.images.clear()
    with pytest.raises(EngineError, match="image"):
        site.launcher.roll_back("chat")
    assert site.host.active == "active", "a person who asked decides"
    with pytest.raises(EngineError, match="image"):
        site.launcher.roll_back("chat", automatic=True)
    assert site.host.active == "inactive"


def test_what_runs_and_is_accepted_needs_nothing(site: Site) -> None:
    site.launcher.roll_back("chat", automatic=True)
    site.host.active = "active"
    site.launcher.mark("chat", "accepted")
    site.host.images.clear()
    assert site.launcher.roll_back("chat", automatic=True)["verified"] is True and site.host.active == "active"


def test_what_comes_back_is_not_written_for_another_engine_than_it_ran_under(site: Site, good: dict[str, Any]) -> None:
    # As when another run changed which one is to come back, after this one had chosen its engine.
    path = site.folder / "instances/chat/generations/1/plan.json"
    path.write_text(json.dumps({**good, "engine": "docker"}))
    unit = site.unit
    with pytest.raises(
        EngineError, match=r"generation 1 of chat: it ran under docker, and podman .*; repeat the run\."
    ):
        site.launcher.roll_back("chat")
    assert site.unit == unit
