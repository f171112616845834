# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""API keys, images, and the runner itself."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine import backend as module
from ansible_collections.socle.inference.plugins.module_utils._engine import host_io
from ansible_collections.socle.inference.plugins.module_utils._engine.backend import parse_journal, parse_show
from ansible_collections.socle.inference.plugins.module_utils._engine.diagnosis import reports_error
from ansible_collections.socle.inference.plugins.module_utils._engine.docker import DockerBackend
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import (
    Files,
    NotText,
    accepts_connections,
    explaining,
    read_noted,
    run,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.image import ensure_image
from ansible_collections.socle.inference.plugins.module_utils._engine.launch import Launcher
from ansible_collections.socle.inference.plugins.module_utils._engine.quadlet import QuadletBackend
from ansible_collections.socle.inference.plugins.module_utils._engine.secret import ensure_api_key
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

from .conftest import Host

KEY = "s3cr3t $%\"' value"


def test_a_key_is_stored_for_root_only_and_in_podman(backend: QuadletBackend, host: Host, tmp_path: Path) -> None:
    first = ensure_api_key(backend, tmp_path, "chat", KEY, Files())
    env = tmp_path / "chat" / "env"
    assert env.read_text() == f"VLLM_API_KEY={KEY}\n"
    for path, mode in ((env, 0o600), (env.parent, 0o700), (tmp_path / "hmac.key", 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert host.secrets["socle-chat-api_key"] == (KEY, first["hmac"])
    assert first["changed"] and first["hmac"].startswith("hmac-sha256:")
    # Only by standard input: an argument would show in "ps".
    assert not any(KEY in word for call in host.calls for word in call)


def test_the_same_key_changes_nothing_and_another_one_changes_the_mark(
    backend: QuadletBackend, host: Host, tmp_path: Path
) -> None:
    first = ensure_api_key(backend, tmp_path, "chat", KEY, Files())
    assert ensure_api_key(backend, tmp_path, "chat", KEY, Files()) == {"changed": False, "hmac": first["hmac"]}
    other = ensure_api_key(backend, tmp_path, "chat", "other", Files(), check=True)
    assert other["changed"] and other["hmac"] != first["hmac"] and host.secrets["socle-chat-api_key"][0] == KEY
    assert ensure_api_key(backend, tmp_path, "chat", "other", Files()) == other
    assert host.secrets["socle-chat-api_key"][0] == "other"


def test_a_file_that_others_can_read_is_put_right(backend: QuadletBackend, tmp_path: Path) -> None:
    ensure_api_key(backend, tmp_path, "chat", KEY, Files())
    (tmp_path / "chat" / "env").chmod(0o644)
    assert ensure_api_key(backend, tmp_path, "chat", KEY, Files())["changed"]
    assert stat.S_IMODE((tmp_path / "chat" / "env").stat().st_mode) == 0o600


def test_two_hosts_mark_the_same_key_differently(backend: QuadletBackend, tmp_path: Path) -> None:
    marks = {ensure_api_key(QuadletBackend(Host()), tmp_path / name, "chat", KEY, Files())["hmac"] for name in "ab"}
    assert len(marks) == 2


@pytest.mark.parametrize("gone", [None, ""])
def test_without_a_key_nothing_is_left(backend: QuadletBackend, host: Host, tmp_path: Path, gone: Any) -> None:
    ensure_api_key(backend, tmp_path, "chat", KEY, Files())
    assert ensure_api_key(backend, tmp_path, "chat", gone, Files()) == {"changed": True, "hmac": None}
    assert host.secrets == {} and not (tmp_path / "chat" / "env").exists()
    assert ensure_api_key(backend, tmp_path, "chat", gone, Files())["changed"] is False


def test_check_mode_on_a_new_host_writes_nothing(backend: QuadletBackend, host: Host, tmp_path: Path) -> None:
    assert ensure_api_key(backend, tmp_path / "s", "chat", KEY, Files(), check=True) == {"changed": True, "hmac": None}
    assert not (tmp_path / "s").exists() and host.secrets == {}


@pytest.mark.parametrize("key", ["abc\nVLLM_X=1", "abc\u5bc6", " abc", "abc "])
def test_a_key_that_no_client_can_send_is_refused_without_showing_it(
    backend: QuadletBackend, tmp_path: Path, key: str
) -> None:
    with pytest.raises(EngineError) as caught:
        ensure_api_key(backend, tmp_path, "chat", key, Files())
    assert "abc" not in caught.value.message and not list(tmp_path.glob("**/env"))


def test_a_file_system_that_is_read_only_is_one_sentence_without_the_key(
    backend: QuadletBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s").write_text("no folder")
    with pytest.raises(EngineError, match=r"Cannot store the API key of chat: .*\(.*/s/.*\)") as caught:
        ensure_api_key(backend, tmp_path / "s", "chat", KEY, Files())
    assert KEY not in caught.value.message + str(caught.value.fields)

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EngineError, match=r"No space left on device \(.*/hmac\.key\); make room there"):
        ensure_api_key(backend, tmp_path / "t", "chat", KEY, Files())


def test_a_link_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    words = r"Cannot try: No such file or directory \(.*/nowhere/current\)"
    with pytest.raises(EngineError, match=words), explaining("try"):
        Files().point(tmp_path / "nowhere" / "current", "generations/1")


def test_what_is_no_text_is_one_sentence_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "latin.json").write_bytes(b'{"a": "\xff"}')
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    (tmp_path / "off.json").symlink_to("/dev/null")
    os.mknod(tmp_path / "socket.json", stat.S_IFSOCK | 0o600)
    for name, words in (
        ("latin", r"its byte 7 is no UTF-8 text \(.*/latin\.json\); correct the file by hand"),
        ("folder", r"Is a directory \(.*/folder\.json\); move that folder away"),
        ("pipe", r"it is a pipe, not a file \(.*/pipe\.json\); remove it"),
        ("socket", r"it is a socket, not a file \(.*/socket\.json\); remove it"),
        ("zero", r"it is a device, not a file \(.*/zero\.json\); remove it"),
    ):
        with pytest.raises(EngineError, match=f"Cannot read settings: {words}"), explaining("read settings"):
            Files().read(tmp_path / f"{name}.json")
    assert Files().read(tmp_path / "off.json") == ""


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_file_that_is_not_replaced_leaves_nothing_beside_it(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "50-socle.conf"
    path.write_text("old")

    def fail(*_given: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*((os, "fsync", fail) if step == "fsync" else (Path, "replace", fail)))
    for change in (lambda: Files().write(path, "new"), lambda: Files().make_folder(tmp_path / "folder", {"a": "b"})):
        with pytest.raises(OSError, match="No space left"):
            change()
    assert [found.name for found in tmp_path.iterdir()] == ["50-socle.conf"] and path.read_text() == "old"


def test_a_file_system_that_is_read_only_is_named_by_the_file_that_was_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def read_only(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", read_only)
    said = {}
    for name in ("etc", "state"):
        with pytest.raises(EngineError) as caught, explaining("write", tmp_path / "state"):
            Files().write(tmp_path / name / "daemon.json", "{}")
        said[name] = caught.value.message.replace(str(tmp_path), "")
    sentence = "Cannot write: Read-only file system ({}); make that file system writable{}, then repeat the run."
    assert said["etc"] == sentence.format("/etc/daemon.json", "")
    assert said["state"] == sentence.format("/state/daemon.json", ", or set another state folder")


def test_what_is_no_text_is_damaged_to_those_who_pass_damaged_files_over() -> None:
    assert issubclass(NotText, OSError) and issubclass(NotText, ValueError)


@pytest.mark.parametrize("text", [b"[" * 100_000, b"{", b'{"a": "\xff"}', None])
def test_what_was_noted_and_is_damaged_counts_as_damaged(tmp_path: Path, text: bytes | None) -> None:
    path = tmp_path / "noted.json"
    assert read_noted(Files(), path) == {}
    path.mkdir() if text is None else path.write_bytes(text)
    assert read_noted(Files(), path) is None


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_umask_does_not_decide_who_enters_folders_that_are_made(tmp_path: Path, umask: int) -> None:
    tmp_path.joinpath("etc").mkdir(mode=0o750)
    before = os.umask(umask)
    try:
        Files().write(tmp_path / "etc/containers/containers.conf.d/50-socle.conf", "")
        Files().ensure_folder(tmp_path / "cache/vllm")
        Files().make_folder(tmp_path / "state/1", {"plan.json": "{}"})
    finally:
        os.umask(before)
    made = ("etc/containers", "etc/containers/containers.conf.d", "cache", "cache/vllm", "state", "state/1")
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in made} == {0o755}
    assert stat.S_IMODE((tmp_path / "etc").stat().st_mode) == 0o750


def test_a_file_in_the_way_of_a_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "etc").write_text("")
    with pytest.raises(OSError, match="etc"):
        Files().write(tmp_path / "etc/docker/daemon.json", "{}")


def test_a_link_is_replaced_unless_its_owner_may_have_made_it(tmp_path: Path) -> None:
    real, link = tmp_path / "kept" / "real.json", tmp_path / "daemon.json"
    real.parent.mkdir()
    real.write_text("old")
    link.symlink_to("kept/real.json")
    Files().write(link, "new", follow=True)
    assert link.is_symlink() and real.read_text() == "new"
    Files().write(link, "ours")
    assert not link.is_symlink() and real.read_text() == "new"


def test_a_listener_is_noticed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert accepts_connections("127.0.0.1", port)
    assert not accepts_connections("127.0.0.1", port)
    assert not accepts_connections("[::1]", port)
    assert not accepts_connections("no-such-host.invalid", port)


def image(backend: QuadletBackend, **options: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"pull": "missing", "progress": Progress(), "clock": lambda: 0.0, **options}
    return ensure_image(backend, "registry/x:1", **given)


def test_a_missing_image_is_pulled_once(backend: QuadletBackend, host: Host) -> None:
    assert image(backend, check=True) == {
        "changed": True,
        "image": "registry/x:1",
        "present": False,
        "seconds": None,
        "digest": None,
        "repo_digests": [],
    }
    assert host.images == {}
    first = image(backend)
    assert first["changed"] and first["digest"] == "sha256:" + "ab" * 32
    assert first["repo_digests"] == ["registry/x@sha256:" + "cd" * 32]
    assert image(backend)["changed"] is False and host.count("podman", "pull") == 1


def test_a_missing_image_that_must_not_be_pulled_is_one_sentence(backend: QuadletBackend) -> None:
    with pytest.raises(EngineError, match=r"registry/x:1 is not in Podman on this host and pull is 'never'"):
        image(backend, pull="never")


def test_a_failing_pull_is_reported_with_the_reason(backend: QuadletBackend, host: Host) -> None:
    host.refuse = "Error: initializing source docker://registry/x:1: pinging container registry: connection refused"
    with pytest.raises(EngineError, match=r"Cannot pull image registry/x:1: Error: initializing.*connection refused"):
        image(backend)


def test_a_host_without_podman_is_told_what_to_install() -> None:
    backend = QuadletBackend(run, podman="/nonexistent/podman")
    with pytest.raises(EngineError, match=r"Cannot run podman on this host.*install Podman 4\.6"):
        backend.version()


def test_a_failing_systemctl_is_one_sentence(backend: QuadletBackend, host: Host, monkeypatch: Any) -> None:
    monkeypatch.setattr(host, "_answer", lambda *_: (1, "", "System has not been booted.\nHost is down\n"))
    with pytest.raises(EngineError) as caught:
        backend.state("chat")
    assert caught.value.message.startswith(
        "systemctl show vllm-chat.service failed: System has not been booted. Host is"
    )


def test_the_runner_watches_both_outputs() -> None:
    seen: list[str] = []
    code = "import sys; print('out'); print('one', file=sys.stderr); print('two', file=sys.stderr); sys.exit(3)"
    done = run([sys.executable, "-c", code], on_line=seen.append)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "one\ntwo\n")
    assert sorted(line for line in seen if line) == ["one", "out", "two"]


def script(code: str) -> list[str]:
    return [sys.executable, "-c", f"import os, sys, time\n{code}"]


FLOOD = "while True: os.write({}, b'x' * 65536)"


@pytest.mark.parametrize("output", [1, 2])
def test_a_command_that_says_without_end_is_given_up(output: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_io, "OUTPUT_BYTES", 1 << 20)
    with pytest.raises(EngineError, match=r"(?s)Gave up on '.* -c .*': it said more than the 1 MiB") as caught:
        run(script(FLOOD.format(output)))
    assert len(str(caught.value.fields)) < 1000


def test_of_a_command_that_says_enough_the_beginning_is_kept() -> None:
    done = run(script("os.write(1, b'line\\n')\n" + FLOOD.format(1)), enough=70_000)
    assert done.returncode == -signal.SIGKILL and len(done.stdout) == 70_000 and done.stdout.startswith("line\nxx")
    done = run(script("print('a')"), enough=70_000)
    assert (done.returncode, done.stdout) == (0, "a\n")


def test_a_command_gets_its_whole_input_and_may_leave_it() -> None:
    given = "ä" * 200_000
    code = "sys.stdout.write(str(len(sys.stdin.buffer.read())))"
    assert run(script(code), input_text=given).stdout == str(len(given.encode()))
    assert run(script("print('no')"), input_text=given * 20).stdout == "no\n"
    assert run(script("sys.stdout.write(repr(sys.stdin.read()))")).stdout == "''"


def test_lines_end_as_they_do_for_a_file() -> None:
    assert run(script(r"os.write(1, b'a\r\nb\rc\n\xff')")).stdout == "a\nb\nc\n\ufffd"


@pytest.mark.parametrize("code", ["time.sleep(600)", "os.close(1); os.close(2); time.sleep(600)"])
def test_a_command_that_does_not_end_is_given_up(code: str) -> None:
    with pytest.raises(EngineError, match=r"(?s)Gave up on '.*' after 1 s: it did not end"):
        run(script(code), timeout_s=1)


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    said = r"Cannot x: it is larger than 16384 KiB \(.*plan\.json\); see what wrote it"
    with pytest.raises(EngineError, match=said), explaining("x"):
        Files().read(path)
    path.write_text("12345")
    assert Files().read(path, 5) == "12345"
    with pytest.raises(NotText):
        Files().read(path, 4)


@pytest.mark.parametrize("answer", ["", "{", "[]", "{}", "null", "7", '[{"id": 1}]', "[[[", "[" * 100_000, '["x"]'])
@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_an_answer_of_an_engine_that_is_none_is_one_sentence(
    engine: str, answer: str, backend: QuadletBackend, docker: DockerBackend, host: Host, monkeypatch: Any
) -> None:
    monkeypatch.setattr(host, "_answer", lambda *_: (0, answer, ""))
    asked = docker if engine == "docker" else backend
    questions = [lambda: asked.image("x:1")]
    if engine == "podman":
        questions.append(lambda: asked.secret_mark("chat", "api_key"))
    if answer not in ("[]", "{}", "null"):
        questions.append(lambda: asked.container_labels("chat"))
    for ask in questions:
        with pytest.raises(EngineError, match=rf"Cannot look at .*: '{engine} .*' answered something else") as caught:
            ask()
        assert "\n" not in caught.value.message and len(caught.value.message) < 400


NOT_ASKED = {"podman": ("cdi",), "docker": ("secret", "new secret", "old secret")}
QUESTIONS: dict[str, Any] = {
    "state": lambda asked: asked.state("chat"),
    "reload": lambda asked: asked.reload(),
    "image": lambda asked: asked.image("x:1"),
    "labels": lambda asked: asked.container_labels("chat"),
    "pull": lambda asked: asked.pull("x:1"),
    "version": lambda asked: asked.version(),
    "unit": lambda asked: asked.validate("chat", "text"),
    "secret": lambda asked: asked.name == "docker" or asked.secret_mark("chat", "api_key"),
    "new secret": lambda asked: asked.name == "docker" or asked.put_secret("chat", "api_key", "key", "mark"),
    "old secret": lambda asked: asked.name == "docker" or asked.remove_secret("chat", "api_key"),
    "cdi": lambda asked: asked.name == "podman" or asked.cdi_dirs(),
}


@pytest.mark.parametrize("said", ["", "\x1b[31mError: boom\x1b[0m\n at its\0 storage.\n", "x" * 100_000, "\u2028"])
@pytest.mark.parametrize("status", [1, 125, -9])
@pytest.mark.parametrize("engine", ["podman", "docker"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_command_that_fails_is_told_in_one_sentence_whatever_it_says(
    question: str, engine: str, status: int, said: str, backend: QuadletBackend, docker: DockerBackend, host: Host
) -> None:
    asked = docker if engine == "docker" else backend
    asked._runner = lambda argv, **_options: subprocess.CompletedProcess(list(argv), status, "", said)
    try:
        QUESTIONS[question](asked)
    except EngineError as error:
        told = error.message
        assert told.endswith(".") and len(told) < 1000
        assert not re.search(r"[\x00-\x1f\u2028]|: [;.](?!\.)|''", told), told
        assert "boom" in told or "boom" not in said
    else:
        # One status of Podman says that there is none.
        assert (status == 1 and engine == "podman") or question in NOT_ASKED[engine]


@pytest.mark.parametrize(
    "answer", ["", "Running in chroot, ignoring command 'show'\n", "\0\x1b[2J", "Id=other.service\n"]
)
def test_a_unit_of_which_systemd_says_nothing_is_not_taken_for_stopped(
    answer: str, backend: QuadletBackend, host: Host, plan: dict[str, Any], tmp_path: Path, monkeypatch: Any
) -> None:
    real = host._answer

    def mute(words: list[str], *given: Any) -> tuple[int, str, str]:
        return (0, answer, "") if words[:2] == ["systemctl", "show"] else real(words, *given)

    plan["mounts"][1]["source"] = str(tmp_path / "cache")
    launcher = Launcher(backend, tmp_path / "instances", Files(), listens=lambda *_: False)
    monkeypatch.setattr(host, "_answer", mute)
    for act in (lambda: launcher.start(plan), lambda: launcher.start(plan, check=True), lambda: launcher.stop("chat")):
        with pytest.raises(EngineError, match=r"^Cannot tell whether vllm-chat\.service runs: .*\.$") as caught:
            act()
        assert caught.value.message.isprintable()
    assert host.restarts == 0


def test_a_key_is_not_taken_for_gone_where_podman_cannot_look(
    backend: QuadletBackend, host: Host, tmp_path: Path, monkeypatch: Any
) -> None:
    ensure_api_key(backend, tmp_path, "chat", KEY, Files())
    real = host._answer

    def broken(words: list[str], *given: Any) -> tuple[int, str, str]:
        return (125, "", "database is locked") if words[:2] == ["podman", "secret"] else real(words, *given)

    monkeypatch.setattr(host, "_answer", broken)
    for key in (None, KEY, "other"):
        with pytest.raises(EngineError, match=r"Cannot look at secret socle-chat-api_key: database is locked; repair"):
            ensure_api_key(backend, tmp_path, "chat", key, Files())
    monkeypatch.setattr(host, "_answer", real)
    assert ensure_api_key(backend, tmp_path, "chat", None, Files())["changed"] and host.secrets == {}


def test_a_command_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    program = tmp_path / "podman"
    program.write_text("no program")
    for mode, word in ((0o644, "Permission denied"), (0o755, "Exec format error")):
        program.chmod(mode)
        with pytest.raises(EngineError, match=rf"Cannot run '{program} ps' on this host: {word}; see whether"):
            run([str(program), "ps"])
    with pytest.raises(EngineError, match=r"Cannot run 'true a\\x00b' on this host: one of its arguments") as caught:
        run(["true", "a\0b"])
    assert caught.value.message.isprintable()
    with pytest.raises(EngineError, match="Argument list too long"):
        run(["true", "x" * 10_000_000])


def test_numbers_and_entries_that_are_none_are_no_traceback() -> None:
    shown = f"Id=vllm-a.service\nMainPID=\u00b2\nJob={'9' * 5000}\nExecMainStatus=\u00b3\nNRestarts=x\n"
    found = parse_show(shown)["vllm-a.service"]
    assert (found.restarts, found.job_pending, found.has_process) == (0, False, False)
    text = (
        '{"__CURSOR": 5, "__MONOTONIC_TIMESTAMP": "x", "MESSAGE": "a"}\n'
        '{"__CURSOR": "c", "__MONOTONIC_TIMESTAMP": [], "MESSAGE": [300, -1, 98, "x", true]}\n' + "[" * 100_000
    )
    lines, cursor = parse_journal(text)
    assert [line.text.strip() for line in lines] == ["a", "b"] and cursor == "c"


def test_a_flood_in_the_journal_is_read_in_pieces_and_none_of_it_is_lost(
    backend: QuadletBackend, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "JOURNAL_BYTES", 2000)
    monkeypatch.setattr(module, "JOURNAL_PIECES", 3)
    host.journal = [(5, f"line {number} {'x' * 100}") for number in range(100)]
    found: list[str] = []
    cursor = None
    for _call in range(10):
        lines, cursor = backend.follow("chat", 0, cursor)
        found += [line.text.split(" ")[1] for line in lines]
    assert found == [str(number) for number in range(100)]
    assert backend.follow("chat", 0, cursor) == ([], cursor)
    host.journal = [(5, "x" * 5000)]
    with pytest.raises(
        EngineError, match=r"Cannot read the journal of vllm-chat\.service: it has an entry of more than"
    ):
        backend.follow("chat", 0)


def test_units_are_read_apart() -> None:
    shown = (
        "Id=vllm-a.service\nActiveState=active\nNRestarts=2\nJob=\nInactiveExitTimestampMonotonic=12\n\n"
        "Id=vllm-b.service\nLoadState=not-found\nActiveState=inactive\nExecMainStatus=0\n"
    )
    found = parse_show(shown)
    assert (found["vllm-a.service"].active, found["vllm-a.service"].restarts) == ("active", 2)
    assert found["vllm-a.service"].started_us == 12 and not found["vllm-a.service"].job_pending
    assert not found["vllm-b.service"].loaded and not found["vllm-b.service"].running


def test_the_journal_may_hold_anything() -> None:
    text = '{"__CURSOR":"c1","__MONOTONIC_TIMESTAMP":"5","MESSAGE":"a"}\nnot json\n' + (
        '{"__CURSOR":"c2","__MONOTONIC_TIMESTAMP":"6","MESSAGE":[27,91,51,49,109,120,0]}\n{"__CURSOR":"c3","MESSAGE":null}\n'
    )
    lines, cursor = parse_journal(text)
    assert [(line.text, line.monotonic_us) for line in lines] == [("a", 5), ("x ", 6)] and cursor == "c3"


def test_nobody_begins_a_line_of_his_own_in_the_journal() -> None:
    # Journald has U+0085 as a list of bytes, and U+2028 as it is; users can put both into the id of a request.
    said = (
        "INFO 11-30 10:00:00 [logger.py:42] Received request chatcmpl-1\x85torch.OutOfMemoryError: CUDA out of memory."
    )
    entries = [list(said.encode()), said.replace("\x85", "\u2028"), "Loading:   0%\rLoading: 100%\r\n"]
    text = "\n".join(
        json.dumps({"__MONOTONIC_TIMESTAMP": "5", "MESSAGE": entry}, ensure_ascii=False) for entry in entries
    )
    lines, _cursor = parse_journal(text)
    assert [line.text for line in lines] == [said.replace("\x85", " ")] * 2 + ["Loading:   0%", "Loading: 100%"]
    assert not any(reports_error(line.text) for line in lines)


def test_long_and_coloured_messages_are_read_whole(backend: QuadletBackend, host: Host) -> None:
    listed = ", ".join(f"'Model{number}ForCausalLM'" for number in range(400))
    error = f"ValueError: Model architectures ['X'] are not supported for now. Supported architectures: [{listed}]"
    host.journal = [(5, f"\x1b[0;36m(APIServer pid=1)\x1b[0;0m {error}")]
    (line,), _cursor = backend.follow("chat", 0)
    assert line.text == f"(APIServer pid=1) {error}" and reports_error(line.text)
    # What journalctl gives no value for without it: more than 4096 bytes.
    assert all("--all" in call for call in host.calls if call[0] == "journalctl")
    backend.kernel_log(0)
    assert all("--all" in call for call in host.calls if call[0] == "journalctl")
