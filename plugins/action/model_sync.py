# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of model_sync: the token that all hosts of a run share, and the progress of the jobs.

The state finished does not wait in one long module run: it asks again every PERIOD_S seconds. So each answer is a line
on the terminal, and a connection that breaks is simply made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._hub.lan import check_lan_address
from ansible_collections.socle.inference.plugins.plugin_utils.option_names import name_in_result, text_of
from ansible_collections.socle.inference.plugins.plugin_utils.progress_action import (
    format_bytes,
    format_duration,
    format_progress,
)

PERIOD_S = 8.0
FIRST_S = 1.0
"""The first line comes soon: it says where the files come from."""
FORCE = {"force": "force_prechecks"}
"""What the store's messages call the option that this module has under another name."""
LOST_S = 120.0
"""How long a host may be out of reach before its task gives up; its job goes on all the same."""
RETRY_S = 5.0
QUIET_S = 45.0
"""How long neighbours of another run are waited for: those of one that was killed fall silent sooner (job.IN_USE_S)."""
SECRET = "socle-relay-secret"
TEMPORARY = re.compile(r"ansible-local-(\d+)[a-z0-9_]{8}")
"""Folders of runs of Ansible, by the number of their first process; the rest is chance (tempfile.mkdtemp)."""

display = Display()


class ActionModule(ActionBase):
    """See the module's documentation."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = {name: value for name, value in self._task.args.items() if name != "option_names"}
        state = args.get("state")
        try:
            # A host that is this machine reaches its neighbours on it by a loopback address, as in a trial.
            if args.get("lan_address") and getattr(getattr(self, "_connection", None), "transport", "") != "local":
                check_lan_address(str(args["lan_address"]))
        except SocleError as error:
            return {**result, "failed": True, "msg": str(error)}
        if state in ("started", "joined"):
            args["relay_token"] = relay_token(run_secret(Path(constants.DEFAULT_LOCAL_TMP)), args.get("manifest"))
            args["connected_by"] = getattr(self._play_context, "remote_addr", None)
        if state in ("started", "stopped"):
            args["run"] = run_name(run_secret(Path(constants.DEFAULT_LOCAL_TMP)))
        if state == "finished" and not self._task.check_mode:
            result.update(self._wait(args, task_vars))
        elif state == "started" and not self._task.check_mode:
            result.update(self._start(args, task_vars))
        else:
            result.update(self._ask(args, task_vars))
        if state == "inspected" and (args.get("owner") or args.get("group")):
            # As chown writes it; for those who tell what becomes of the files.
            result["owner"] = f"{args.get('owner') or ''}:{args.get('group') or ''}"
        return result

    def _ask(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module(
            module_name=self._task.action, module_args=args, task_vars=task_vars
        )
        # It repeats the arguments: the manifest is long, and the token is nobody's business.
        answer.pop("invocation", None)
        if answer.get("warnings"):
            # Ansible shows them without the host, and the job does not say the model each time.
            where = f"{self._task.delegate_to or task_vars.get('inventory_hostname', '')}: {args.get('repo')}: "
            answer["warnings"] = [where + text_of(warning) for warning in answer["warnings"]]
        name_in_result(answer, {**FORCE, **(self._task.args.get("option_names") or {})})
        return answer

    def _start(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Start the job; one whose relay seems to serve another run is asked again until its neighbours are silent."""
        host, began = str(task_vars.get("inventory_hostname", "")), time.monotonic()
        while True:
            answer = self._ask(args, task_vars)
            if not (answer.get("failed") and answer.get("serving")) or time.monotonic() - began > QUIET_S:
                return answer
            say(host, f"{args.get('repo')}: waiting, other hosts took it from here just now in another run")
            time.sleep(RETRY_S)

    def _wait(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        host, repo = str(task_vars.get("inventory_hostname", "")), str(args.get("repo"))
        began = reached = time.monotonic()
        seconds = FIRST_S
        while True:
            try:
                answer = self._ask({**args, "wait_s": seconds}, task_vars)
            except AnsibleConnectionFailure as error:
                if time.monotonic() - reached > LOST_S:
                    raise AnsibleConnectionFailure(
                        f"{error.message} The download of {repo} goes on without the connection: run again to wait "
                        "for it."
                    ) from error
                say(host, f"{repo}: connection lost, the download goes on without it")
                time.sleep(RETRY_S)
                continue
            reached = time.monotonic()
            if answer.get("failed"):
                lines = str(answer.get("msg") or "").strip().splitlines() or ["failed"]
                say(host, f"{repo}: {lines[-1][:300]}")
                return answer
            if answer.get("finished"):
                if seconds > FIRST_S:
                    say(host, f"{repo}: {describe_result(answer)}")
                return answer
            say(host, f"{repo}: {describe_job(answer.get('job') or {})}, after {format_duration(reached - began)}")
            seconds = PERIOD_S


def say(host: str, text: str) -> None:
    """One line on the terminal."""
    display.display(f"  [{host}] {text}")


def describe_job(job: Mapping[str, Any]) -> str:
    """Phase, bytes, rate, time left, file and source, or what is wrong with it."""
    trouble = job.get("trouble")
    if trouble and job.get("done") is None:
        return str(trouble)
    parts = [format_progress({**job, "detail": job.get("file")})]
    if trouble:
        return f"{parts[0]}, {trouble}"
    if job.get("source"):
        parts.append(f"from {job['source']}")
    return " ".join(parts)


def describe_result(result: Mapping[str, Any]) -> str:
    """What came from where."""
    counted = result.get("bytes") or {}
    parts = [
        f"{format_bytes(counted[kind])} {words}"
        for kind, words in (("wan", "from the hub"), ("lan", "from neighbours"), ("disk", "from a folder"))
        if counted.get(kind)
    ]
    return f"complete, {' and '.join(parts) or 'nothing received'}"


def run_secret(folder: Path) -> bytes:
    """The secret of this run of Ansible, the same for all its processes: a file in *folder*, which is theirs alone and
    goes with the run. What runs that were killed left beside it is removed."""
    place = folder / SECRET
    staged = folder / f"{SECRET}.{os.getpid()}.{secrets.token_hex(4)}"
    if not place.exists():
        forget_secrets(folder)
        with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
            handle.write(secrets.token_bytes(32))
        # Only the first one counts.
        with contextlib.suppress(FileExistsError):
            os.link(staged, place)
        staged.unlink()
    return place.read_bytes()


def forget_secrets(folder: Path) -> None:
    """Remove the secrets that runs left which are over, in the folders of other runs beside *folder*."""
    own = TEMPORARY.fullmatch(folder.name)
    for beside in list(folder.parent.iterdir()):
        other = TEMPORARY.fullmatch(beside.name)
        if other is None or beside == folder:
            continue
        # The same number again is another process: as in containers, where each run has it.
        if (own and other[1] == own[1]) or not _is_alive(int(other[1])):
            # That run may be ending just now, and its folder with it.
            with contextlib.suppress(OSError):
                for left in list(beside.glob(f"{SECRET}*")):
                    left.unlink()


def _is_alive(pid: int) -> bool:
    """Whether a process of this user has that number."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def run_name(secret: bytes) -> str:
    """What hosts know the run by that uses a relay; it gives the secret away to nobody."""
    return hmac.new(secret, b"run", hashlib.sha256).hexdigest()[:16]


def relay_token(secret: bytes, manifest: Any) -> str:
    """The token for the relays of one model in one run."""
    content = manifest.get("content_id") if isinstance(manifest, Mapping) else None
    return hmac.new(secret, json.dumps(str(content)).encode(), hashlib.sha256).hexdigest()
