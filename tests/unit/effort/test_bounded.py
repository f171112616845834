# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A function in a process of its own: what comes out of it, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import time

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.plugin_utils import bounded as module
from ansible_collections.socle.inference.plugins.plugin_utils.bounded import OutOfBounds, bounded


def no_child_is_left() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return True


def refuse() -> str:
    raise PlanError("It is not so.")


def fail() -> str:
    raise KeyError("lost")


def end_by_itself() -> str:
    os._exit(3)


def test_the_text_comes_out_whole() -> None:
    text = "\u00e9\n" * 300_000
    assert bounded(lambda: text) == text
    assert no_child_is_left()


def test_what_it_refuses_is_refused() -> None:
    with pytest.raises(PlanError, match=r"^It is not so\.$"):
        bounded(refuse)


def test_nothing_that_it_does_reaches_the_caller() -> None:
    seen: list[str] = []
    assert bounded(lambda: seen.append("x") or str(len(seen))) == "1"  # type: ignore[func-returns-value]
    assert seen == []


def sleep() -> str:
    time.sleep(60)
    return ""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (fail, r"ends with KeyError \('lost'\)"),
        (end_by_itself, "gives no answer"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "ends with SIGTERM"),
        (sleep, "does not end in 0 s"),
        (lambda: "x" * (module.RESULT_BYTES + 1), "comes to more than 8 MiB"),
    ],
)
def test_what_does_not_end_well_is_told(monkeypatch: pytest.MonkeyPatch, function: object, said: str) -> None:
    if function is sleep:
        monkeypatch.setattr(module, "WALL_S", 0.2)
    with pytest.raises(OutOfBounds, match=said):
        bounded(function)  # type: ignore[arg-type]
    assert no_child_is_left()
