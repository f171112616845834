# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings the settings of a container engine to its files, and the engine to them. Private to socle.inference."""

from __future__ import annotations

import contextlib
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import (
    Files,
    NotText,
    Runner,
    explaining,
    read_noted,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.select import parse_version
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError, ToolkitError
from ansible_collections.socle.inference.plugins.module_utils._packages.source import without_password
from ansible_collections.socle.inference.plugins.module_utils._toolkit import addresses, daemon_json, dockerd, dropins
from ansible_collections.socle.inference.plugins.module_utils._toolkit.daemon_json import Ledger, Settings
from ansible_collections.socle.inference.plugins.module_utils._toolkit.versions import DOCKER_PROXIES, Which

DAEMON_JSON = "etc/docker/daemon.json"
LEDGER = "container_engine/daemon-json.json"
PENDING = "run/socle/dockerd-takeover"
"""Says that dockerd has not taken daemon.json over yet; a boot makes that untrue, and removes it."""

RESTART_S = 300.0

PODMAN_UNITS = "etc/containers/systemd/vllm-*.container"
DOCKER_UNITS = "etc/systemd/system/vllm-*.service"
CDI_KEY = "features/cdi"

_PROXY_LOGIN = re.compile(r'("https?-proxy"\s*:\s*"|"https?_proxy=)(?:[^"\\]|\\.)*@', re.IGNORECASE)
"""User and password of a proxy in daemon.json and in Podman's drop-in, and the scheme before them."""


@dataclass
class Outcome:
    """What was done, or in check mode would be."""

    changed: bool = False
    action: str = "none"
    """What dockerd got: "none", "reload", "restart" or "start"."""
    containers: int = 0
    """How many containers ran when dockerd was restarted."""
    files: list[dict[str, str]] = field(default_factory=list)
    """Changed files: path, before, after, without users and passwords of addresses."""
    enabled: bool = False
    """Whether docker.service was enabled."""
    unit: tuple[str, str] | None = None
    """State of docker.service before and after, where it changed."""
    warnings: list[str] = field(default_factory=list)

    def note(self, path: str, before: str, after: str) -> None:
        """Add a changed file."""
        self.changed = True
        self.files.append({"path": path, "before": _shown(before), "after": _shown(after)})


class EngineConfig:
    """Settings of the engines of one host."""

    def __init__(
        self,
        runner: Runner,
        files: Files,
        root: Path = Path("/"),
        state_dir: Path = Path("/var/lib/socle"),
        which: Which = shutil.which,
    ) -> None:
        self._run = runner
        self._files = files
        self._root = root
        self._ledger = state_dir / LEDGER
        self._which = which

    def _mode(self, path: Path, settings: Settings) -> int:
        if settings.secret:
            return 0o600
        return stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644

    def bring(
        self,
        engine: str,
        settings: Settings,
        version: str | None,
        *,
        check: bool = False,
        fresh: bool = False,
        restart: str = "auto",
    ) -> Outcome:
        """Bring the settings to one engine, and take socle's out of the other; the options are those of ``docker``."""
        if engine == "docker":
            outcome = self.docker(settings, version, check=check, fresh=fresh, restart=restart)
            self._leave_podman(outcome, check=check)
        else:
            outcome = self.podman(settings, version, check=check)
            self._leave_docker(outcome, check=check)
        return outcome

    def _has_instances(self, pattern: str) -> bool:
        return any(self._root.glob(pattern))

    # Podman

    def podman(self, settings: Settings, version: str | None, *, check: bool = False) -> Outcome:
        """Write the drop-ins. Podman has no daemon: nothing that runs is touched."""
        addresses.check(settings)
        dropins.check_proxies(settings)
        texts = {
            dropins.CONTAINERS: dropins.containers_conf(settings, version),
            dropins.REGISTRIES: dropins.registries_conf(settings),
        }
        outcome = Outcome()
        before = {name: self._files.read(self._root / name) or "" for name in texts}
        modes = {name: self._mode(self._root / name, settings) for name in texts}
        for name, text in texts.items():
            if before[name] != text:
                outcome.note(f"/{name}", before[name], text)
        if check or not outcome.changed:
            return outcome
        with explaining("write Podman's settings"):
            try:
                self._files.write_all({self._root / name: text for name, text in texts.items() if text})
                for name, text in texts.items():
                    if not text:
                        self._files.remove(self._root / name)
            except OSError:
                for name, text in before.items():
                    with contextlib.suppress(OSError):
                        if (self._files.read(self._root / name) or "") != text:
                            self._replace(name, text, modes[name])
                raise
        done = self._run(["podman", "info", "--format", "{{.Host.OCIRuntime.Name}}"])
        if done.returncode != 0:
            with explaining("put Podman's settings back"):
                for name, text in before.items():
                    self._replace(name, text, modes[name])
            reason = without_password(" ".join(done.stderr.split()))
            raise ToolkitError(
                f"Podman does not work with the settings of container_engine: {reason.rstrip('.')}; its files are as"
                " they were; see whether 'podman info' works on the host, then correct the settings.",
                stderr=reason,
            )
        return outcome

    def _leave_podman(self, outcome: Outcome, *, check: bool) -> None:
        """Take socle's drop-ins away from a Podman that is not used any more."""
        # Units that are still there need their GPUs at the next boot.
        cdi = self._has_instances(PODMAN_UNITS)
        for name in dropins.FILES:
            path = self._root / name
            try:
                text = self._files.read(path) or ""
            except (NotText, IsADirectoryError):
                continue
            rest = dropins.without_settings(text, cdi=cdi) if name == dropins.CONTAINERS else ""
            if not dropins.is_ours(text) or text == rest:
                continue
            outcome.note(f"/{name}", text, rest)
            if not check:
                with explaining("take socle's settings away from Podman"):
                    self._replace(name, rest, 0o644)

    def _replace(self, name: str, text: str, mode: int, *, follow: bool = False) -> None:
        path = self._root / name
        path = path.resolve() if follow else path
        if text:
            self._files.write(path, text, mode)
        else:
            self._files.remove(path)

    # Docker

    def docker(
        self,
        settings: Settings,
        version: str | None,
        *,
        check: bool = False,
        fresh: bool = False,
        restart: str = "auto",
    ) -> Outcome:
        """Merge the settings into daemon.json, and let dockerd take them over where that is due.

        *fresh* says that Docker was not on the host before this run; *restart* is one of dockerd.RESTARTS. Raises
        ToolkitError where a restart is due and must not come; then nothing was changed.
        """
        addresses.check(settings)
        if settings.log_max_size:
            dropins.size_bytes(settings.log_max_size)
        path = self._root / DAEMON_JSON
        with explaining(f"add settings to /{DAEMON_JSON}"):
            text = self._files.read(path)
            noted = daemon_json.parse_ledger(read_noted(self._files, self._ledger))
        content = daemon_json.parse(text, f"/{DAEMON_JSON}")
        ledger = daemon_json.settled(noted, content)
        installed_here = fresh or ledger.installed_here
        service = dockerd.read(self._run, self._files, self._root)
        if service.masked:
            raise ToolkitError(
                "Cannot use Docker: docker.service is masked, so that nothing can start it; run 'systemctl unmask"
                " docker.socket docker.service' on the host, or set container_engine to podman, then repeat the run."
                " Nothing was changed."
            )
        hard, soft = daemon_json.wanted(
            settings, content, ledger.ours, version, flags=service.flags, installed_here=installed_here
        )
        merged, ours, former = daemon_json.merge(content, hard, soft, ledger.ours, ledger.former)
        # Whatever happens to the settings, Docker stays one that socle brought.
        before, after = replace(ledger, installed_here=installed_here), Ledger(ours, installed_here, former)
        outcome = Outcome()
        if content.get("default-runtime") == "nvidia":
            outcome.warnings.append(
                f"/{DAEMON_JSON} makes 'nvidia' the default runtime, through which every container then goes; GPUs are"
                " given by CDI and do not need that, so take 'default-runtime' out when it suits you."
            )
        pending = self._files.read(self._root / PENDING)
        due = daemon_json.consequence(content, merged)
        if merged != content:
            outcome.note(f"/{DAEMON_JSON}", text or "", daemon_json.render(merged))
            self._validate(daemon_json.render(merged), version)
        if not service.running:
            outcome.action = "start"
        elif "restart" in (due, pending):
            outcome.action = "restart"
            outcome.containers = dockerd.allow_restart(self._run, restart, _cause(content, merged))
        elif "reload" in (due, pending):
            outcome.action = "reload"
        outcome.enabled = service.enabled == "disabled"
        if service.enabled and (outcome.enabled or outcome.action == "start"):
            after_boot = "enabled" if outcome.enabled else service.enabled
            outcome.unit = (f"{service.enabled}, {service.active}", f"{after_boot}, active")
        outcome.changed = outcome.changed or outcome.action != "none" or outcome.enabled
        if check:
            return outcome
        if merged == content and outcome.action == "none":
            if outcome.enabled:
                self._enable()
            if after != noted:
                with explaining("note which of Docker's settings are socle's", self._ledger):
                    self._note(after)
            return outcome
        mark = outcome.action if service.running else "none"
        mode = self._mode(path, settings)
        with explaining("write Docker's settings", self._ledger), self._undoing(noted, before, pending):
            # In this order, since a run may be killed between any two of them. The mark comes first: without it nobody
            # would ever tell dockerd of the new file, while one too many costs a restart at most. The ledger that goes
            # before the file is true of the old and of the new one: one for the old file alone would have the next run
            # take our values for somebody else's, one for the new file alone lose what somebody else had set.
            self._files.write(self._root / PENDING, mark)
            if merged != content:
                self._note(daemon_json.towards(before, after))
                self._files.write(path, daemon_json.render(merged), mode, follow=True)
        fault = self._take_over(outcome.action)
        if fault:
            with explaining("put Docker's settings back", self._ledger):
                self._replace(DAEMON_JSON, text or "", self._mode(path, settings), follow=True)
                self._note(before)
                self._files.remove(self._root / PENDING)
            raise ToolkitError(self._give_back(outcome.action, fault), stderr=fault)
        with explaining("note that Docker took its settings over", self._ledger):
            self._files.remove(self._root / PENDING)
            if merged != content or after != noted:
                self._note(after)
        if outcome.enabled:
            self._enable()
        return outcome

    def _leave_docker(self, outcome: Outcome, *, check: bool) -> None:
        """Take what was set here out of the daemon.json of a Docker that is not used any more.

        dockerd is left alone, since what runs on it is not known to be socle's.
        """
        noted = daemon_json.parse_ledger(read_noted(self._files, self._ledger))
        if not (noted.ours or noted.coming):
            return
        path = self._root / DAEMON_JSON
        attempt = f"take socle's settings out of /{DAEMON_JSON}"
        try:
            with explaining(attempt):
                text = self._files.read(path)
            content = daemon_json.parse(text, f"/{DAEMON_JSON}")
        except (EngineError, ToolkitError) as error:
            # Podman does not need that file.
            reason = error.message.partition(": ")[2].replace(" Nothing was changed.", "")
            outcome.warnings.append(
                f"Cannot {attempt}, a proxy's password perhaps, though Docker is not the engine of this host any more:"
                f" {reason}"
            )
            return
        before = daemon_json.settled(noted, content)
        # Units that are still there need their GPUs at the next boot.
        keep = CDI_KEY in before.ours and self._has_instances(DOCKER_UNITS)
        merged, ours, former = daemon_json.merge(
            content, {CDI_KEY: True} if keep else {}, {}, before.ours, before.former
        )
        after = Ledger(ours, before.installed_here, former)
        if merged == content:
            if after != noted and not check:
                with explaining("note which of Docker's settings are socle's", self._ledger):
                    self._note(after)
            return
        outcome.note(f"/{DAEMON_JSON}", text or "", daemon_json.render(merged))
        running = dockerd.read(self._run, self._files, self._root).running
        if running:
            changed = sorted(key for key in {*content, *merged} if content.get(key) != merged.get(key))
            outcome.warnings.append(
                f"Settings of socle {'would be' if check else 'were'} taken out of /{DAEMON_JSON}"
                f" ({', '.join(changed)}), as Docker is not the engine of this host any more; dockerd keeps them until"
                " its next restart ('systemctl restart docker'), which is left to you, since it stops the containers"
                " that run there."
            )
        if check:
            return
        pending = self._files.read(self._root / PENDING)
        due = daemon_json.consequence(content, merged)
        with explaining(attempt, self._ledger), self._undoing(noted, before, pending):
            # Whoever comes back to Docker gets dockerd told of the file.
            if running:
                self._files.write(self._root / PENDING, "restart" if "restart" in (due, pending) else due)
            self._note(daemon_json.towards(before, after))
            self._files.write(path, daemon_json.render(merged), self._mode(path, Settings()), follow=True)
        with explaining("note which of Docker's settings are socle's", self._ledger):
            self._note(after)

    def _enable(self) -> None:
        # Without the daemon-reload that takes GPUs away from containers that do not have them by CDI.
        done = self._run(["systemctl", "enable", "--no-reload", "docker.service"])
        if done.returncode != 0:
            reason = " ".join(done.stderr.split())
            raise ToolkitError(
                f"Cannot have Docker start at boot: {reason.rstrip('.') or 'systemctl gave no reason'}; run 'systemctl"
                " enable docker.service' on the host, put its cause right, then repeat the run.",
                stderr=reason,
            )

    def _note(self, ledger: Ledger) -> None:
        if ledger == Ledger():
            self._files.remove(self._ledger)
        else:
            self._files.write(self._ledger, daemon_json.render_ledger(ledger), 0o600)

    @contextlib.contextmanager
    def _undoing(self, noted: Ledger, before: Ledger, pending: str | None) -> Iterator[None]:
        """Put ledger and mark back where one of the files cannot be written; daemon.json, the last one, is as it was.

        Else the mark would have dockerd restarted for a file that did not change.
        """
        try:
            yield
        except OSError:
            with contextlib.suppress(OSError):
                if pending is None:
                    self._files.remove(self._root / PENDING)
                else:
                    self._files.write(self._root / PENDING, pending)
            with contextlib.suppress(OSError):
                if daemon_json.parse_ledger(read_noted(self._files, self._ledger)) != before:
                    self._note(before)
            raise

    def _validate(self, text: str, version: str | None) -> None:
        dockerd = self._which("dockerd")
        parsed = parse_version(version)
        if dockerd is None or (parsed is not None and parsed < DOCKER_PROXIES):
            return
        folder = self._root / "run/socle"
        trial = folder / "daemon.json"
        with explaining("try Docker's settings"):
            self._files.write(trial, text, 0o600)
        try:
            done = self._run([dockerd, "--validate", "--config-file", str(trial)])
        finally:
            self._files.remove(trial)
        if done.returncode != 0:
            reason = without_password(" ".join(done.stderr.split())).replace(str(trial), f"/{DAEMON_JSON}")
            raise ToolkitError(
                f"Docker refuses the settings that were to go into /{DAEMON_JSON}: {reason.rstrip('.')}; correct the"
                " variables of container_engine or the file. Nothing was changed.",
                stderr=reason,
            )

    def _take_over(self, action: str) -> str | None:
        """None where dockerd runs with the file, else the reason why not."""
        done = self._run(["systemctl", action, "docker.service"], timeout_s=RESTART_S)
        if done.returncode == 0:
            return None
        said = self._run(["journalctl", "--unit", "docker.service", "--no-pager", "--quiet", "-n", "20", "-o", "cat"])
        return without_password(_reason(said.stdout) or " ".join(done.stderr.split())).rstrip(".")

    def _give_back(self, action: str, fault: str) -> str:
        self._run(["systemctl", "reset-failed", "docker.service"])
        back = self._run(["systemctl", "restart", "docker.service"], timeout_s=RESTART_S)
        state = "runs again with the file as it was" if back.returncode == 0 else "does not start without them either"
        return (
            f"Docker did not {action} with the settings that went into /{DAEMON_JSON}: {fault}; they were taken out,"
            f" and Docker {state}; see 'journalctl -u docker' on the host, correct the cause, and repeat the run."
        )


def _shown(text: str) -> str:
    """A file's text without users and passwords, those of a proxy without a scheme too."""
    return _PROXY_LOGIN.sub(r"\1", without_password(text))


def _cause(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    changed = [key for key in {*before, *after} if before.get(key) != after.get(key)]
    named = f"{', '.join(sorted(changed))} in" if changed else "what it has not taken over yet of"
    return f"{named} /{DAEMON_JSON}"


def _reason(journal: str) -> str:
    # systemd's own lines say only that it failed, and informative ones of dockerd mention errors that are none.
    lines = [line.strip() for line in journal.splitlines() if line.strip()]
    own = [line for line in lines if "docker.service" not in line and "level=info" not in line]
    for pattern in (r"unable to configure|failed to start", r"level=(error|fatal|panic)", r"fail|unable|error|invalid"):
        telling = [line for line in own if re.search(pattern, line, re.IGNORECASE)]
        if telling:
            return telling[-1]
    return own[-1] if own else ""
