# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action half of a long module: prepares its arguments on the controller and shows its progress.

The module runs in the foreground as any other; meanwhile a thread reads the file that the module's Progress writes,
over a connection of its own, and prints one line every PERIOD_S seconds. A module that ends sooner costs nothing extra.
"""

from __future__ import annotations

import copy
import json
import secrets
import shlex
import threading
import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._progress import QUIET_S

PERIOD_S = 8.0

display = Display()


def format_bytes(count: float) -> str:
    """1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def format_duration(seconds: float) -> str:
    """75.2 -> "1m15s"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def format_progress(state: dict[str, Any]) -> str:
    """One line for a person from what Progress wrote: phase, done of total, rate, time left."""
    in_bytes = state.get("unit") == "B"

    def show(count: float) -> str:
        return format_bytes(count) if in_bytes else f"{count:g}"

    parts = [str(state.get("phase", "working"))]
    if state.get("done") is not None:
        counted = show(state["done"])
        if state.get("total"):
            counted += f" of {show(state['total'])}"
        if not in_bytes and state.get("unit"):
            counted += f" {state['unit']}"
        parts.append(counted)
    if in_bytes and state.get("rate_per_s"):
        parts.append(f"{format_bytes(state['rate_per_s'])}/s")
    if state.get("left_s") is not None:
        parts.append(f"{format_duration(state['left_s'])} left")
    if state.get("detail"):
        parts.append(str(state["detail"]))
    return ", ".join(parts)


class ProgressActionBase(ActionBase):
    """Runs the module of the task's own name; a subclass may resolve arguments on the controller first."""

    _supports_check_mode = True
    _supports_async = False

    def prepare_module_args(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """The module's arguments from the task's; raises SocleError for what cannot work."""
        return args

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result = super().run(tmp, task_vars)
        try:
            args = self.prepare_module_args(dict(self._task.args), task_vars)
        except SocleError as error:
            result.update(failed=True, msg=str(error), **error.fields)
            return result
        path = f"/tmp/.socle-progress-{secrets.token_hex(12)}"
        args["progress_path"] = path
        ended = threading.Event()
        watcher = threading.Thread(
            target=self._watch, args=(path, ended, task_vars.get("inventory_hostname", "")), daemon=True
        )
        watcher.start()
        try:
            result.update(self._execute_module(module_name=self._task.action, module_args=args, task_vars=task_vars))
        finally:
            ended.set()
            watcher.join(timeout=5)
            if self._long:
                self._low_level_execute_command(f"rm -f {shlex.quote(path)}")
        return result

    _long = False

    def _watch(self, path: str, ended: threading.Event, host: str) -> None:
        if ended.wait(QUIET_S):
            return
        self._long = True
        # A copy, since the module's own command keeps the original busy. The file is readable for everyone.
        connection = copy.copy(self._connection)
        connection.become = None
        started = time.monotonic() - QUIET_S
        while not ended.wait(PERIOD_S):
            try:
                status, stdout, _stderr = connection.exec_command(f"cat {shlex.quote(path)}", sudoable=False)
                state = json.loads(stdout) if status == 0 else None
            except Exception as error:
                # Progress is a courtesy: losing it must not fail the work it describes.
                display.vv(f"{host}: progress not readable: {error}")
                continue
            if state:
                name = self._task.action.rsplit(".", 1)[-1]
                waited = format_duration(time.monotonic() - started)
                display.display(f"  [{host}] {name}: {format_progress(state)}, after {waited}")
