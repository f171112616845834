# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks one question by any API, whole or streamed, and keeps what a judgement needs. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._probe.client import Exchange
from ansible_collections.socle.inference.plugins.module_utils._probe.dialects import (
    DIALECTS,
    Dialect,
    Question,
    Reply,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import AnswerFault, EngineFault
from ansible_collections.socle.inference.plugins.module_utils._probe.judge import Context, Outcome, fitting

REQUEST_EXCERPT, ANSWER_EXCERPT = 500, 2000


@dataclass(frozen=True)
class Asked:
    """One answer: *name* says how it was asked, such as "messages streamed"."""

    name: str
    reply: Reply
    evidence: dict[str, Any]

    def faults(self, context: Context, max_tokens: int) -> list[str]:
        """What no answer may lack, whatever was asked; an empty text is for who asked."""
        reply = self.reply
        found = list(reply.faults)
        if reply.model is not None and reply.model != context.model:
            found.append(f"it names the model {reply.model}")
        usage = reply.usage
        if usage is not None and usage.total_tokens != usage.prompt_tokens + usage.completion_tokens:
            found.append(f"usage does not add up to {usage.total_tokens}")
        if usage is not None and usage.completion_tokens > max_tokens:
            found.append(f"{usage.completion_tokens} tokens were generated, {max_tokens} allowed")
        return found


def unplanned(context: Context, what: str) -> str | None:
    """Why *what* is not asked for; None where it is planned."""
    if context.planned.promised is None:
        return "the probe was not told what is planned (option plan)"
    return context.planned.promised.lacks.get(what)


def ask(context: Context, dialect: Dialect, question: Question, streamed: bool = False) -> Asked:
    """Errors: EngineFault where there is no answer, or none with status 200."""
    body = dialect.ask(context.model, question)
    if streamed:
        body = dialect.streamed(body)
        events = context.client.stream(dialect.path, body)
        excerpt = "\n".join(event.data for event in events)[-ANSWER_EXCERPT:]
        evidence = {
            "request": {"method": "POST", "path": dialect.path, "body": str(body)[:REQUEST_EXCERPT]},
            "response": {"status": 200, "excerpt": excerpt},
        }
        return Asked(f"{dialect.name} streamed", dialect.follow(events), evidence)
    answer = context.client.post(dialect.path, body)
    return Asked(dialect.name, reply_of(dialect, answer), answer.evidence())


def reply_of(dialect: Dialect, answer: Exchange) -> Reply:
    """Errors: AnswerFault for any other status than 200."""
    if answer.status != 200:
        raise AnswerFault(
            f"{answer.method} {answer.path} answered {answer.status}, expected 200: {answer.text[:160]}",
            evidence=answer.evidence(),
        )
    return dialect.read(answer.json())


def ask_by_all(
    context: Context,
    needed: str,
    question: Question,
    faults: Callable[[Asked], list[str]],
    expected: str,
    remedy: str,
) -> Outcome:
    """Ask by each API, whole and streamed; *faults* judges one answer. Skipped where *needed* is not planned."""
    expected = f"by each API, whole and streamed: {expected}"
    reason = unplanned(context, needed)
    if reason:
        return Outcome("skipped", expected, reason)
    # The answers here end long before.
    question = replace(question, max_tokens=fitting(context, question.max_tokens, 0.5))
    wrong: list[str] = []
    evidence: list[dict[str, Any]] = []
    for dialect in DIALECTS.values():
        for streamed in (False, True):
            try:
                asked = ask(context, dialect, question, streamed)
            except EngineFault as fault:
                # The other ways still tell.
                wrong.append(f"{dialect.name}{' streamed' if streamed else ''}: {fault.message}")
                evidence.append(fault.fields)
                continue
            found = [*asked.faults(context, question.max_tokens), *faults(asked)]
            if found:
                wrong.append(f"{asked.name}: {', '.join(found)}")
                evidence.append(asked.evidence)
    found_text = "; ".join(wrong) or f"{2 * len(DIALECTS)} answers were so"
    return Outcome("failed" if wrong else "passed", expected, found_text, remedy, evidence)
