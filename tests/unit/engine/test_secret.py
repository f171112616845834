# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An API key that is changed: whatever ends the run, the engine has the old one or the new one, and nobody else has."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine import secret
from ansible_collections.socle.inference.plugins.module_utils._engine.backend import Backend
from ansible_collections.socle.inference.plugins.module_utils._engine.docker import DockerBackend, secret_file
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._engine.locks import locked
from ansible_collections.socle.inference.plugins.module_utils._engine.quadlet import QuadletBackend
from ansible_collections.socle.inference.plugins.module_utils._engine.secret import ensure_api_key
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError

from .conftest import Host
from .test_launch import Fuse, FusedFiles, Killed

OLD, NEW = "0ld-s3cr3t", "n3w-s3cr3t"


def held(host: Host, folder: Path, engine: str) -> str | None:
    """The value that an engine's next start gets; None where it has none."""
    if engine == "podman":
        return host.secrets.get("socle-chat-api_key", (None, None))[0]
    return Files().read(secret_file(folder / "secrets", "chat", "api_key"))


@pytest.mark.parametrize("after", [False, True], ids=["before the step", "after the step"])
@pytest.mark.parametrize(
    ("engine", "version", "always"),
    [
        ("podman", "5.4.2", True),
        ("podman", "4.9.3", True),
        ("podman", "4.7.0", True),
        # It cannot replace one.
        ("podman", "4.6.2", False),
        ("docker", "26.1.5", True),
    ],
)
def test_a_run_killed_at_any_step_leaves_a_key_that_the_next_run_puts_right(
    engine: str, version: str, always: bool, after: bool, tmp_path: Path
) -> None:
    for step in range(1, 40):
        host, folder = Host(podman=version), tmp_path / str(step)
        fuse = Fuse(step, after)

        def make(runner: Any, files: Files, folder: Path = folder) -> Backend:
            if engine == "podman":
                return QuadletBackend(runner)
            return DockerBackend(runner, secrets_dir=folder / "secrets", docker="docker", files=files)

        def store(backend: Backend, key: str, files: Files, folder: Path = folder) -> dict[str, Any]:
            return ensure_api_key(backend, folder / "secrets", "chat", key, files)

        calm = make(host, Files())
        before = store(calm, OLD, Files())
        burning = FusedFiles(fuse)

        def runner(argv: Any, fuse: Fuse = fuse, host: Host = host, **more: Any) -> Any:
            return fuse.around(lambda: host(argv, **more))

        with contextlib.suppress(Killed):
            store(make(runner, burning), NEW, burning)
        if not fuse.burnt:
            assert step > 3, "there are more steps than that"
            return
        assert held(host, folder, engine) in ((OLD, NEW) if always else (OLD, NEW, None)), f"step {step}"
        put_right = store(calm, NEW, Files())
        assert held(host, folder, engine) == NEW and put_right["hmac"] != before["hmac"], f"step {step}"
        assert calm.secret_mark("chat", "api_key") == put_right["hmac"]
        assert store(calm, NEW, Files())["changed"] is False
        assert not any(key in word for call in host.calls for word in call for key in (OLD, NEW))
    raise AssertionError("it does not end")


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_no_file_with_the_key_is_ever_readable_for_others(
    engine: str, umask: int, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    real = os.fsync

    def look(handle: int) -> None:
        # Written whole by now, and not yet in its place.
        for path in (tmp_path / "secrets").rglob("*"):
            if path.is_file() and (OLD in path.read_text() or NEW in path.read_text()):
                seen.append((path.name, stat.S_IMODE(path.stat().st_mode)))
        real(handle)

    monkeypatch.setattr(os, "fsync", look)
    docker = DockerBackend(host, secrets_dir=tmp_path / "secrets", docker="docker")
    backend: Backend = docker if engine == "docker" else QuadletBackend(host)
    before = os.umask(umask)
    try:
        for key in (OLD, NEW):
            ensure_api_key(backend, tmp_path / "secrets", "chat", key, Files())
    finally:
        os.umask(before)
    assert {mode for _name, mode in seen} == {0o600}
    names = {name for name, _mode in seen}
    assert {".env.new", "env"} <= names and (".docker-api_key.new" in names) is (engine == "docker")
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700


def test_podman_replaces_what_it_has_in_one_command(host: Host, tmp_path: Path) -> None:
    backend = QuadletBackend(host)
    for key in (OLD, NEW):
        ensure_api_key(backend, tmp_path, "chat", key, Files())
    created = [call for call in host.calls if call[1:3] == ["secret", "create"]]
    # What is not there it replaces only since 5.1.
    assert ["--replace" in call for call in created] == [False, True]
    assert host.count("podman", "secret", "rm") == 0


@pytest.mark.parametrize(
    "said", ["Error: deleting secret 243027a: 243027a: no secret data with ID", "Error: x: secret name in use"]
)
def test_a_secret_without_its_content_is_told_with_a_way_out(
    host: Host, tmp_path: Path, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = QuadletBackend(host)
    ensure_api_key(backend, tmp_path, "chat", OLD, Files())
    answer = host._answer

    def broken(words: list[str], *rest: Any) -> Any:
        return (125, "", f"{said}\n") if words[1:3] == ["secret", "create"] else answer(words, *rest)

    monkeypatch.setattr(host, "_answer", broken)
    with pytest.raises(EngineError, match=r"lists it without its content.*secrets/secrets\.json below") as caught:
        ensure_api_key(backend, tmp_path, "chat", NEW, Files())
    assert "\n" not in caught.value.message
    assert NEW not in caught.value.message + str(caught.value.fields)


@pytest.mark.parametrize("content", ["", "no hex\n", "ab" * 31, "ab" * 33, "AB" * 32, "ab" * 31 + "\u0663\u0663"])
def test_a_damaged_key_of_the_host_is_one_sentence(host: Host, tmp_path: Path, content: str) -> None:
    (tmp_path / "hmac.key").write_text(content)
    with pytest.raises(EngineError, match=rf"Cannot use {tmp_path}/hmac\.key, .*; remove it, and the next run") as said:
        ensure_api_key(QuadletBackend(host), tmp_path, "chat", NEW, Files())
    assert NEW not in said.value.message and host.secrets == {}


def test_two_runs_store_their_keys_one_after_the_other(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret, "LOCK_S", 0)
    backend = QuadletBackend(host)
    with locked(tmp_path / ".lock", "storing the API key of other", 0):
        with pytest.raises(EngineError, match=r"for 0 s, storing the API key of other \(process \d+"):
            ensure_api_key(backend, tmp_path, "chat", NEW, Files())
        assert ensure_api_key(backend, tmp_path, "chat", NEW, Files(), check=True)["changed"]
    assert ensure_api_key(backend, tmp_path, "chat", NEW, Files())["changed"]


def test_a_host_without_keys_gets_no_folder_for_them(host: Host, tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    assert ensure_api_key(QuadletBackend(host), folder, "chat", None, Files()) == {"changed": False, "hmac": None}
    assert not folder.exists()
