# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings are merged, tried, taken over and taken back; what somebody else set stays."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._toolkit import dropins
from ansible_collections.socle.inference.plugins.module_utils._toolkit.daemon_json import Settings
from ansible_collections.socle.inference.plugins.module_utils._toolkit.engine_config import EngineConfig, Outcome
from ansible_collections.socle.inference.plugins.module_utils._toolkit.engine_settings import ARGUMENTS, from_options

from tests.support.commands import Commands

FULL = Settings(needs_cdi=True, log_max_size="50m", log_max_files=3, nofile=1048576)
MIRROR = Settings(mirrors=("https://m.example.org",))
OTHER_MIRROR = Settings(mirrors=("https://n.example.org",))
SECRET = "http://user:hunter2@proxy.example.org:3128"

OWN: dict[str, Any] = {
    "exec-opts": ["native.cgroupdriver=systemd"],
    "live-restore": True,
    "data-root": "/data/docker",
    "features": {"containerd-snapshotter": True},
    "runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}},
}


class Docker:
    """A host with dockerd, and its settings."""

    def __init__(self, commands: Commands, root: Path) -> None:
        self.commands = commands
        self.root = root
        self.file = root / "etc/docker/daemon.json"
        self.ledger = root / "var/lib/socle/container_engine/daemon-json.json"
        self.mark = root / "run/socle/dockerd-takeover"
        self.config = self.config_with(Files())
        commands.on("systemctl", "show", out="ActiveState=active\n")

    def config_with(self, files: Files) -> EngineConfig:
        return EngineConfig(self.commands, files, self.root, self.root / "var/lib/socle", lambda name: f"/bin/{name}")

    def has(self, content: dict[str, Any] | str) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(content if isinstance(content, str) else json.dumps(content))

    def bring(self, settings: Settings = FULL, version: str | None = "26.1.5", check: bool = False, **more: Any) -> Any:
        return self.config.docker(settings, version, check=check, **more)

    def runs(self, *containers: str) -> None:
        self.commands.on("docker", "ps", out="".join(f"{line}\n" for line in containers))

    def starts_with(self, *flags: str) -> None:
        unit = "path=/usr/sbin/dockerd ; argv[]=/usr/sbin/dockerd -H fd:// $OPTS ; ignore_errors=no"
        shown = f"MainPID=4711\nExecStart={{ {unit} ; pid=4711 }}\nActiveState=active\n"
        self.commands.on("systemctl", "show", out=shown)
        process = self.root / "proc/4711/cmdline"
        process.parent.mkdir(parents=True)
        process.write_text("\0".join(["/usr/sbin/dockerd", "-H", "fd://", *flags, ""]))

    @property
    def content(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.file.read_text())
        return loaded

    def restarts(self) -> int:
        return self.commands.ran("systemctl", "restart", "docker.service")


@pytest.fixture
def docker(commands: Commands, tmp_path: Path) -> Docker:
    return Docker(commands, tmp_path)


def test_what_is_there_stays_and_what_is_missing_comes(docker: Docker) -> None:
    docker.has(OWN)
    docker.runs("vllm-llama\t", "renamed\tllama")
    outcome = docker.bring()
    assert docker.content == {
        **OWN,
        "features": {"containerd-snapshotter": True, "cdi": True},
        "log-driver": "json-file",
        "log-opts": {"max-size": "50m", "max-file": "3"},
        "default-ulimits": {"nofile": {"Name": "nofile", "Hard": 1048576, "Soft": 1048576}},
    }
    assert (outcome.changed, outcome.action, outcome.containers) == (True, "restart", 2)
    assert docker.restarts() == 1


def test_a_run_without_work_touches_neither_file_nor_daemon(docker: Docker) -> None:
    docker.has(OWN)
    docker.bring()
    before, stamp = docker.commands.calls.copy(), docker.file.stat().st_mtime_ns
    outcome = docker.bring()
    assert not outcome.changed and outcome.action == "none"
    assert docker.file.stat().st_mtime_ns == stamp
    assert [call[:2] for call in docker.commands.calls[len(before) :]] == [["systemctl", "show"]]


def test_check_mode_says_what_would_come_and_writes_nothing(docker: Docker) -> None:
    docker.has(OWN)
    outcome = docker.bring(check=True)
    assert outcome.action == "restart" and outcome.files[0]["path"] == "/etc/docker/daemon.json"
    assert docker.content == OWN and docker.restarts() == 0
    assert not (docker.root / "var/lib/socle").exists()


DEEP = '{"a": ' * 100_000
DEEPER_THAN_ANY_SETTING = '{"labels": ' + "[" * 200 + "]" * 200 + "}"


@pytest.mark.parametrize(
    "text", ['{"debug": true,}', "debug: true", '["debug"]', "null", DEEP, DEEPER_THAN_ANY_SETTING], ids=range(6)
)
def test_a_file_that_is_no_json_object_is_refused_in_one_sentence(docker: Docker, text: str) -> None:
    docker.has(text)
    with pytest.raises(
        SocleError, match=r"Cannot add settings to /etc/docker/daemon.json.*Nothing was changed"
    ) as caught:
        docker.bring()
    assert "\n" not in str(caught.value) and docker.file.read_text() == text and docker.restarts() == 0


def test_a_file_that_cannot_be_read_as_text_is_one_sentence(docker: Docker) -> None:
    docker.file.mkdir(parents=True)
    with pytest.raises(SocleError, match=r"^Cannot add settings to /etc/docker/daemon.json: Is a directory .*\.$"):
        docker.bring()
    docker.file.rmdir()
    docker.file.write_bytes(b'{"debug": "\xff"}')
    with pytest.raises(SocleError, match=r"^Cannot add settings to /etc/docker/daemon.json: .*no UTF-8 text.*\.$"):
        docker.bring()
    assert docker.restarts() == 0


@pytest.mark.parametrize("text", ["[" * 100_000, "{", b"\xff", '{"set": {}, "coming": [], "former": 1}'], ids=range(4))
def test_a_damaged_ledger_counts_as_an_empty_one(docker: Docker, text: str | bytes) -> None:
    docker.has({"registry-mirrors": ["https://own.example.org"]})
    docker.ledger.parent.mkdir(parents=True)
    docker.ledger.write_bytes(text if isinstance(text, bytes) else text.encode())
    docker.bring(MIRROR)
    docker.bring(Settings())
    assert docker.content == {"registry-mirrors": ["https://own.example.org"]}


def test_a_folder_in_place_of_the_ledger_matters_only_when_it_is_to_be_written(docker: Docker) -> None:
    docker.ledger.mkdir(parents=True)
    docker.has({"registry-mirrors": ["https://m.example.org"]})
    assert docker.bring(MIRROR).action == "none"
    with pytest.raises(SocleError, match=r"Is a directory \(.*daemon-json.json\); move that folder away"):
        docker.bring(OTHER_MIRROR)
    assert docker.content == {"registry-mirrors": ["https://m.example.org"]} and not docker.mark.exists()


def test_settings_that_dockerd_refuses_never_reach_the_file(docker: Docker) -> None:
    docker.has(OWN)
    docker.commands.on("--validate", rc=1, err="unable to configure the Docker daemon with file x: bad option\n")
    with pytest.raises(SocleError, match=r"Docker refuses the settings.*bad option.*Nothing was changed"):
        docker.bring()
    assert docker.content == OWN and docker.restarts() == 0
    assert not (docker.root / "run/socle/daemon.json").exists()


def test_settings_are_tried_before_they_replace_the_file(docker: Docker) -> None:
    docker.has(OWN)
    tried: list[dict[str, Any]] = []

    def validate(argv: list[str]) -> tuple[int, str, str]:
        tried.append(json.loads(Path(argv[-1]).read_text()))
        assert docker.content == OWN
        return 0, "configuration OK", ""

    docker.commands.do("--validate", then=validate)
    docker.bring()
    assert tried == [docker.content]


def test_a_docker_that_does_not_come_back_gets_its_old_settings(docker: Docker) -> None:
    docker.has(OWN)
    answers = iter([(1, "", "Job for docker.service failed.\n"), (0, "", "")])
    docker.commands.do("systemctl", "restart", "docker.service", then=lambda _argv: next(answers))
    said = (
        'time="now" level=info msg="stopping event stream" error="<nil>"\n'
        "unable to configure the Docker daemon: conflicting: log-driver\n"
        "docker.service: Failed with result 'exit-code'.\n"
    )
    docker.commands.on("journalctl", out=said)
    with pytest.raises(SocleError, match=r"conflicting: log-driver.*runs again with the file as it was"):
        docker.bring()
    assert docker.content == OWN and docker.restarts() == 2
    assert not docker.ledger.exists() and not docker.mark.exists()


def test_settings_that_failed_on_a_host_without_a_file_leave_none(docker: Docker) -> None:
    docker.commands.on("systemctl", "restart", "docker.service", rc=1, err="failed\n")
    with pytest.raises(SocleError, match="does not start without them either"):
        docker.bring()
    assert not docker.file.exists()


def test_an_interrupted_run_is_finished_by_the_next_one(docker: Docker) -> None:
    def interrupted(_argv: list[str]) -> tuple[int, str, str]:
        raise KeyboardInterrupt

    docker.commands.do("systemctl", "restart", "docker.service", then=interrupted)
    with pytest.raises(KeyboardInterrupt):
        docker.bring()
    docker.commands.on("systemctl", "restart", "docker.service")
    outcome = docker.bring()
    assert outcome.action == "restart" and outcome.changed
    assert docker.bring().action == "none"


class Fragile(Files):
    """Fails at the change of a file with this number, before it or after it."""

    def __init__(self, number: int, error: BaseException, before: bool) -> None:
        self.left, self.error, self.before = number, error, before

    def _around(self, act: Callable[[], None]) -> None:
        self.left -= 1
        if self.left == 0 and self.before:
            raise self.error
        act()
        if self.left == 0:
            raise self.error

    def write(self, path: Path, text: str, mode: int = 0o644, *, follow: bool = False) -> None:
        self._around(lambda: Files.write(self, path, text, mode, follow=follow))

    def remove(self, path: Path) -> None:
        self._around(lambda: Files.remove(self, path))


THEIRS = {"registry-mirrors": ["https://own.example.org"], "debug": True}


@pytest.mark.parametrize("earlier", [None, MIRROR], ids=["first", "again"])
@pytest.mark.parametrize("later", [OTHER_MIRROR, Settings()], ids=["repeated", "withdrawn"])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("number", range(1, 9))
def test_a_run_that_is_killed_anywhere_loses_nothing_and_keeps_nothing(
    docker: Docker, number: int, before: bool, later: Settings, earlier: Settings | None
) -> None:
    docker.has(THEIRS)
    if earlier:
        docker.bring(earlier)
    killed = Fragile(number, KeyboardInterrupt(), before)
    with contextlib.suppress(KeyboardInterrupt):
        docker.config_with(killed).docker(OTHER_MIRROR, "26.1.5")
    # As many changes of files as a run makes were tried: what comes after is no test of this one.
    reached = killed.left <= 0
    written = docker.content["registry-mirrors"] == ["https://n.example.org"]
    told = docker.commands.ran("systemctl", "reload", "docker.service") - bool(earlier)
    outcome = docker.bring(later)
    if written and later == OTHER_MIRROR and not told:
        assert outcome.action == "reload"
    assert docker.content == (THEIRS if later == Settings() else {**THEIRS, "registry-mirrors": list(later.mirrors)})
    docker.bring(Settings())
    assert docker.content == THEIRS
    assert not docker.ledger.exists() and not docker.mark.exists() and (reached or number == 8)


@pytest.mark.parametrize("earlier", [None, MIRROR], ids=["first", "again"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_file_that_cannot_be_written_leaves_no_mark_and_no_note(
    docker: Docker, number: int, earlier: Settings | None
) -> None:
    docker.has(THEIRS)
    if earlier:
        docker.bring(earlier)
    noted = docker.ledger.read_text() if earlier else None
    content = docker.content
    failing = Fragile(number, OSError(errno.EROFS, "Read-only file system", "/etc/docker/daemon.json"), before=True)
    failing.left += 2  # The trial file comes and goes first.
    with pytest.raises(SocleError, match=r"Cannot write Docker's settings: Read-only file system \(/etc/docker"):
        docker.config_with(failing).docker(OTHER_MIRROR, "26.1.5")
    assert docker.content == content and not docker.mark.exists()
    assert (docker.ledger.read_text() if docker.ledger.exists() else None) == noted
    assert docker.bring(earlier or Settings()).action == "none"


def test_a_docker_that_socle_brought_stays_one_when_its_settings_fail(docker: Docker) -> None:
    docker.commands.on("systemctl", "restart", "docker.service", rc=1, err="failed\n")
    with pytest.raises(SocleError, match="Docker did not restart"):
        docker.bring(DEFAULTS, fresh=True)
    docker.commands.on("systemctl", "restart", "docker.service")
    assert docker.bring(DEFAULTS).action == "restart" and "log-opts" in docker.content


def test_a_docker_that_is_down_is_started(docker: Docker) -> None:
    docker.commands.on("systemctl", "show", out="ActiveState=inactive\n")
    assert docker.bring().action == "start"
    assert docker.commands.ran("systemctl", "start", "docker.service") == 1


DEFAULTS = Settings(log_max_size="50m", log_max_files=3, nofile=1048576, log_is_default=True, nofile_is_default=True)


def test_a_docker_of_somebody_else_is_not_restarted_for_what_nobody_asked_for(docker: Docker) -> None:
    docker.has(OWN)
    docker.runs("database\t")
    outcome = docker.bring(DEFAULTS)
    assert not outcome.changed and outcome.action == "none" and docker.content == OWN


def test_a_docker_that_the_role_brought_gets_the_defaults_and_keeps_them(docker: Docker) -> None:
    assert docker.bring(DEFAULTS, fresh=True).action == "restart"
    assert docker.content["log-opts"]["max-size"] == "50m" and "default-ulimits" in docker.content
    assert docker.bring(DEFAULTS).action == "none"
    docker.bring(Settings())
    assert docker.content == {}
    docker.bring(DEFAULTS)
    assert docker.content["log-opts"]["max-size"] == "50m"


def test_what_the_inventory_asks_for_reaches_every_docker(docker: Docker) -> None:
    docker.has(OWN)
    docker.bring(Settings(**{**DEFAULTS.__dict__, "nofile_is_default": False}))
    assert "default-ulimits" in docker.content and "log-opts" not in docker.content


def test_defaults_that_an_earlier_run_had_set_stay(docker: Docker) -> None:
    docker.has(OWN)
    docker.bring(FULL)
    before = docker.content
    assert docker.bring(Settings(**{**DEFAULTS.__dict__, "needs_cdi": True})).action == "none"
    assert docker.content == before


@pytest.mark.parametrize("check", [False, True])
def test_containers_of_others_are_not_stopped_by_a_restart(docker: Docker, check: bool) -> None:
    docker.has(OWN)
    docker.runs("vllm-llama\tllama", "database\t", "web\t")
    with pytest.raises(
        SocleError, match=r"not socle's \(database, web\).*container_engine_restart to always.*Nothing was changed"
    ) as caught:
        docker.bring(check=check)
    assert "features" in str(caught.value) and "\n" not in str(caught.value)
    assert docker.content == OWN and docker.restarts() == 0
    assert not (docker.root / "run/socle/dockerd-takeover").exists()
    assert not (docker.root / "var/lib/socle").exists()


def test_a_restart_that_is_asked_for_comes(docker: Docker) -> None:
    docker.runs("database\t")
    assert docker.bring(restart="always").containers == 1 and docker.restarts() == 1


def test_containers_that_nobody_can_list_are_not_stopped(docker: Docker) -> None:
    docker.commands.on("docker", "ps", rc=1, err="permission denied\n")
    with pytest.raises(SocleError, match="'docker ps' does not say which"):
        docker.bring()
    assert docker.restarts() == 0


def test_a_restart_that_is_forbidden_is_refused_and_a_reload_is_not(docker: Docker) -> None:
    with pytest.raises(SocleError, match=r"container_engine_restart is never.*Nothing was changed"):
        docker.bring(restart="never")
    assert not docker.file.exists() and docker.restarts() == 0
    assert docker.bring(Settings(mirrors=("https://m.example.org",)), restart="never").action == "reload"


@pytest.mark.parametrize("flags", [["--log-driver=journald"], ["--log-driver", "journald"], ["--log-opt=max-size=1m"]])
def test_what_a_flag_of_the_service_sets_stays_out_of_the_file(docker: Docker, flags: list[str]) -> None:
    docker.starts_with(*flags, "--default-ulimit=nofile=1024")
    docker.bring()
    assert docker.content == {"features": {"cdi": True}}


def test_a_flag_beside_a_key_that_is_needed_is_a_sentence(docker: Docker) -> None:
    docker.has(OWN)
    docker.starts_with("--registry-mirror=https://old.example.org")
    with pytest.raises(SocleError, match=r"Cannot set registry-mirrors.*with --registry-mirror.*Nothing was changed"):
        docker.bring(Settings(mirrors=("https://new.example.org",)))
    assert docker.content == OWN and docker.restarts() == 0


def test_cdi_that_a_flag_switches_on_needs_no_key(docker: Docker) -> None:
    docker.starts_with("--feature=cdi=true")
    assert docker.bring(Settings(needs_cdi=True)).action == "none"


def test_a_mirror_alone_needs_only_a_reload(docker: Docker) -> None:
    docker.bring()
    outcome = docker.bring(Settings(**{**FULL.__dict__, "mirrors": ("https://mirror.example.org",)}))
    assert outcome.action == "reload" and docker.commands.ran("systemctl", "reload", "docker.service") == 1
    assert docker.content["registry-mirrors"] == ["https://mirror.example.org"]


def test_what_is_taken_out_of_the_settings_goes_out_of_the_file(docker: Docker) -> None:
    docker.has(OWN)
    docker.bring(Settings(**{**FULL.__dict__, "mirrors": ("https://m.example.org",), "no_proxy": "localhost"}))
    docker.bring(Settings(needs_cdi=True))
    assert docker.content == {**OWN, "features": {"containerd-snapshotter": True, "cdi": True}}


def test_a_value_that_was_there_before_comes_back_when_ours_goes(docker: Docker) -> None:
    own = {**OWN, "registry-mirrors": ["https://own.example.org"], "proxies": {"http-proxy": SECRET}}
    docker.has(own)
    docker.bring(Settings(**{**MIRROR.__dict__, "http_proxy": "http://p.example.org:3128"}))
    assert not docker.bring(Settings(**{**MIRROR.__dict__, "http_proxy": "http://p.example.org:3128"})).changed
    assert "hunter2" in docker.ledger.read_text() and docker.ledger.stat().st_mode & 0o777 == 0o600
    docker.bring(OTHER_MIRROR)
    assert docker.content["registry-mirrors"] == ["https://n.example.org"]
    outcome = docker.bring(Settings())
    assert docker.content == own and outcome.action == "reload" and "hunter2" not in repr(outcome)
    assert not docker.ledger.exists() and not docker.bring(Settings()).changed


def test_the_latest_value_of_somebody_else_is_the_one_that_comes_back(docker: Docker) -> None:
    docker.has({"registry-mirrors": ["https://own.example.org"]})
    docker.bring(MIRROR)
    docker.has({"registry-mirrors": ["https://newer.example.org"]})
    docker.bring(MIRROR)
    docker.bring(Settings())
    assert docker.content == {"registry-mirrors": ["https://newer.example.org"]}


def test_what_somebody_changed_since_stays(docker: Docker) -> None:
    docker.bring()
    docker.has({**docker.content, "log-opts": {"max-size": "5m", "max-file": "3"}})
    docker.bring()
    assert docker.content["log-opts"]["max-size"] == "5m"
    docker.bring(Settings(needs_cdi=True))
    assert docker.content["log-opts"] == {"max-size": "5m"}


def test_what_somebody_changed_since_stays_when_it_is_no_longer_asked_for(docker: Docker) -> None:
    docker.bring()
    docker.has({**docker.content, "log-opts": {"max-size": "5m", "max-file": "3"}})
    docker.bring(Settings(needs_cdi=True))
    assert docker.content["log-opts"] == {"max-size": "5m"}


def test_a_new_size_of_logs_follows_the_settings(docker: Docker) -> None:
    docker.bring()
    docker.bring(Settings(**{**FULL.__dict__, "log_max_size": "100m"}))
    assert docker.content["log-opts"]["max-size"] == "100m"


@pytest.mark.parametrize("driver", ["journald", "local", "syslog"])
def test_other_log_drivers_are_left_alone(docker: Docker, driver: str) -> None:
    docker.has({"log-driver": driver})
    docker.bring()
    assert docker.content["log-driver"] == driver and "log-opts" not in docker.content


@pytest.mark.parametrize(
    ("version", "before", "expected"),
    [
        ("26.1.5", {}, {"features": {"cdi": True}}),
        ("28.1.1", {"features": {"buildkit": True}}, {"features": {"buildkit": True, "cdi": True}}),
        ("28.2.0", {}, {}),
        ("29.3.0", {"features": {"cdi": False}}, {"features": {"cdi": True}}),
        (None, {}, {}),
    ],
)
def test_cdi_is_switched_on_where_docker_has_it_off(
    docker: Docker, version: str | None, before: dict[str, Any], expected: dict[str, Any]
) -> None:
    docker.has(before)
    docker.bring(Settings(needs_cdi=True), version)
    assert docker.content == expected


def test_an_upgrade_of_docker_costs_no_second_restart(docker: Docker) -> None:
    docker.bring(version="26.1.5")
    assert docker.bring(version="28.2.0").action == "none"


def test_hosts_without_gpus_get_no_cdi(docker: Docker) -> None:
    docker.bring(Settings(nofile=65536))
    assert "features" not in docker.content


def test_a_password_reaches_the_file_and_nothing_else(docker: Docker) -> None:
    outcome = docker.bring(Settings(https_proxy=SECRET, no_proxy="localhost,10.0.0.0/8"))
    assert docker.content["proxies"] == {"https-proxy": SECRET, "no-proxy": "localhost,10.0.0.0/8"}
    assert docker.file.stat().st_mode & 0o777 == 0o600
    assert "hunter2" not in repr(outcome) and "proxy.example.org:3128" in repr(outcome)
    ledger = docker.root / "var/lib/socle/container_engine/daemon-json.json"
    assert "hunter2" not in ledger.read_text() and ledger.stat().st_mode & 0o777 == 0o600


def test_the_modes_of_a_file_without_secrets_stay(docker: Docker) -> None:
    docker.has({})
    docker.file.chmod(0o640)
    docker.bring()
    assert docker.file.stat().st_mode & 0o777 == 0o640


def test_a_docker_too_old_for_proxies_is_a_sentence(docker: Docker) -> None:
    with pytest.raises(SocleError, match=r"Cannot set a proxy for Docker 20.10.24"):
        docker.bring(Settings(http_proxy="http://p.example.org:3128"), "20.10.24")
    assert not docker.file.exists()


def test_nvidia_as_the_default_runtime_is_kept_and_named(docker: Docker) -> None:
    docker.has({"default-runtime": "nvidia"})
    assert "default-runtime" in docker.bring().warnings[0]
    assert docker.content["default-runtime"] == "nvidia"


@pytest.mark.parametrize("engine", ["docker", "podman"])
@pytest.mark.parametrize(
    "mirror",
    [
        "",
        "mirror.example.org",
        "ftp://x.example.org",
        "https://user:pw@x.example.org",
        "https://",
        "https://:5000",
        "https://[::1",
        "https://[::zz]",
        "https://x.example.org:99999999",
        "https://x.example.org:0",
        "https://x.example.org:http",
        "https://x.example.org\n[engine]",
        "https://x.exa\x07mple.org",
        "https://x.example.org/`id`",
        "https://x example.org",
        "https://x.example.org/a?b",
        "https://x.example.org/#b",
        "https://a..b",
    ],
)
def test_an_address_that_is_no_mirror_is_refused(docker: Docker, mirror: str, engine: str) -> None:
    with pytest.raises(SocleError, match=r"registry mirror.*container_engine_registry_mirrors.*Nothing was") as caught:
        docker.config.bring(engine, Settings(mirrors=("https://good.example.org", mirror)), None)
    assert "pw@" not in str(caught.value) and "\n" not in str(caught.value)
    assert not list(docker.root.rglob("*.conf")) and not docker.file.exists()


@pytest.mark.parametrize("engine", ["docker", "podman"])
@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"http_proxy": "http://hunter2:hunter2@[::1"}, "proxy for http in container_engine_proxy"),
        ({"https_proxy": "http://p.example.org:99999999"}, "proxy for https in container_engine_proxy"),
        ({"https_proxy": "http://u:hunter2@p.example.org\nHTTP_PROXY=x"}, "proxy for https in container_engine_proxy"),
        ({"http_proxy": "ftp://p.example.org"}, "proxy for http in container_engine_proxy"),
        ({"http_proxy": "p.example.org:port"}, "proxy for http in container_engine_proxy"),
        ({"no_proxy": "localhost\n.example.org"}, "no_proxy of container_engine_proxy"),
    ],
)
def test_an_address_that_is_no_proxy_is_refused(
    docker: Docker, setting: dict[str, str], named: str, engine: str
) -> None:
    with pytest.raises(SocleError, match=f"{named}.*Nothing was changed") as caught:
        docker.config.bring(engine, Settings(**setting), None)
    assert "hunter2" not in str(caught.value) and "\n" not in str(caught.value)


def test_addresses_that_the_engines_take_are_taken(docker: Docker) -> None:
    mirrors = ("http://[2001:db8::1]:5000/hub", "https://my_mirror", "https://10.0.0.5:5000/")
    docker.bring(
        Settings(mirrors=mirrors, http_proxy="p.example.org:3128", https_proxy="socks5://u:p%40@10.0.0.1:1080")
    )
    assert docker.content["registry-mirrors"] == list(mirrors)
    assert docker.content["proxies"]["http-proxy"] == "p.example.org:3128"


@pytest.mark.parametrize("size", ["50 megabytes", "m", "0", "-1"])
def test_a_size_that_is_none_is_refused(docker: Docker, size: str) -> None:
    with pytest.raises(SocleError, match="as the size of a log"):
        docker.bring(Settings(log_max_size=size))


CONTAINERS_542 = """# Written by socle; put your own settings into a file of another name.

[containers]
log_size_max = 52428800

[engine]
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
"""


@pytest.mark.parametrize(
    ("version", "dirs"), [("4.9.3", False), ("5.0.3", False), ("5.1.0", True), ("5.4.2", True), (None, True)]
)
def test_cdi_folders_are_spelt_out_for_podmans_that_know_the_key(version: str | None, dirs: bool) -> None:
    assert ("cdi_spec_dirs" in dropins.containers_conf(FULL, version)) is dirs


def test_podmans_settings_are_drop_ins(commands: Commands, tmp_path: Path) -> None:
    main = tmp_path / "etc/containers/containers.conf"
    main.parent.mkdir(parents=True)
    main.write_text("[containers]\npids_limit = 0\n")
    config = EngineConfig(commands, Files(), tmp_path, tmp_path / "state")
    assert config.podman(FULL, "5.4.2", check=True).changed and commands.calls == []
    outcome = config.podman(FULL, "5.4.2")
    assert [file["path"] for file in outcome.files] == ["/etc/containers/containers.conf.d/50-socle.conf"]
    assert (tmp_path / dropins.CONTAINERS).read_text() == CONTAINERS_542
    assert main.read_text() == "[containers]\npids_limit = 0\n"
    asked = len(commands.calls)
    assert not config.podman(FULL, "5.4.2").changed and len(commands.calls) == asked


def test_podmans_mirrors_come_and_go(commands: Commands, tmp_path: Path) -> None:
    config = EngineConfig(commands, Files(), tmp_path, tmp_path / "state")
    config.podman(Settings(mirrors=("https://m.example.org:5000/hub/", "http://10.0.0.5:5000")), "5.4.2")
    text = (tmp_path / dropins.REGISTRIES).read_text()
    assert text.split("\n\n", 1)[1] == (
        '[[registry]]\nprefix = "docker.io"\nlocation = "docker.io"\n\n'
        '[[registry.mirror]]\nlocation = "m.example.org:5000/hub"\n\n'
        '[[registry.mirror]]\nlocation = "10.0.0.5:5000"\ninsecure = true\n'
    )
    assert config.podman(Settings(), "5.4.2").changed
    assert not (tmp_path / dropins.REGISTRIES).exists() and not (tmp_path / dropins.CONTAINERS).exists()


PROXY = "http://proxy.example.org:3128"


def test_podmans_proxies_are_for_every_user_and_keep_the_users_variables(commands: Commands, tmp_path: Path) -> None:
    config = EngineConfig(commands, Files(), tmp_path, tmp_path / "state")
    config.podman(Settings(https_proxy=PROXY), "5.4.2")
    path = tmp_path / dropins.CONTAINERS
    assert f'env = ["https_proxy={PROXY}", "HTTPS_PROXY={PROXY}", {{append=true}}]' in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o644
    assert "[containers]\nhttp_proxy = false\n" in path.read_text()
    assert "append" not in dropins.containers_conf(Settings(https_proxy=PROXY), "4.6.2")


@pytest.mark.parametrize("check", [False, True])
def test_a_proxys_password_never_reaches_what_every_user_of_podman_reads(
    commands: Commands, tmp_path: Path, check: bool
) -> None:
    config = EngineConfig(commands, Files(), tmp_path, tmp_path / "state")
    config.podman(FULL, "5.4.2")
    with pytest.raises(SocleError, match=r"proxy with user and password.*without a password.*Nothing was") as caught:
        config.podman(Settings(https_proxy=SECRET), "5.4.2", check=check)
    assert "hunter2" not in str(caught.value)
    path = tmp_path / dropins.CONTAINERS
    assert path.read_text() == CONTAINERS_542 and path.stat().st_mode & 0o777 == 0o644


def test_settings_that_podman_cannot_read_are_taken_back(commands: Commands, tmp_path: Path) -> None:
    config = EngineConfig(commands, Files(), tmp_path, tmp_path / "state")
    config.podman(FULL, "5.4.2")
    commands.on("podman", "info", rc=125, err=f"Error: decode {SECRET}: bad\n")
    with pytest.raises(SocleError, match="Podman does not work with the settings") as caught:
        config.podman(Settings(log_max_size="10m"), "5.4.2")
    assert "hunter2" not in str(caught.value) + repr(caught.value.fields)
    assert (tmp_path / dropins.CONTAINERS).read_text() == CONTAINERS_542


@pytest.mark.parametrize("fails", [False, True])
def test_a_daemon_json_that_is_a_link_stays_one(docker: Docker, fails: bool) -> None:
    docker.has(OWN)
    kept = docker.root / "srv/docker.json"
    kept.parent.mkdir()
    docker.file.rename(kept)
    docker.file.symlink_to(kept)
    before = kept.read_text()
    if fails:
        for verb in ("reload", "restart"):
            docker.commands.on("systemctl", verb, "docker.service", rc=1, err="failed\n")
        with pytest.raises(SocleError, match="they were taken out"):
            docker.bring()
    else:
        docker.bring()
    assert docker.file.is_symlink() and (kept.read_text() == before) is fails


OPTIONS: dict[str, Any] = {name: option.get("default") for name, option in ARGUMENTS.items()}


def test_options_that_nobody_sets_are_defaults() -> None:
    settings = from_options(OPTIONS, needs_cdi=False)
    assert settings.log_max_size == "50m" and settings.log_is_default
    assert 0 < settings.nofile <= 1048576 and settings.nofile_is_default


def test_options_that_somebody_sets_are_wishes() -> None:
    settings = from_options({**OPTIONS, "log_max_size": "50m", "nofile": "512"}, needs_cdi=True)
    assert not settings.log_is_default and settings.nofile == 512 and not settings.nofile_is_default
    assert from_options({**OPTIONS, "nofile": "0", "log_max_size": ""}, needs_cdi=True).nofile == 0


def test_a_limit_that_is_no_number_is_a_sentence() -> None:
    with pytest.raises(SocleError, match="container_engine_nofile"):
        from_options({**OPTIONS, "nofile": "many"}, needs_cdi=False)


def test_a_docker_that_was_switched_off_is_started_and_enabled_and_the_diff_says_so(docker: Docker) -> None:
    docker.bring()
    calls = len(docker.commands.calls)
    docker.commands.on("systemctl", "show", out="ActiveState=inactive\nUnitFileState=disabled\n")
    tried = docker.bring(check=True)
    assert tried.changed and tried.unit == ("disabled, inactive", "enabled, active")
    assert not any(call[1] in ("start", "enable") for call in docker.commands.calls[calls:])
    outcome = docker.bring()
    assert (outcome.action, outcome.enabled, outcome.unit) == ("start", True, tried.unit)
    assert docker.commands.ran("systemctl", "start", "docker.service") == 1
    assert docker.commands.ran("systemctl", "enable", "--no-reload", "docker.service") == 1


def test_a_docker_that_runs_and_would_not_at_boot_is_enabled_without_a_restart(docker: Docker) -> None:
    docker.bring()
    restarts = docker.restarts()
    docker.commands.on("systemctl", "show", out="ActiveState=active\nUnitFileState=disabled\n")
    outcome = docker.bring()
    assert outcome.changed and outcome.unit == ("disabled, active", "enabled, active")
    assert docker.commands.ran("systemctl", "enable") == 1 and docker.restarts() == restarts
    docker.commands.on("systemctl", "enable", rc=1, err="Failed to enable unit: Read-only file system\n")
    with pytest.raises(
        SocleError, match=r"^Cannot have Docker start at boot: Failed to enable.*Read-only file system;"
    ):
        docker.bring()


def test_a_masked_docker_is_refused_before_anything_changes(docker: Docker) -> None:
    docker.has(OWN)
    docker.commands.on("systemctl", "show", out="ActiveState=inactive\nUnitFileState=masked\n")
    with pytest.raises(SocleError, match=r"docker.service is masked.*systemctl unmask.*Nothing was changed\.$"):
        docker.bring(check=True)
    assert docker.content == OWN


def both(docker: Docker, engine: str, settings: Settings, **more: Any) -> Any:
    version = {"docker": "26.1.5", "podman": "5.4.2"}[engine]
    return docker.config.bring(engine, settings, version, **more)


@pytest.mark.parametrize("theirs", [{}, {"debug": True, "proxies": {"https-proxy": "http://own.example.org:1"}}])
def test_a_password_leaves_the_engine_that_is_not_used_any_more(docker: Docker, theirs: dict[str, Any]) -> None:
    docker.has(theirs)
    both(docker, "docker", Settings(https_proxy=SECRET, mirrors=MIRROR.mirrors))
    restarts = docker.restarts()
    ahead = both(docker, "podman", Settings(), check=True)
    assert ahead.changed and "hunter2" in docker.file.read_text()
    outcome = both(docker, "podman", Settings())
    assert [file["path"] for file in outcome.files] == ["/etc/docker/daemon.json"] == [f["path"] for f in ahead.files]
    assert "hunter2" not in str(outcome) and "proxy.example.org" in outcome.files[0]["before"]
    (told,) = outcome.warnings
    assert "were taken out of /etc/docker/daemon.json (proxies, registry-mirrors)" in told and "next restart" in told
    assert docker.content == theirs and not docker.ledger.exists() and docker.restarts() == restarts
    calls = len(docker.commands.calls)
    again = both(docker, "podman", Settings())
    assert not again.changed and not again.warnings and len(docker.commands.calls) == calls
    assert both(docker, "docker", Settings()).action == "restart", "dockerd still has the password in its memory"


def test_a_docker_that_does_not_run_is_not_told_of_what_was_taken_out(docker: Docker) -> None:
    both(docker, "docker", MIRROR, fresh=True)
    docker.commands.on("systemctl", "show", out="ActiveState=inactive\n")
    assert not both(docker, "podman", Settings()).warnings and docker.content == {} and not docker.mark.exists()
    assert json.loads(docker.ledger.read_text()) == {"former": {}, "installed": True, "set": {}}


def test_what_somebody_changed_in_the_other_engine_stays(docker: Docker) -> None:
    both(docker, "docker", MIRROR)
    docker.has({"registry-mirrors": ["https://own.example.org"]})
    assert not both(docker, "podman", Settings()).changed
    assert docker.content == {"registry-mirrors": ["https://own.example.org"]} and not docker.ledger.exists()


def test_a_docker_that_socle_never_touched_is_not_read(docker: Docker) -> None:
    docker.has("no JSON")
    outcome = both(docker, "podman", Settings())
    assert not outcome.changed and not outcome.warnings and not docker.commands.calls


@pytest.mark.parametrize("damage", ["no JSON", "pipe"])
def test_a_damaged_file_of_the_other_engine_is_a_warning(docker: Docker, damage: str) -> None:
    both(docker, "docker", MIRROR)
    if damage == "pipe":
        docker.file.unlink()
        os.mkfifo(docker.file)
    else:
        docker.has(damage)
    outcome = both(docker, "podman", FULL)
    assert (docker.root / dropins.CONTAINERS).exists()
    (told,) = outcome.warnings
    assert told.startswith("Cannot take socle's settings out of /etc/docker/daemon.json, a proxy's password perhaps")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_withdrawal_that_cannot_be_written_changes_nothing(docker: Docker, number: int) -> None:
    both(docker, "docker", MIRROR)
    content, noted = docker.content, docker.ledger.read_text()
    failing = Fragile(number, OSError(errno.ENOSPC, "No space left on device", "/etc/docker/daemon.json"), before=True)
    with pytest.raises(SocleError, match="Cannot take socle's settings out of"):
        docker.config_with(failing).bring("podman", Settings(), "5.4.2")
    assert docker.content == content and docker.ledger.read_text() == noted and not docker.mark.exists()


def test_gpus_stay_with_units_of_the_other_engine_until_they_are_gone(docker: Docker) -> None:
    unit = docker.root / "etc/systemd/system/vllm-chat.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    both(docker, "docker", Settings(needs_cdi=True, https_proxy=SECRET))
    both(docker, "podman", FULL)
    assert docker.content == {"features": {"cdi": True}}
    unit.unlink()
    both(docker, "podman", FULL)
    assert docker.content == {} and not docker.ledger.exists()
    unit = docker.root / "etc/containers/systemd/vllm-chat.container"
    unit.parent.mkdir(parents=True)
    unit.touch()
    both(docker, "docker", FULL)
    kept = (docker.root / dropins.CONTAINERS).read_text()
    assert "cdi_spec_dirs" in kept and "log_size_max" not in kept
    unit.unlink()
    assert both(docker, "docker", FULL).changed and not (docker.root / dropins.CONTAINERS).exists()


def test_podmans_drop_ins_go_when_docker_is_used(docker: Docker) -> None:
    both(docker, "podman", Settings(https_proxy=PROXY, mirrors=MIRROR.mirrors))
    ahead = both(docker, "docker", Settings(), check=True)
    files = {"/" + name for name in dropins.FILES}
    assert files == {file["path"] for file in ahead.files} and (docker.root / dropins.REGISTRIES).exists()
    outcome = both(docker, "docker", Settings())
    assert files == {file["path"] for file in outcome.files}
    assert not any((docker.root / name).exists() for name in dropins.FILES)
    assert not both(docker, "docker", Settings()).changed


def test_a_file_of_somebody_else_with_the_name_of_a_drop_in_stays(docker: Docker) -> None:
    path = docker.root / dropins.CONTAINERS
    path.parent.mkdir(parents=True)
    path.write_text("[engine]\n")
    pipe = docker.root / dropins.REGISTRIES
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    assert not both(docker, "docker", Settings()).files and path.exists() and pipe.exists()


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("there", [False, True])
def test_podmans_drop_ins_are_one_change(
    commands: Commands, tmp_path: Path, there: bool, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(commands, Files(), tmp_path, tmp_path / "state")
    if there:
        config.podman(Settings(log_max_size="10m", mirrors=MIRROR.mirrors), "5.4.2")
    before = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    module: Any = os if step == "fsync" else Path
    real, calls = getattr(module, step), []

    def fail_once(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*given)

    with monkeypatch.context() as patched:
        patched.setattr(module, step, fail_once)
        with pytest.raises(SocleError, match=r"Cannot write Podman's settings: No space left on device \(.*registries"):
            config.podman(Settings(log_max_size="20m", mirrors=OTHER_MIRROR.mirrors), "5.4.2")
    assert {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "text",
    [
        '{"proxies": {"https-proxy": "joe:hunter2@proxy.example.org:3128"}}',
        '{"proxies": {"https-proxy": "http://joe:hun/ter2@proxy.example.org:3128"}}',
        'env = ["https_proxy=joe:hunter2@proxy.example.org:3128"]',
    ],
)
def test_a_diff_has_no_password_of_a_proxy_however_it_is_written(text: str) -> None:
    outcome = Outcome()
    outcome.note("/etc/docker/daemon.json", text, text)
    shown = str(outcome.files)
    assert "hun" not in shown and "joe" not in shown and "proxy.example.org:3128" in shown
