# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of records_collect: says what it has, checks what it gets, and writes it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.socle.inference.plugins.module_utils._errors import RecordError, SocleError
from ansible_collections.socle.inference.plugins.module_utils._records.controller import records_root
from ansible_collections.socle.inference.plugins.module_utils._records.files import (
    FROM_THE_FUTURE,
    Skipped,
    check_spooled,
    digests_below,
    is_from_the_future,
    read_tree,
    summarise,
    write_collected,
)
from ansible_collections.socle.inference.plugins.module_utils._records.schema import (
    MAX_BYTES,
    Invalid,
    Record,
    path_component,
)
from ansible_collections.socle.inference.plugins.module_utils._records.state import host_state
from ansible_collections.socle.inference.plugins.modules.records_collect import ARGUMENT_SPEC

MAX_PAGES = 40
MAX_TOTAL_BYTES = 64 * MAX_BYTES


class ActionModule(ActionBase):
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result = super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(ARGUMENT_SPEC)
        host = task_vars["inventory_hostname"]
        try:
            root = records_root(task_vars.get("inventory_dir"))
            have = digests_below(root, host) if root else []
            path = str(root / path_component(host)) if root else None
        except SocleError as error:
            result.update(failed=True, msg=str(error), **error.fields)
            return result

        skipped: Skipped = Counter()
        unwritten: dict[str, list[Record]] = {}
        refusals: list[str] = []
        received = collected = size = 0
        after = ""
        complete = False
        for _page in range(MAX_PAGES):
            module_args = {"state_dir": args["state_dir"], "host": host, "have": have, "after": after}
            page = self._execute_module(module_name=self._task.action, module_args=module_args, task_vars=task_vars)
            if page.get("failed"):
                page.pop("invocation", None)
                result.update(page)
                return result
            # From here on everything comes from the host, and is checked before it is used.
            for name, text in _received(page, skipped):
                received += 1
                size += len(text)
                try:
                    record = check_spooled(name, text, host)
                except Invalid as error:
                    skipped[error.kind] += 1
                    continue
                if root is None or self._task.check_mode:
                    collected += 1
                    unwritten.setdefault(record["instance"], []).append(record)
                    continue
                try:
                    collected += write_collected(root, host, record, text)[1]
                except RecordError as error:
                    # The host keeps it: what is known now is enough to go on, and the next collection brings it.
                    refusals.append(error.message)
                    unwritten.setdefault(record["instance"], []).append(record)
            following = page.get("after")
            if following is None:
                complete = True
                break
            if not isinstance(following, str) or following <= after or size > MAX_TOTAL_BYTES:
                break
            after = following

        warning = summarise(skipped, f"the spool of {host}")
        if warning:
            result.setdefault("warnings", []).append(warning)
        if refusals:
            result.setdefault("warnings", []).append(
                f"{len(refusals)} records of {host} could not be kept beside the inventory and stay on the host until "
                f"the next collection. The first: {refusals[0]}"
            )
        merged, ahead = self._merged(root, host, unwritten, datetime.now(UTC))
        warning = summarise(ahead, f"the records of {host}")
        if warning:
            result.setdefault("warnings", []).append(warning)
        result.update(
            changed=False,
            received=received,
            collected=collected,
            known=len(have) + (0 if self._task.check_mode else collected),
            complete=complete,
            passed_over=dict(skipped),
            path=path,
            socle_state=host_state(merged),
        )
        return result

    @staticmethod
    def _merged(
        root: Path | None, host: str, unwritten: dict[str, list[Record]], now: datetime
    ) -> tuple[dict[str, list[Record]], Skipped]:
        """What is on disk together with what was received and not written, newest first, and what is from the future.

        Other faults of the files on disk are those that the inventory plugin tells.
        """
        tree, unread = read_tree(root, [host], now=now) if root else ({}, Counter())
        ahead: Skipped = Counter({FROM_THE_FUTURE: unread[FROM_THE_FUTURE]})
        merged = {name: list(records) for name, records in tree.get(host, {}).items()}
        for name, records in unwritten.items():
            present = [record for record in records if not is_from_the_future(record, now)]
            ahead[FROM_THE_FUTURE] += len(records) - len(present)
            if present:
                merged.setdefault(name, []).extend(present)
        ordered = {
            name: sorted(records, key=lambda record: record["finished"], reverse=True)
            for name, records in merged.items()
        }
        return ordered, ahead


def _received(page: dict[str, Any], skipped: Skipped) -> list[tuple[str, str]]:
    """The (name, text) pairs of a page, and its counts of what was skipped, where their types are right."""
    counts = page.get("passed_over")
    for kind, count in counts.items() if isinstance(counts, dict) else ():
        if isinstance(count, int) and 0 < count < 10**9:
            skipped["".join(each for each in str(kind)[:60] if each.isalnum() or each in " '-")] += count
    pairs = []
    records = page.get("records")
    for item in records if isinstance(records, list) else ():
        if isinstance(item, dict) and isinstance(item.get("name"), str) and isinstance(item.get("text"), str):
            pairs.append((item["name"], item["text"]))
        else:
            skipped["not a record"] += 1
    return pairs
