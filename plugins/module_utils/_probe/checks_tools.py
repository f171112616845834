# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of tool calls, by all three APIs, whole and streamed. Private to socle.inference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._probe.asking import Asked, ask_by_all
from ansible_collections.socle.inference.plugins.module_utils._probe.dialects import (
    AUTO,
    CALLS,
    REQUIRED,
    STOP,
    Question,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.judge import Context, Outcome
from ansible_collections.socle.inference.plugins.module_utils._probe.tool_calls import (
    LAMP,
    UNIT,
    WEATHER,
    WRITE,
    Call,
    call_faults,
)

FORCED, TOOLS = "forced tools", "tools"
"""What must be planned: a grammar that forces calls, and a model that makes them by itself."""

COLD = {"temperature": 0}

RESULT = "The temperature is 17.25 degrees and the wind is called Orvandil."
LINES = tuple(f'line {number}: \u00fc \\u4e2d \\t "quoted" {{brace}} <tag>' for number in range(1, 13))
"""What breaks parsers: quotes, backslashes, braces, tags, and characters of more than one byte."""


def tools_required(context: Context, params: dict[str, Any]) -> Outcome:
    return _forced(context, params, REQUIRED, "at least one call")


def tools_named(context: Context, params: dict[str, Any]) -> Outcome:
    return _forced(context, params, LAMP.name, f"one call of {LAMP.name}")


def _forced(context: Context, params: dict[str, Any], choice: str, what: str) -> Outcome:
    question = Question(
        "It is dark in the kitchen: turn the lamp on, please.",
        params["max_tokens"],
        tools=(UNIT, LAMP),
        choice=choice,
        options=COLD,
    )

    def faults(asked: Asked) -> list[str]:
        found = _call_faults(asked, question)
        if choice != REQUIRED and [call.name for call in asked.reply.calls] != [choice]:
            found.append(f"it calls {', '.join(call.name for call in asked.reply.calls) or 'nothing'}")
        return found

    return ask_by_all(
        context,
        FORCED,
        question,
        faults,
        f"{what}, valid against its schema",
        "A grammar forces these calls, whatever the model can: compare flag tool-call-parser with the model's family, "
        "and look at the unit's log for the guided decoding.",
    )


def tools_auto(context: Context, params: dict[str, Any]) -> Outcome:
    question = Question(
        "What is the weather in Paris right now? Use the tool.",
        params["max_tokens"],
        tools=(WEATHER, WRITE),
        choice=AUTO,
        options=COLD,
    )

    def faults(asked: Asked) -> list[str]:
        found = _call_faults(asked, question)
        if not found and not any("paris" in _argument(call, "city").lower() for call in asked.reply.calls):
            found.append(f"it asks for {_said(asked)}")
        return found

    return ask_by_all(
        context,
        TOOLS,
        question,
        faults,
        f"a call of {WEATHER.name} for Paris that the model chose, and nothing of it in the text",
        "Calls in the text, or broken ones, come from a parser that is not the model's: compare flag tool-call-parser "
        "with the parsers of the model file. Calls that break now and then: see the suite agent.",
    )


def tools_unneeded(context: Context, params: dict[str, Any]) -> Outcome:
    question = Question(
        "Which city is the capital of France? Answer in one sentence, without any tool.",
        params["max_tokens"],
        tools=(WEATHER, WRITE),
        choice=AUTO,
        options=COLD,
    )

    def faults(asked: Asked) -> list[str]:
        reply = asked.reply
        found = [f"it calls {', '.join(call.name for call in reply.calls)}"] if reply.calls else []
        return found + (["its text is empty"] if not (reply.text + reply.reasoning).strip() else [])

    return ask_by_all(
        context,
        TOOLS,
        question,
        faults,
        "text and no call, where no tool is of use",
        "Something forces calls on every request with tools: look for a structured-outputs flag, or a chat template "
        "that is not the model's.",
    )


def tools_parallel(context: Context, params: dict[str, Any]) -> Outcome:
    question = Question(
        "Compare the weather in Paris with that in Rome. Ask for both in one step.",
        params["max_tokens"],
        tools=(WEATHER,),
        choice=AUTO,
        options=COLD,
    )

    def faults(asked: Asked) -> list[str]:
        found = _call_faults(asked, question)
        cities = {_argument(call, "city").lower() for call in asked.reply.calls}
        if not found and not all(any(city in each for each in cities) for city in ("paris", "rome")):
            found.append(f"it asks for {_said(asked)}")
        if len({call.id for call in asked.reply.calls}) < len(asked.reply.calls):
            found.append("two calls have one id")
        return found

    return ask_by_all(
        context,
        TOOLS,
        question,
        faults,
        "two calls in one answer, for Paris and for Rome, each with an id of its own",
        "Agents then take two turns for what one would do. Some models call one tool at a time, which is no fault of "
        "the engine.",
    )


def tool_result(context: Context, params: dict[str, Any]) -> Outcome:
    """The result has words that no model can know."""
    call = Call("call_socle1", WEATHER.name, json.dumps({"city": "Paris"}))
    question = Question(
        "What is the temperature in Paris, and what is the wind called? Answer in one sentence.",
        params["max_tokens"],
        tools=(WEATHER,),
        called=[(call, RESULT)],
        options=COLD,
    )

    def faults(asked: Asked) -> list[str]:
        missing = [word for word in ("17.25", "Orvandil") if word not in asked.reply.text]
        return [f"{asked.reply.text.strip()[:80]!r} lacks {' and '.join(missing)}"] if missing else []

    return ask_by_all(
        context,
        TOOLS,
        question,
        faults,
        "an answer with the temperature and the name from the tool's result",
        "The result does not reach the model: the chat template drops turns of tools, or the API words them otherwise.",
    )


def tools_long_argument(context: Context, params: dict[str, Any]) -> Outcome:
    """Arguments of many tokens, which a stream brings in many pieces."""
    question = Question(
        "Write exactly these lines to the file notes.txt, each as it is, with the tool:\n" + "\n".join(LINES),
        params["max_tokens"],
        tools=(WRITE,),
        choice=AUTO,
        options=COLD,
    )

    def faults(asked: Asked) -> list[str]:
        found = _call_faults(asked, question)
        if found:
            return found
        lines = json.loads(asked.reply.calls[0].arguments)["lines"]
        wrong = next((place for place, each in enumerate(LINES) if lines[place : place + 1] != [each]), None)
        if wrong is not None:
            found.append(f"line {wrong + 1} is {''.join(lines[wrong : wrong + 1])!r}, not {LINES[wrong]!r}")
        return found

    return ask_by_all(
        context,
        TOOLS,
        question,
        faults,
        f"a call of {WRITE.name} with {len(LINES)} lines, each as it was given",
        "Streaming parsers lose parts of arguments when one step brings several tokens (vLLM issues 35615, 40861, "
        "43074): compare whole with streamed, and try without speculation.",
    )


def _call_faults(asked: Asked, question: Question) -> list[str]:
    """What is wrong with the calls of an answer that must have one."""
    reply = asked.reply
    if not reply.calls:
        return [f"it calls nothing and says {reply.text.strip()[:60]!r}"]
    found = [fault for call in reply.calls for fault in call_faults(call, question.tools)]
    # OpenAI ends a call of a named tool with stop, and so does vLLM.
    if reply.finish not in (CALLS, STOP) or (reply.finish == STOP and question.choice in (AUTO, REQUIRED)):
        found.append(f"it ends for {reply.finish}, not for its calls")
    if _leaked(reply.text, question):
        found.append(f"its text holds the call: {reply.text.strip()[:60]!r}")
    return found


def _leaked(text: str, question: Question) -> bool:
    """The text has a call as the model writes it: a mark of such, or the name of a tool with an argument of it."""
    if any(mark in text for mark in ("<tool_call>", "</tool_call>", "<function=", "<parameter=")):
        return True
    return any(f'"{tool.name}"' in text for tool in question.tools)


def _argument(call: Call, name: str) -> str:
    arguments = json.loads(call.arguments)
    return str(arguments.get(name, "")) if isinstance(arguments, dict) else ""


def _said(asked: Asked) -> str:
    calls: Sequence[Call] = asked.reply.calls
    return ", ".join(f"{call.name}({call.arguments[:60]})" for call in calls)
