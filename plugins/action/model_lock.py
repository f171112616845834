# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks a hub what a revision is, and keeps the answer on the controller. Documented in modules/model_lock.py."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.socle.inference.plugins.module_utils._errors import HubError, SocleError
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import DEFAULT_REVISION, make_hub
from ansible_collections.socle.inference.plugins.module_utils._hub.lock import (
    LockRequest,
    Memo,
    UnreachableFromHost,
    ensure_lock,
    lock_location,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest, loads
from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import HubUnreachable
from ansible_collections.socle.inference.plugins.modules.model_lock import ARGUMENT_SPEC
from ansible_collections.socle.inference.plugins.plugin_utils.option_names import name_in_result
from ansible_collections.socle.inference.plugins.plugin_utils.progress_action import PERIOD_S, format_duration

BRIEF = Policy(list_attempts=1, list_timeout_s=5.0)
"""For a controller that may have no way to the hub, where a host is asked next."""

display = Display()


class ActionModule(ActionBase):
    """See the module's documentation."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(ARGUMENT_SPEC)
        ended = threading.Event()
        watcher = threading.Thread(
            target=_tell, args=(ended, str(task_vars.get("inventory_hostname", "")), args["repo"]), daemon=True
        )
        watcher.start()
        try:
            answer = _answer(self, args, task_vars, self._task.check_mode)
        except SocleError as error:
            result.update(failed=True, msg=str(error), **error.fields)
            name_in_result(result, args["option_names"])
            return result
        finally:
            ended.set()
            watcher.join(timeout=5)
        diff = answer.pop("diff")
        if self._task.diff and answer["changed"]:
            answer["diff"] = diff
        result.update(answer)
        name_in_result(result, args["option_names"])
        return result


class _Asked:
    """A hub as the controller sees it, or the host where the controller does not."""

    def __init__(self, action: ActionModule, args: dict[str, Any], task_vars: dict[str, Any], own: Memo) -> None:
        """*own* remembers what the controller's own try came to, so that it is made once for all hosts."""
        self._action = action
        self._own = own
        self._args = args
        self._task_vars = task_vars

    def resolve(self, repo: str, revision: str) -> Manifest:
        """See origin.Hub."""
        args = self._args
        options = {name: args[name] for name in ("source", "endpoint", "token", "proxy", "ca_file", "path")}
        if args["ask_from"] == "controller":
            return make_hub(**options).resolve(repo, revision)
        failure = None
        # A folder, and often the file of authorities, is on the host.
        here = args["source"] != "directory" and not (args["ca_file"] and not Path(args["ca_file"]).exists())
        if args["ask_from"] == "auto" and here:
            try:
                return self._own.ask(lambda: make_hub(**options, policy=BRIEF).resolve(repo, revision))
            except HubUnreachable as error:
                failure = error
        result = self._action._execute_module(
            module_name="socle.inference.model_lock",
            module_args={**options, "repo": repo, "revision": revision},
            task_vars=self._task_vars,
        )
        if not result.get("failed"):
            return loads(json.dumps(result["manifest"]))
        told, host = str(result.get("msg", "no answer")), self._task_vars.get("inventory_hostname")
        if str(failure) == told:
            message = f"{told} (asked from {host} and from the controller)"
        else:
            message = f"{told} (asked from {host})" + (f", and from the controller: {failure}" if failure else "")
        gone = {"revision_gone": True} if result.get("revision_gone") else {}
        raise (UnreachableFromHost if result.get("hub_unreachable") else HubError)(message, **gone)


def _held(action: ActionModule, args: dict[str, Any], task_vars: dict[str, Any], revision: str) -> Manifest | None:
    """What the host's store holds as *revision*; None without one, or where it cannot be looked at."""
    if not args["store"]:
        return None
    result = action._execute_module(
        module_name="socle.inference.model_lock",
        module_args={**{name: args[name] for name in ("repo", "source", "store")}, "revision": revision},
        task_vars=task_vars,
    )
    manifest = result.get("manifest")
    return loads(json.dumps(manifest)) if manifest else None


def _answer(action: ActionModule, args: dict[str, Any], task_vars: dict[str, Any], check: bool) -> dict[str, Any]:
    source = args["source"]
    revision = args["revision"] or DEFAULT_REVISION[source]
    location = lock_location(task_vars.get("inventory_dir"), source, args["repo"], revision)
    request = LockRequest(
        repo=args["repo"],
        revision=revision,
        location=location,
        moved=args["moved"],
        offline=args["offline"],
        check=check,
        host=str(task_vars.get("inventory_hostname", "")),
    )
    # Every process of a run has the same temporary folder, which ends with the run.
    folder = Path(constants.DEFAULT_LOCAL_TMP)
    key = [source, args["endpoint"], args["path"], args["repo"], revision, str(location)]
    memo, own = Memo(folder, json.dumps(key)), Memo(folder, json.dumps([*key, "controller"]))
    if args["manifest"]:
        given = loads(json.dumps(args["manifest"]))
        if given.repo != args["repo"]:
            raise HubError(f"the manifest describes {given.repo}, but {args['repo']} is to be locked")
        memo.tell(dataclasses.replace(given, requested=revision))
    return ensure_lock(
        request,
        lambda: _Asked(action, args, task_vars, own),
        memo,
        held=lambda: _held(action, args, task_vars, revision),
    )


def _tell(ended: threading.Event, host: str, repo: str) -> None:
    """One line every few seconds, as long as it takes."""
    started = time.monotonic()
    while not ended.wait(PERIOD_S):
        waited = format_duration(time.monotonic() - started)
        display.display(f"  [{host}] model_lock: asking what {repo} consists of, after {waited}")
