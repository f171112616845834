# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts, finds, directs and ends the background jobs of _hub.job. Private to socle.inference."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import HubError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.job import (
    PROXY_VARIABLES,
    Folder,
    demand_of,
    is_locked,
    read_json,
    write_private,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.peer import Peer, Upstream
from ansible_collections.socle.inference.plugins.module_utils._hub.tree import open_regular

START_S = 20.0
ANSWER_S = 10.0
POLL_S = 0.05
LOG_LINES = 5
LOG_BYTES = 16 << 10
LINE_CHARACTERS = 300
BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from ansible_collections.socle.inference.plugins.module_utils._hub.job import main; "
    "main(sys.argv[2], sys.argv[3:] == ['detach'])"
)
SYSTEMD = Path("/run/systemd/system")


@dataclass(frozen=True)
class View:
    """A job as it is found."""

    folder: Folder
    running: bool
    status: dict[str, Any]
    result: dict[str, Any] | None

    @property
    def over(self) -> bool:
        """The download has ended; the process may still serve."""
        return self.result is not None

    @property
    def failed(self) -> bool:
        return bool(self.result and self.result.get("failed"))


class JobControl:
    """The job for one repository in one store."""

    def __init__(self, base: Path, store: str, source: str, repo: str) -> None:
        self.repo = repo
        self._base = base
        # Whoever asks for the job may write the same store in other words.
        place = os.path.realpath(store)
        self.id = hashlib.sha256(os.fsencode(f"{place}\0{source}\0{repo}")).hexdigest()[:12]
        self.folder = Folder(base / self.id)

    def look(self) -> View | None:
        """The job, running or over; None where there is none."""
        if not self.folder.path.is_dir():
            return None
        running = is_locked(self.folder)
        status = read_json(self.folder.status)
        result = read_json(self.folder.result)
        return View(
            self.folder,
            running,
            status if isinstance(status, dict) else {},
            result if _is_result(result) else None,
        )

    def start(
        self,
        spec: dict[str, Any],
        manifest: Manifest,
        run: str,
        renew: Callable[[], dict[str, Any] | None] = lambda: None,
    ) -> tuple[View, bool]:
        """The job that brings *manifest*, and whether it is a new one. Raises StoreError and HubError.

        A job that is over answers for an earlier run: its result is never this one's, which is called *run*. But its
        relay may have neighbours, so it stays where *renew*, a fresh look at the store, finds nothing to do: what that
        returns is the result from then on. Where there is something to do, the job of another run stays as long as
        its neighbours take from it.
        """
        with self._controlled():
            view = self.look()
            if view and view.running and not view.over:
                self._check_same(view, manifest)
                self._check_demand(view, spec)
                view = self._admit(view, spec, run)
                if not spec.get("relay") or view.status.get("port"):
                    return view, False
                # It ended before it could open a relay.
            if view and view.running:
                result = renew() if self._serves(view, spec, manifest) else None
                if result is not None:
                    write_private(self.folder.result, {"failed": False, "result": result})
                    return self._admit(view, spec, run), False
                self._check_unused(view, run)
                self._end(view)
            self._clear()
            self.folder.path.mkdir(mode=0o700)
            write_private(self.folder.users, [run])
            return self._launch(spec), True

    def join(
        self, upstreams: Sequence[Upstream], token: str, manifest: Manifest, ask_hub: bool, allow_multi_wan: bool
    ) -> list[str]:
        """Tell the job where to take the files from; returns warnings. A job that knows already goes on as it is."""
        view = self.look()
        # One that another run began may have ended meanwhile: its result is told by wait().
        if view is None or not (view.running or view.over):
            raise HubError(self._describe_death("was to begin", view))
        self._check_same(view, manifest)
        if view.status.get("joined") or view.over:
            return []
        reached, warnings = self._reach(upstreams, token, manifest)
        if upstreams and not reached and not (ask_hub or allow_multi_wan):
            self._end(view)
            raise HubError(
                f"none of the hosts that have {self.repo} can be reached from here ({'; '.join(warnings)}): open the "
                "ports between the hosts, set lan_address to the addresses that they reach, or let each host download "
                "for itself with allow_multi_wan",
                unreachable=warnings,
            )
        order = {
            "upstreams": [vars(upstream) for upstream in reached],
            "token": token,
            "hub": ask_hub or allow_multi_wan,
            # Whoever has upstreams and need not wait for them has the model, but for what turns out to be damaged.
            "source": ask_hub,
        }
        write_private(self.folder.upstreams, order)
        self._await(lambda: bool((read_json(self.folder.status) or {}).get("joined")) or self.folder.result.exists())
        if warnings:
            instead = f"it takes {self.repo} from {reached[0].describe()}" if reached else "it asks the hub itself"
            return [f"{'; '.join(warnings)}: {instead}"]
        return []

    def wait(self, seconds: float) -> View:
        """The job once its download is over, or after *seconds*. Raises HubError where it died."""
        until = time.monotonic() + seconds
        while True:
            view = self.look()
            if view is None or not (view.running or view.over):
                raise HubError(self._describe_death("was waited for", view))
            if view.over or time.monotonic() >= until:
                return view
            time.sleep(min(POLL_S * 4, max(0.0, until - time.monotonic())))

    def stop(self, run: str) -> bool:
        """End a job whose download is over, and remove what it left; False where the download still goes on, or where
        another run than *run* uses the job. A run that was killed counts until the relay ends by itself."""
        with self._controlled():
            view = self.look()
            if view is None:
                return True
            others = self._users() - {run}
            # Also of a job that has ended: another run may not have read its result yet.
            if others:
                write_private(self.folder.users, sorted(others))
                return False
            if view.running and not view.over and view.status.get("joined"):
                return False
            if view.running:
                self._end(view)
            self._clear()
            return True

    # Inside

    def _serves(self, view: View, spec: dict[str, Any], manifest: Manifest) -> bool:
        """Whether a job that is over serves what a new one would, where it would."""
        relay = spec.get("relay") or {}
        same = view.status.get("content_id") == manifest.content_id
        return bool(same and not view.failed and relay and view.status.get("address") == relay["address"])

    def _check_same(self, view: View, manifest: Manifest) -> None:
        found = view.status.get("content_id")
        if found and found != manifest.content_id:
            raise StoreError(
                f"a job on this host brings {self.repo} at {view.status.get('revision')} with other content "
                f"({found[:19]} instead of {manifest.content_id[:19]}) since {view.status.get('started')}: wait for "
                f"it, or end it with: {self._ending(view)}",
                running=found,
                pid=view.status.get("pid"),
            )

    def _check_demand(self, view: View, spec: dict[str, Any]) -> None:
        """Raise StoreError where the job of another run would end well without what this run asks for."""
        found = view.status.get("demand")
        if not isinstance(found, dict):
            return
        lacking = [
            f"{name} {value}"
            for name, value in demand_of(spec).items()
            if value is not None and not _covers(name, value, found)
        ]
        if lacking:
            raise StoreError(
                f"a job of another run brings {self.repo} to this host since {view.status.get('started')} without "
                f"{' and '.join(lacking)}, which this run asks for: run again when it is over, or end it "
                f"with: {self._ending(view)}",
                pid=view.status.get("pid"),
            )

    def _users(self) -> set[str]:
        found = read_json(self.folder.users)
        return {str(user) for user in found} if isinstance(found, list) else set()

    def _check_unused(self, view: View, run: str) -> None:
        """Raise StoreError where neighbours in another run take from the relay; what failed is of no use."""
        if self._users() - {run} and view.status.get("in_use") and not view.failed:
            raise StoreError(
                f"other hosts take {self.repo} from this host in another run, which began at "
                f"{view.status.get('started')}, and there is something to do for it here that would end that: wait "
                f"until that run is over, or end it with: {self._ending(view)}",
                pid=view.status.get("pid"),
                serving=True,
            )

    def _ending(self, view: View) -> str:
        unit = view.status.get("systemd_unit")
        return f"systemctl stop {unit}" if unit else f"kill {view.status.get('pid')}"

    def _admit(self, view: View, spec: dict[str, Any], run: str) -> View:
        """Let a job that runs already serve this run too, and its relay accept the token of it."""
        write_private(self.folder.users, sorted(self._users() | {run}))
        if not spec.get("relay"):
            return view
        write_private(self.folder.token, spec["relay"])

        def heard() -> bool:
            seen = self.look()
            answered = seen and (seen.status.get("port") or seen.status.get("relay_fault") or not seen.running)
            return bool(answered and not (seen and seen.running and self.folder.token.exists()))

        self._await(heard)
        view = self.look() or view
        if view.running and view.status.get("relay_fault"):
            raise HubError(str(view.status["relay_fault"]))
        return view

    def _launch(self, spec: dict[str, Any]) -> View:
        place = _payload_place()
        if place.is_file():
            shutil.copyfile(place, self.folder.payload)
            place = self.folder.payload
        environment = {name: value for name, value in os.environ.items() if name.lower() in PROXY_VARIABLES}
        # A name of its own: systemd may still have the unit of the job before, when that gave its lock back already.
        unit = f"socle-models-{self.id}-{secrets.token_hex(4)}.service" if _has_systemd() else None
        write_private(self.folder.spec, {**spec, "environment": environment, "systemd_unit": unit})
        command = [sys.executable, "-c", BOOT, str(place), str(self.folder.path)]
        if unit:
            command = [
                *("systemd-run", "--quiet", "--collect", f"--unit={unit}", f"--description=Model {self.repo}"),
                *(
                    f"--property=StandardOutput=file:{self.folder.log}",
                    f"--property=StandardError=file:{self.folder.log}",
                ),
                *("--property=UMask=0022", "--", *command),
            ]
        else:
            command.append("detach")
        with self.folder.log.open("ab") as log:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", check=False)
        if done.returncode == 0:
            self._await(lambda: bool(read_json(self.folder.status)) or self.folder.result.exists(), START_S)
        view = self.look()
        if view is None or not (view.running or view.over) or not (view.status or view.over):
            with contextlib.suppress(OSError):
                self.folder.spec.unlink()
            raise HubError(self._describe_death("was started", view))
        if view.failed and view.result:
            self._clear()
            raise HubError(str(view.result.get("msg")), **(view.result.get("fields") or {}))
        return view

    def _reach(self, upstreams: Sequence[Upstream], token: str, manifest: Manifest) -> tuple[list[Upstream], list[str]]:
        """The upstreams that answer, in order, and a few words about each that does not."""
        if not upstreams:
            return [], []
        with ThreadPoolExecutor(min(16, len(upstreams))) as pool:
            faults = list(pool.map(lambda upstream: Peer(upstream, token).reach(manifest.files[0]), upstreams))
        reached = [upstream for upstream, fault in zip(upstreams, faults) if fault is None]
        failed = [
            f"{upstream.describe()} cannot be reached ({fault})"
            for upstream, fault in zip(upstreams, faults)
            if fault is not None
        ]
        return reached, failed

    def _end(self, view: View) -> None:
        write_private(self.folder.stop, True)
        if not self._await(lambda: not is_locked(self.folder)):
            raise StoreError(
                f"the job for {self.repo} (process {view.status.get('pid')}) does not end: {self._ending(view)}"
            )

    def _clear(self) -> None:
        """Remove what an earlier job left."""
        if self.folder.path.is_dir() and not self.folder.path.is_symlink():
            shutil.rmtree(self.folder.path)
        elif os.path.lexists(self.folder.path):
            self.folder.path.unlink()

    def _await(self, done: Any, seconds: float = ANSWER_S) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if done():
                return True
            time.sleep(POLL_S)
        return bool(done())

    def _describe_death(self, when: str, view: View | None) -> str:
        lines: list[str] = []
        with contextlib.suppress(OSError), os.fdopen(open_regular(self.folder.log), "rb") as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - LOG_BYTES))
            lines = handle.read(LOG_BYTES).decode("utf-8", "replace").strip().splitlines()[-LOG_LINES:]
        if view is None:
            return f"there is no job for {self.repo} on this host when it {when}: run again"
        said = f" It said: {' / '.join(line[:LINE_CHARACTERS] for line in lines)}." if lines else ""
        return (
            f"the job for {self.repo} ended without a result when it {when}, as after a restart of the host or a kill."
            f"{said} Run again: it goes on where it ended"
        )

    @contextlib.contextmanager
    def _controlled(self) -> Iterator[None]:
        """One at a time, of all models: it takes a moment, and one file is enough."""
        make_private(self._base)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._base / "control", flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _covers(name: str, value: Any, found: dict[str, Any]) -> bool:
    """Whether a job with the demand *found* does what *value* of the demand *name* asks for."""
    if name == "verify":
        # What is hashed in full is looked into as well.
        return value == "quick" or found.get(name) in (value, "full")
    if name == "verify_max_age_s":
        age = found.get(name)
        return found.get("verify") == "full" or (isinstance(age, (int, float)) and age <= value)
    return bool(found.get(name) == value)


def _is_result(document: Any) -> bool:
    """Whether *document* tells how a download ended, as _hub.job writes it."""
    if not isinstance(document, dict):
        return False
    if document.get("failed"):
        fields = document.get("fields")
        return isinstance(document.get("msg"), str) and isinstance(fields, dict) and "message" not in fields
    return isinstance(document.get("result"), dict)


def default_base() -> Path:
    """Below /run for root; another user's own folder."""
    return Path("/run/socle/models") if os.geteuid() == 0 else Path(f"/tmp/socle-models-{os.geteuid()}")


def make_private(folder: Path) -> None:
    """Make *folder*, for this user alone; raises StoreError where somebody else has made it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise StoreError(f"the folder of jobs {folder} cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise StoreError(f"the folder of jobs {folder} is not this user's alone: remove it, then run again")


def _has_systemd() -> bool:
    """Whether this process may start units."""
    return SYSTEMD.is_dir() and os.geteuid() == 0 and shutil.which("systemd-run") is not None


def _payload_place() -> Path:
    """Where this code is imported from: the archive that Ansible sent, or a folder of collections."""
    return Path(__file__.partition("/ansible_collections/")[0])
