# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The acceptance checks. Private to socle.inference.

A check is a function of the context (client and planned facts) and its parameters, and returns an Outcome. It may let
an EngineFault escape: that is a failed check. Anything else that escapes is the probe's own fault.
"""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils import _exposition as exposition
from ansible_collections.socle.inference.plugins.module_utils._probe import checks_apis as apis
from ansible_collections.socle.inference.plugins.module_utils._probe import checks_gpu as gpu
from ansible_collections.socle.inference.plugins.module_utils._probe import checks_length as length
from ansible_collections.socle.inference.plugins.module_utils._probe import checks_slo as slo
from ansible_collections.socle.inference.plugins.module_utils._probe import checks_thinking as thinking
from ansible_collections.socle.inference.plugins.module_utils._probe import checks_tools as tools
from ansible_collections.socle.inference.plugins.module_utils._probe import checks_use as use
from ansible_collections.socle.inference.plugins.module_utils._probe import checks_vision as vision
from ansible_collections.socle.inference.plugins.module_utils._probe.judge import (
    CHAT,
    QUESTION,
    Check,
    Context,
    Outcome,
    answered,
    chat_body,
    chat_words,
    judge,
    usage_faults,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.trace import Usage


def served_model(context: Context, params: dict[str, Any]) -> Outcome:
    planned = context.planned
    answer = context.client.get("/v1/models")
    entries = answer.json().get("data") if answer.status == 200 else None
    models = {
        str(entry.get("id")): entry
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict)
    }
    faults = [f"{name} is not served" for name in planned.served_names if name not in models]
    entry = models.get(context.model, {})
    length = (
        f"max_model_len {planned.max_model_len}" if planned.max_model_len else "any max_model_len (none is planned)"
    )
    if planned.max_model_len and entry and entry.get("max_model_len") != planned.max_model_len:
        faults.append(f"max_model_len is {entry.get('max_model_len')}")
    if planned.model_root and entry and entry.get("root") != planned.model_root:
        faults.append(f"root is {entry.get('root')}")
    return judge(
        not faults,
        f"{', '.join(planned.served_names)} with {length}"
        + (f" from {planned.model_root}" if planned.model_root else ""),
        f"status {answer.status}, models {', '.join(models) or 'none'}, max_model_len {entry.get('max_model_len')}"
        + (f"; {', '.join(faults)}" if faults else ""),
        "Another engine answers on this port, or the running generation is not the planned one: deploy again.",
        answer,
    )


def engine_version(context: Context, params: dict[str, Any]) -> Outcome:
    planned = context.planned.vllm_version
    if not planned:
        return Outcome("skipped", "the planned vLLM version", "the plan names no version")
    answer = context.client.get("/version")
    version = str(answer.json().get("version")) if answer.status == 200 else f"none (status {answer.status})"
    return judge(
        public_version(version) == public_version(planned),
        f"{public_version(planned)}; a local part such as +cpu says how it was built and does not count",
        version,
        "The image does not hold the version that its profile names: pin the image by digest, or correct the profile.",
        answer,
    )


def public_version(version: str) -> str:
    """The version without its local part: "v0.32.0+cpu" -> "0.32.0"."""
    return version.strip().partition("+")[0].lstrip("v")


def chat(context: Context, params: dict[str, Any]) -> Outcome:
    answer = context.client.post(CHAT, chat_body(context, params["max_tokens"]))
    text, finish, usage = answered(answer)
    faults = usage_faults(text, finish, usage, params["max_tokens"])
    return judge(
        not faults,
        f"text of at most {params['max_tokens']} tokens, finish_reason stop or length, usage that adds up",
        chat_words(text, finish, usage, faults),
        "Check the chat template and the model's files; an empty text often means a wrong template or tokeniser.",
        answer,
    )


def chat_stream(context: Context, params: dict[str, Any]) -> Outcome:
    body = chat_body(context, params["max_tokens"])
    trace = context.client.stream_chat(body)
    usage = trace.usage or Usage(0, 0, 0)
    faults = usage_faults(trace.text, trace.finish_reason, usage, params["max_tokens"])
    if trace.model != context.model:
        faults.append(f"the chunks name the model {trace.model}")
    if "\ufffd" in trace.text[:-1]:
        faults.append("the text holds replacement characters")
    expected = f"a stream of at most {params['max_tokens']} tokens with text, finish_reason, usage and [DONE]"
    found = f"{trace.chunks} chunks, " + chat_words(trace.text, trace.finish_reason, usage, faults)
    return Outcome(
        "failed" if faults else "passed",
        expected,
        found,
        "Compare with the check chat: if that passed, look at what sits between probe and engine.",
        [{"request": {"method": "POST", "path": CHAT, "stream": True}, "response": {"excerpt": trace.text[:2000]}}],
    )


def prompt_tokens(context: Context, params: dict[str, Any]) -> Outcome:
    counted = context.client.post(
        "/tokenize", {"model": context.model, "messages": QUESTION, "add_generation_prompt": True}
    )
    answer = context.client.post(CHAT, chat_body(context, 1))
    _text, _finish, usage = answered(answer)
    count = counted.json().get("count") if counted.status == 200 else None
    return judge(
        count is not None and count == usage.prompt_tokens,
        "the prompt tokens of a chat equal to what /tokenize counts for the same messages",
        f"/tokenize {count} (status {counted.status}), usage {usage.prompt_tokens}",
        "Requests and /tokenize use different chat templates: check chat_template and the model's files.",
        counted,
        answer,
    )


def over_long(context: Context, params: dict[str, Any]) -> Outcome:
    limit = context.planned.max_model_len
    if not limit:
        return Outcome("skipped", "a 400 that names the maximum", "the plan names no max_model_len")
    # No tokeniser makes fewer than one token of a word that differs from its neighbours.
    words = " ".join("abcdefghijklmnopqrstuvwxyz"[place % 26] for place in range(limit + params["margin"]))
    body = chat_body(context, 1, messages=[{"role": "user", "content": words}])
    answer = context.client.post(CHAT, body)
    named = bool(re.search(rf"(?<!\d){limit}(?!\d)", answer.text))
    return judge(
        answer.status == 400 and named,
        f"status 400 with a text that names the maximum of {limit} tokens",
        f"status {answer.status}, the text {'names' if named else 'does not name'} {limit}: {answer.text[:200]}",
        "A client must be able to tell a request that is too long from a broken engine: look at the unit's log.",
        answer,
    )


def unknown_model(context: Context, params: dict[str, Any]) -> Outcome:
    answer = context.client.post(CHAT, chat_body(context, 1, model=params["model"]))
    return judge(
        answer.status == 404,
        f"status 404 for the model {params['model']}",
        f"status {answer.status}: {answer.text[:200]}",
        "Something between probe and engine rewrites the model, or this is not vLLM.",
        answer,
    )


def broken_json(context: Context, params: dict[str, Any]) -> Outcome:
    answer = context.client.request("POST", CHAT, content='{"model": "' + context.model + '", "messages": [')
    return judge(
        400 <= answer.status < 500,
        "a status of 400 to 499 for a body that is not JSON",
        f"status {answer.status}: {answer.text[:200]}",
        "A client's mistake must not look like the engine's: look at the unit's log.",
        answer,
    )


def metrics(context: Context, params: dict[str, Any]) -> Outcome:
    answer = context.client.get("/metrics")
    present = exposition.families(exposition.parse(answer.text)) if answer.status == 200 else set()
    missing = [name for name in params["names"] if name not in present]
    return judge(
        answer.status == 200 and not missing and bool(params["names"]),
        f"{len(params['names'])} metrics: {', '.join(params['names'])}",
        f"status {answer.status}, {len(present)} names" + (f"; missing {', '.join(missing)}" if missing else ""),
        "Without them nothing can be watched: remove --disable-log-stats from the flags.",
        answer,
    )


def api_key(context: Context, params: dict[str, Any]) -> Outcome:
    expected = "401 without a key, 401 with a wrong key, 200 with the right one"
    if not context.planned.api_key_required:
        return Outcome("skipped", expected, "the plan asks for no API key: everyone who reaches the port may use it")
    answers = [
        context.client.get("/v1/models", with_key=False),
        context.client.get("/v1/models", other_key="socle-wrong-key"),
        context.client.get("/v1/models"),
    ]
    without, wrong, right = (answer.status for answer in answers)
    return judge(
        (without, wrong, right) == (401, 401, 200),
        expected,
        f"{without} without a key, {wrong} with a wrong key, {right} with the right one",
        "The engine runs without its secret, or with another one: deploy again and check the vaulted api_key."
        if right != 200
        else "The engine is open: it runs without its secret. Deploy again.",
        *answers,
    )


def alive(context: Context, params: dict[str, Any]) -> Outcome:
    health = context.client.get("/health")
    answer = context.client.post(CHAT, chat_body(context, params["max_tokens"]))
    text, finish, usage = answered(answer)
    faults = usage_faults(text, finish, usage, params["max_tokens"])
    return judge(
        health.status == 200 and not faults,
        "after all other checks: /health 200 and another chat answered",
        f"/health {health.status}, " + chat_words(text, finish, usage, faults),
        "One of the bad requests before harmed the engine: look at the unit's log.",
        health,
        answer,
    )


CORE_METRICS = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:cache_config_info",
)
"""The names that dashboards, alerts and the benchmark live on; the same in vLLM 0.19.1 to 0.33.0."""

CHECKS: dict[str, Check] = {
    "served_model": Check(served_model, "The planned model is served with the planned length", {}, 1),
    "engine_version": Check(engine_version, "The engine is the planned vLLM version", {}, 1),
    "chat": Check(chat, "A chat is answered with text and a usage that adds up", {"max_tokens": 8}, 1),
    "chat_stream": Check(chat_stream, "A streamed chat arrives whole, with usage", {"max_tokens": 8}, 1),
    "prompt_tokens": Check(prompt_tokens, "Usage and /tokenize count the same prompt tokens", {}, 1),
    "over_long": Check(over_long, "A request that is too long is a 400 that names the maximum", {"margin": 16}, 1),
    "unknown_model": Check(unknown_model, "An unknown model is a 404", {"model": "socle-no-such-model"}, 1),
    "broken_json": Check(broken_json, "A body that is not JSON is the client's fault", {}, 1),
    "messages": Check(apis.messages, "The Anthropic API answers a chat", {"max_tokens": 8}, 1),
    "messages_stream": Check(apis.messages_stream, "The Anthropic API streams a chat", {"max_tokens": 8}, 1),
    "responses": Check(apis.responses, "The Responses API answers a chat", {"max_tokens": 8}, 1),
    "responses_stream": Check(apis.responses_stream, "The Responses API streams a chat", {"max_tokens": 8}, 1),
    "system_prompt": Check(apis.system_prompt, "A system prompt reaches the model by each API", {}, 1),
    "stop": Check(apis.stop, "Generation ends where a stop string would come", {"max_tokens": 24}, 1),
    "api_errors": Check(apis.api_errors, "Each API refuses what is wrong as the client's fault", {}, 1),
    "unicode": Check(apis.unicode_text, "Text of any script passes unchanged", {"text": apis.SCRIPTS}, 1),
    "repeatable": Check(apis.repeatable, "The same request has the same answer", {"max_tokens": 16, "seed": 7}, 2),
    "exact_limit": Check(length.exact_limit, "The context ends where it was planned to end", {}, 1),
    "sampling": Check(thinking.sampling, "The presets of the model file are accepted", {"max_tokens": 1}, 1),
    "effort": Check(thinking.effort, "Each level of effort does what the plan says", {}, 1),
    "thinking": Check(thinking.thinking, "Thoughts are in their field", {"max_tokens": 2048}, 1),
    "thinking_off": Check(thinking.thinking_off, "Thinking can be turned off", {"max_tokens": 256}, 1),
    "tools_required": Check(tools.tools_required, "A call is made where one is required", {"max_tokens": 128}, 1),
    "tools_named": Check(tools.tools_named, "The tool is called that the request names", {"max_tokens": 128}, 1),
    "tools_auto": Check(tools.tools_auto, "The model calls a tool by itself", {"max_tokens": 1024}, 1),
    "tools_unneeded": Check(tools.tools_unneeded, "No tool is called where none is of use", {"max_tokens": 1024}, 1),
    "tools_parallel": Check(tools.tools_parallel, "Two calls come in one answer", {"max_tokens": 1024}, 1),
    "tool_result": Check(tools.tool_result, "A tool's result reaches the model", {"max_tokens": 1024}, 1),
    "tools_long_argument": Check(tools.tools_long_argument, "Long arguments come whole", {"max_tokens": 2048}, 1),
    "image_number": Check(vision.image_number, "A picture is read", {"max_tokens": 32}, 1),
    "images_in_order": Check(vision.images_in_order, "Pictures keep their order", {"max_tokens": 32}, 1),
    "images_most": Check(vision.images_most, "The planned number of images passes, and not more", {}, 1),
    "full_length": Check(length.full_length, "The longest request is answered", {}, 3),
    "needle": Check(
        length.needle, "Long inputs are read to their end", {"shares": [0.25, 0.5, 0.75, 0.92], "max_tokens": 64}, 3
    ),
    "slo": Check(slo.slo, "It is as fast as was promised", {"output_tokens": 64, "repeats": 3}, 8),
    "canary": Check(
        use.canary,
        "A conversation does not depend on the cache",
        {"turns": 4, "prefix_words": 600, "max_tokens": 96},
        4,
    ),
    "state": Check(
        use.state,
        "A long prompt is answered alike cold, warm and evicted",
        {"prefix_words": 1500, "max_tokens": 96, "evict_most_tokens": 400_000},
        5,
    ),
    "tool_soak": Check(
        use.tool_soak,
        "Tool calls are right each time",
        {
            "conversations": 200,
            "at_once": 8,
            "prefix_words": 600,
            "max_tokens": 512,
            "most_corrupted": 0,
            "reference": None,
        },
        6,
    ),
    "known_answers": Check(
        use.known_answers,
        "What the model knows, it knows after load as well",
        {"least_right": 0.8, "most_lost": 0, "load_requests": 64, "at_once": 16, "max_tokens": 64},
        7,
    ),
    "gpu": Check(gpu.gpu, "The planned GPUs and no others", {"least_free_mib": 256, "most_growth_mib": 512}, 9),
    "metrics": Check(metrics, "/metrics has the core names", {"names": list(CORE_METRICS)}, 9),
    "api_key": Check(api_key, "The API key is enforced", {}, 1),
    "alive": Check(alive, "The engine still answers after all of that", {"max_tokens": 4}, 9),
}
