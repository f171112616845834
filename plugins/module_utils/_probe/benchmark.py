# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs workloads against one engine and sums them up. Private to socle.inference."""

from __future__ import annotations

import dataclasses
import json
import platform
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils import _exposition as exposition
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._probe import measures
from ansible_collections.socle.inference.plugins.module_utils._probe.client import HTTPX_VERSION, EngineClient
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import AnswerFault, EngineFault, ProbeError
from ansible_collections.socle.inference.plugins.module_utils._probe.load import Delivery, LoadReport, Order
from ansible_collections.socle.inference.plugins.module_utils._probe.load_bench import (
    SLO,
    due_times_ns,
    load_measures,
    summed_faults,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.prompts import (
    Messages,
    messages_of_length,
    unique_messages,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.server_side import (
    Watch,
    cached_tokens,
    hit_rate,
    other_requests,
    others_ran,
    server_means,
    settled,
    speculation,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.shards import run_load
from ansible_collections.socle.inference.plugins.module_utils._probe.trace import MOST_TOKENS, TraceReader

STREAM_PATH = "/v1/chat/completions"

KINDS = ("generation", "prefix", "load", "decode")
"""One request at a time; the same one twice, cold and out of the prefix cache; many; many whose prompts are cached."""

LEAST_SHARE = 0.25
"""A prompt that is cut below this part of what was asked for measures something else."""

SUMMED = {
    "generation": (("ttft", "ms"), ("e2e", "ms"), ("tpot", "ms"), ("decode", "tok_per_s"), ("prefill", "tok_per_s")),
    "prefix": (("ttft", "ms"), ("warm_ttft", "ms"), ("ttft_drop", "pct"), ("prefill", "tok_per_s")),
    "load": (
        ("output", "tok_per_s"),
        ("input", "tok_per_s"),
        ("request", "per_s"),
        ("goodput", "per_s"),
        *((name + place, "ms") for name in ("ttft", "itl", "tpot", "e2e") for place in ("", "_p99")),
    ),
}
"""Figures of the runs that are summed up over the repeats, with their units."""
SUMMED["decode"] = SUMMED["load"]

MOST_RUNS = 1000
MOST_REQUESTS = 100_000
"""Of one load: the bodies of all of them are made before it begins."""

LONGEST_S = 24 * 3600
"""Of one load with Poisson arrivals."""

OWN_FIELDS = ("model", "messages", "max_tokens", "n", "stream", "stream_options", "ignore_eos", "cache_salt")
"""Fields of a request that a workload does not set by its sampling."""

INTERRUPTED = "the load was interrupted"

BUSY_CLIENT_SHARE = 0.5
"""A client that computed for this part of a run measured itself too."""


@dataclass(frozen=True)
class Params:
    """What one request of a workload asks for."""

    prompt: str
    output_tokens: int
    prompt_tokens: int | None = None
    ignore_eos: bool = True
    thinking: str = "auto"
    cold: bool = True
    sampling: dict[str, Any] = field(default_factory=dict)
    requests: int | None = None
    """Of a load or of kind decode: how many in one run."""
    concurrency: int | None = None
    """Of a load: how many at once at most; null: as they are due."""
    rate_per_s: float | None = None
    """Of a load: Poisson arrivals at this rate; null: the next one as soon as one ended."""
    seed: int = 0
    """Of the arrivals, so that two runs have the same ones."""
    slo: dict[str, float] = field(default_factory=dict)
    """Of a load: ttft_ms, tpot_ms, e2e_ms that a request must not exceed to count as goodput."""


@dataclass(frozen=True)
class Workload:
    name: str
    params: Params
    description: str = ""
    kind: str = "generation"
    repeats: int = 5
    warmups: int = 1


def parse_workload(raw: Mapping[str, Any], params: Mapping[str, Any] | None = None) -> Workload:
    """A workload from its data file; *params* override its parameters (and repeats and warmups)."""
    name = raw.get("name")
    overrides = dict(params or {})
    top: dict[str, Any] = {key: overrides.pop(key) for key in ("repeats", "warmups") if key in overrides}
    own = raw.get("params") or {}
    if not isinstance(own, Mapping):
        raise ProbeError(f"params of the workload {name!r} must be a map; found {own!r}.")
    values = {**own, **overrides}
    unknown = sorted(
        {str(key) for key in set(raw) - {known.name for known in dataclasses.fields(Workload)}}
        | {str(key) for key in set(values) - {known.name for known in dataclasses.fields(Params)}}
    )
    if unknown:
        raise ProbeError(f"The workload {name!r} does not know {', '.join(unknown)}.")
    fields: dict[str, Any] = {**raw, **top}
    try:
        fields["params"] = Params(**values)
        workload = Workload(**fields)
    except TypeError as error:
        raise ProbeError(f"The workload {name!r} is not complete: {error}.") from error
    asked = workload.params
    numbers = {
        "output_tokens": (asked.output_tokens, 1, MOST_TOKENS),
        "prompt_tokens": (asked.prompt_tokens, 1, MOST_TOKENS),
        "repeats": (workload.repeats, 1, MOST_RUNS),
        "warmups": (workload.warmups, 0, MOST_RUNS),
    }
    for what, (number, least, most) in numbers.items():
        if number is None and what == "prompt_tokens":
            continue
        _check_whole(name, what, number, least, most)
    _check_request(workload)
    if workload.kind not in KINDS:
        raise ProbeError(f"The workload {name!r} is of kind {workload.kind!r}; this version runs {', '.join(KINDS)}.")
    _check_load(workload)
    if asked.thinking not in ("auto", "on", "off", "unset"):
        quote = "; YAML takes on and off without quotes for true and false" if isinstance(asked.thinking, bool) else ""
        raise ProbeError(
            f"thinking of the workload {name!r} must be auto, on, off or unset; found {asked.thinking!r}{quote}."
        )
    return workload


def _check_whole(name: Any, what: str, number: Any, least: int, most: int | None) -> None:
    """Errors: ProbeError for anything but a whole number from *least* to *most* (None: whatever comes)."""
    whole = isinstance(number, int) and not isinstance(number, bool)
    if not whole or number < least or (most is not None and number > most):
        # A number of thousands of digits is refused by str().
        huge = isinstance(number, int) and number.bit_length() > 64
        found = f"one of {number.bit_length()} bits" if huge else repr(number)
        raise ProbeError(
            f"{what} of the workload {name!r} must be a whole number from {least} "
            f"{'on' if most is None else f'to {most}'}; found {found}."
        )


def _check_request(workload: Workload) -> None:
    """What goes into the body of a request: a value that is taken for another one measures something else."""
    asked, name = workload.params, workload.name
    if not isinstance(asked.prompt, str) or not asked.prompt.strip():
        raise ProbeError(f"prompt of the workload {name!r} must be a text; found {asked.prompt!r}.")
    for what, value in (("ignore_eos", asked.ignore_eos), ("cold", asked.cold)):
        if not isinstance(value, bool):
            raise ProbeError(f"{what} of the workload {name!r} must be true or false; found {value!r}.")
    if not isinstance(asked.sampling, Mapping):
        raise ProbeError(f"sampling of the workload {name!r} must be a map of fields; found {asked.sampling!r}.")
    taken = [key for key in asked.sampling if key in OWN_FIELDS]
    if taken:
        raise ProbeError(
            f"sampling of the workload {name!r} sets {', '.join(taken)}, which the benchmark sets itself; remove it "
            "there."
        )
    try:
        json.dumps(asked.sampling, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ProbeError(
            f"sampling of the workload {name!r} cannot be sent as JSON ({error}); expected numbers, texts, lists "
            "and maps."
        ) from error


def _check_load(workload: Workload) -> None:
    """A load says how many requests and how they come; a generation says none of that."""
    asked, name = workload.params, workload.name
    own = {key: getattr(asked, key) for key in ("requests", "concurrency", "rate_per_s", "slo")}
    if workload.kind in ("prefix", "decode") and asked.prompt_tokens is None:
        raise ProbeError(f"The workload {name!r} is of kind {workload.kind} and needs prompt_tokens; set it.")
    if workload.kind == "decode":
        if not isinstance(asked.requests, int) or isinstance(asked.requests, bool) or asked.requests < 1:
            raise ProbeError(
                f"requests of the workload {name!r} must be a whole number from 1 on; found {asked.requests!r}."
            )
        own.pop("requests")
    if workload.kind != "load":
        said = [key for key, value in own.items() if value]
        if said:
            raise ProbeError(f"The workload {name!r} sets {', '.join(said)}, which only one of kind load has.")
        return
    for key in ("requests", "concurrency", "seed"):
        value = getattr(asked, key)
        if value is None and key == "concurrency":
            continue
        least, most = (0, None) if key == "seed" else (1, MOST_REQUESTS)
        _check_whole(name, key, value, least, most)
    if asked.rate_per_s is not None and not _positive(asked.rate_per_s):
        raise ProbeError(
            f"rate_per_s of the workload {name!r} must be a number above 0, or null; found {asked.rate_per_s!r}."
        )
    if asked.rate_per_s is not None and (asked.requests or 0) / asked.rate_per_s > LONGEST_S:
        raise ProbeError(
            f"The workload {name!r} sends {asked.requests} requests at {asked.rate_per_s:g} per second, which takes "
            f"longer than the {LONGEST_S / 3600:g} hours of the longest load; raise rate_per_s or send fewer."
        )
    if asked.concurrency is None and asked.rate_per_s is None:
        raise ProbeError(
            f"The workload {name!r} is a load and says neither concurrency nor rate_per_s; set one of them, or both."
        )
    if not isinstance(asked.slo, Mapping) or not all(key in SLO and _positive(most) for key, most in asked.slo.items()):
        raise ProbeError(
            f"slo of the workload {name!r} must be a map of {', '.join(SLO)} to milliseconds; found {asked.slo!r}."
        )


def fit(workload: Workload, limit: int | None) -> tuple[Workload | None, dict[str, list[int]]]:
    """The workload as an instance of that length can run it, and what was cut: {parameter: [asked, used]}.

    None where so little of the prompt would be left that it would measure something else.
    """
    params = workload.params
    if limit is None or (params.prompt_tokens or 0) + params.output_tokens <= limit:
        return workload, {}
    output = min(params.output_tokens, limit // 2)
    prompt = None if params.prompt_tokens is None else min(params.prompt_tokens, limit - output)
    if prompt is not None and prompt < LEAST_SHARE * (params.prompt_tokens or 0):
        return None, {"prompt_tokens": [params.prompt_tokens or 0, prompt]}
    cut = {"output_tokens": [params.output_tokens, output], "prompt_tokens": [params.prompt_tokens or 0, prompt or 0]}
    fitting = dataclasses.replace(params, prompt_tokens=prompt, output_tokens=output)
    return dataclasses.replace(workload, params=fitting), {key: pair for key, pair in cut.items() if pair[0] != pair[1]}


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")


def request_body(model: str, params: Params, thinking_model: bool, salt: str, messages: Messages) -> dict[str, Any]:
    """The chat request. A model without a thinking mode gets no thinking preset: its template need not know one."""
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "max_tokens": params.output_tokens,
        "temperature": 0,
        **params.sampling,
    }
    if params.ignore_eos:
        body["ignore_eos"] = True
    if params.cold:
        body["cache_salt"] = salt
    body.update(_template_options(params, thinking_model))
    return body


def _template_options(params: Params, thinking_model: bool) -> dict[str, Any]:
    wanted = {"auto": thinking_model or None, "on": True, "off": False, "unset": None}[params.thinking]
    return {} if wanted is None else {"chat_template_kwargs": {"enable_thinking": wanted}}


def run_faults(params: Params, run: Mapping[str, Any]) -> list[str]:
    """Why a run does not count. Fewer tokens than asked for is a failed run, not a fast one."""
    faults = []
    made, asked = run["completion_tokens"], params.output_tokens
    if params.ignore_eos and made != asked:
        faults.append(f"{made} tokens were generated, {asked} asked for")
    if not params.ignore_eos and not 1 <= made <= asked:
        faults.append(f"{made} tokens were generated, 1 to {asked} asked for")
    if params.prompt_tokens is not None and run["prompt_tokens"] != params.prompt_tokens:
        faults.append(f"the prompt had {run['prompt_tokens']} tokens, {params.prompt_tokens} asked for")
    if params.cold and run["cached_prompt_tokens"]:
        faults.append(f"the run was not cold: {run['cached_prompt_tokens']} prompt tokens came from the cache")
    return faults


class Bench:
    """One engine under test."""

    def __init__(
        self,
        client: EngineClient,
        model: str,
        thinking_model: bool = False,
        report: Callable[[str, int, int, str], None] = lambda phase, done, total, unit: None,
        sleep: Callable[[float], None] = time.sleep,
        processors: int = 1,
        max_model_len: int | None = None,
    ) -> None:
        self._client = client
        self._length = max_model_len
        self._model = model
        self._thinking = thinking_model
        self._report = report
        self._sleep = sleep
        self._processors = processors
        self._processes = 1

    def run(self, asked: Workload) -> dict[str, Any]:
        """All runs of a workload, cut to the length of the instance where it must be, and what the engine says."""
        fitting, cut = fit(asked, self._length)
        if fitting is None:
            return skipped(asked, cut, self._length)
        with Watch(self._metrics) as watch:
            result = self._runs(fitting)
        result["scaled"] = cut
        result["during"] = watch.figures()
        if cut:
            said = ", ".join(f"{key} {pair[0]} to {pair[1]}" for key, pair in cut.items())
            result["warnings"].append(f"Cut to the {self._length} tokens of the instance: {said}.")
        return result

    def _runs(self, workload: Workload) -> dict[str, Any]:
        total = workload.warmups + workload.repeats
        runs: list[dict[str, Any]] = []
        before: list[exposition.Sample] | None = None
        for number in range(total):
            self._report(workload.name, number, total, "runs")
            if number == workload.warmups:
                before = self._metrics()
            warmup = number < workload.warmups
            phase = f"{workload.name} run {number + 1} of {total}"
            if workload.kind == "load":
                run = self._load(workload, phase, warmup)
            elif workload.kind == "decode":
                run = self._decode(workload.params, phase)
            elif workload.kind == "prefix":
                run = self._prefix(workload.params)
            else:
                run = self._one(workload.params)
            run["warmup"] = warmup
            runs.append(run)
            if run.get("interrupted"):
                break
        after = self._metrics()
        self._report(workload.name, total, total, "runs")
        counted = [run for run in runs if not run["warmup"]]
        # Loads that were run again with more processes were ours, too.
        requests = (workload.params.requests or 1) * (len(counted) + sum(run.get("run_again", 0) for run in counted))
        # A run of kind prefix is two requests, one of kind decode has each of them twice.
        requests *= 2 if workload.kind in ("prefix", "decode") else 1
        result = workload_result(workload, runs, server_means(before, after, requests))
        result["speculation"] = speculation(before, after)
        result["prefix_hit_rate"] = hit_rate(before, after)
        redacted: dict[str, Any] = self._client.redact_all(result)
        return redacted

    def broken(self, status: str, message: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The result of a workload that has no figures."""
        result: dict[str, Any] = self._client.redact_all({"status": status, "faults": [message], "evidence": fields})
        return result

    def _one(self, params: Params) -> dict[str, Any]:
        """One request. An engine's fault is a failed run; the probe's own goes up."""
        nonce = secrets.token_hex(8)
        try:
            messages = self._messages(params, nonce)
        except EngineFault as fault:
            return _failed(fault)
        return self._timed(params, request_body(self._model, params, self._thinking, nonce, messages))

    def _prefix(self, params: Params) -> dict[str, Any]:
        """One request twice: the second one finds the prompt of the first one in the prefix cache, if there is one."""
        nonce = secrets.token_hex(8)
        try:
            messages = self._messages(params, nonce)
        except EngineFault as fault:
            return _failed(fault)
        body = request_body(self._model, params, self._thinking, nonce, messages)
        run = self._timed(params, body)
        if run["status"] == "failed":
            return run
        warm = self._timed(dataclasses.replace(params, cold=False), body)
        if warm["status"] == "failed":
            return warm
        run["warm_ttft_ms"] = warm["ttft_ms"]
        run["warm_cached_prompt_tokens"] = warm["cached_prompt_tokens"]
        run["ttft_drop_pct"] = round((1 - warm["ttft_ms"] / run["ttft_ms"]) * 100, 1)
        return run

    def _decode(self, params: Params, phase: str) -> dict[str, Any]:
        """First every prompt with one token of answer, which leaves them in the prefix cache; then all answers at once.

        What is measured is the second part, in which nothing is left to be done but to make tokens.
        """
        requests = params.requests or 1
        try:
            bodies = self._bodies(params, requests)
            prompts = self._send_all([{**body, "max_tokens": 1} for body in bodies], requests, f"{phase}, prompts")
            if any(report.interrupted for report in prompts):
                return {"status": "failed", "faults": [INTERRUPTED], "interrupted": True}
            before = self._metrics()
            reports = self._send_all(bodies, requests, phase)
            after = self._settled(before, requests)
        except EngineFault as fault:
            return _failed(fault)
        return self._load_run(dataclasses.replace(params, cold=False), reports, before, after, requests)

    def _send_all(self, bodies: Sequence[Mapping[str, Any]], requests: int, phase: str) -> list[LoadReport]:
        """All at once. Errors: the first fault of a request."""
        orders = [Order(number, json.dumps(body, ensure_ascii=False).encode()) for number, body in enumerate(bodies)]
        reports = run_load(
            self._client.target(STREAM_PATH),
            orders,
            requests,
            self._processes,
            self._client.limits,
            self._progress(phase, requests),
        )
        for report in reports:
            for delivery in report.deliveries:
                if delivery.fault:
                    raise delivery.fault
        return reports

    def _progress(self, phase: str, requests: int) -> Callable[[int, int, int], None]:
        """Tells how far a load is, with the tokens of the requests that ended."""
        began = time.monotonic()

        def report(done: int, failed: int, tokens: int) -> None:
            rate = tokens / max(time.monotonic() - began, 0.001)
            self._report(phase, done, requests, f"requests, {rate:.0f} tok/s{f', {failed} failed' if failed else ''}")

        return report

    def _timed(self, params: Params, body: dict[str, Any]) -> dict[str, Any]:
        try:
            before = self._metrics()
            computing = time.process_time_ns()
            trace = self._client.stream_chat(body)
            computed = time.process_time_ns() - computing
            after = self._settled(before)
        except EngineFault as fault:
            return _failed(fault)
        run = measures.run_measures(trace)
        run["other_requests"] = other_requests(before, after)
        run["busy"] = others_ran(before, after)
        told = trace.usage.cached_tokens if trace.usage else None
        run["cached_prompt_tokens"] = cached_tokens(before, after) if told is None else told
        run["client_cpu_share"] = round(computed / max(trace.done_ns - trace.sent_ns, 1), 3)
        run["system_fingerprint"] = trace.fingerprint
        run["faults"] = run_faults(params, run)
        run["status"] = "failed" if run["faults"] else "passed"
        return run

    def _load(self, workload: Workload, phase: str, warmup: bool) -> dict[str, Any]:
        """One load. A client that did not keep up runs it again with more processes, as far as there are processors."""
        params = workload.params
        requests = params.requests or 1
        if warmup:
            requests = min(requests, params.concurrency or 1)
        again = 0
        while True:
            run, kept = self._load_once(params, phase, requests)
            run["run_again"] = again
            if kept or run["interrupted"] or self._processes * 2 > self._processors:
                return run
            self._processes *= 2
            again += 1

    def _load_once(self, params: Params, phase: str, requests: int) -> tuple[dict[str, Any], bool]:
        """The run, and whether the client kept up; an engine's fault is a failed run."""
        try:
            orders = self._orders(params, requests)
            target = self._client.target(STREAM_PATH)
            before = self._metrics()
            reports = run_load(
                target,
                orders,
                params.concurrency,
                self._processes,
                self._client.limits,
                self._progress(phase, requests),
            )
            after = self._settled(before, requests)
        except EngineFault as fault:
            return {**_failed(fault), "interrupted": False}, True
        run = self._load_run(params, reports, before, after, requests)
        return run, bool(run["client"]["kept_up"])

    def _load_run(
        self,
        params: Params,
        reports: Sequence[LoadReport],
        before: list[exposition.Sample] | None,
        after: list[exposition.Sample] | None,
        requests: int,
    ) -> dict[str, Any]:
        """The figures of one load, and why it does not count."""
        run = load_measures(reports, params.slo)
        deliveries = [delivery for report in reports for delivery in report.deliveries]
        run["other_requests"] = other_requests(before, after, requests)
        run["busy"] = others_ran(before, after, requests)
        run["cached_prompt_tokens"] = _cached_of(deliveries, before, after, requests)
        run["client_cpu_share"] = run["client"]["cpu_share_max"]
        faults = [fault for delivery in deliveries for fault in _delivery_faults(params, delivery)]
        if params.cold and run["cached_prompt_tokens"]:
            faults.append(f"the load was not cold: {run['cached_prompt_tokens']} prompt tokens came from the cache")
        run["interrupted"] = any(report.interrupted for report in reports)
        if run["interrupted"]:
            faults.append(INTERRUPTED)
        run["faults"] = summed_faults(faults)
        run["evidence"] = next((delivery.fault.fields for delivery in deliveries if delivery.fault), {})
        run["status"] = "failed" if faults else "passed"
        return run

    def _orders(self, params: Params, requests: int) -> list[Order]:
        """The requests of a load, each with a prompt that no other one has."""
        due = due_times_ns(requests, params.rate_per_s, params.seed)
        return [
            Order(number, json.dumps(body, ensure_ascii=False).encode(), due[number])
            for number, body in enumerate(self._bodies(params, requests))
        ]

    def _bodies(self, params: Params, requests: int) -> list[dict[str, Any]]:
        bodies = []
        for _number in range(requests):
            nonce = secrets.token_hex(8)
            body = request_body(self._model, params, self._thinking, nonce, self._messages(params, nonce))
            body.update(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
            bodies.append(body)
        return bodies

    def _messages(self, params: Params, nonce: str) -> Messages:
        if params.prompt_tokens is None:
            return unique_messages(params.prompt, nonce)
        options = _template_options(params, self._thinking)

        def count(messages: Messages) -> int:
            body = {"model": self._model, "messages": messages, "add_generation_prompt": True, **options}
            answer = self._client.post("/tokenize", body)
            found = answer.json().get("count") if answer.status == 200 else None
            if not isinstance(found, int):
                raise AnswerFault(
                    f"/tokenize answered {answer.status} without a count; prompts of an exact length need it.",
                    evidence=answer.evidence(),
                )
            return found

        return messages_of_length(params.prompt, nonce, params.prompt_tokens, count)

    def _metrics(self) -> list[exposition.Sample] | None:
        answer = self._client.get("/metrics")
        return (exposition.parse(answer.text) or None) if answer.status == 200 else None

    def _settled(self, before: list[exposition.Sample] | None, requests: int = 1) -> list[exposition.Sample] | None:
        return settled(self._metrics, before, requests, self._sleep)


def _cached_of(
    deliveries: Sequence[Delivery],
    before: list[exposition.Sample] | None,
    after: list[exposition.Sample] | None,
    requests: int,
) -> int | None:
    """The same of a load: by the answers where each of them says it."""
    told = [
        delivery.trace.usage.cached_tokens if delivery.trace and delivery.trace.usage else None
        for delivery in deliveries
    ]
    known = [count for count in told if count is not None]
    return sum(known) if len(known) == len(told) else cached_tokens(before, after, requests)


def _delivery_faults(params: Params, delivery: Delivery) -> list[str]:
    """Why a request of a load does not count."""
    if delivery.trace is None:
        return [delivery.fault.message if delivery.fault else "there was no answer"]
    # Whether it was cold is asked of the load as a whole.
    run = {**measures.run_measures(delivery.trace), "cached_prompt_tokens": None}
    return run_faults(params, run)


def _failed(fault: EngineFault) -> dict[str, Any]:
    """A run that the engine failed."""
    return {"status": "failed", "faults": [fault.message], "evidence": fault.fields}


def workload_result(workload: Workload, runs: list[dict[str, Any]], server: dict[str, Any] | None) -> dict[str, Any]:
    """Sums up the counted runs that passed. One failed run fails the workload; its figures stay, to be looked at."""
    counted = [run for run in runs if not run["warmup"]]
    good = [run for run in counted if run["status"] == "passed"]
    failed = [run for run in runs if run["status"] != "passed"]
    warnings = []
    if any(not run["client"]["kept_up"] for run in good if "client" in run):
        warnings.append(
            "The client did not keep up with the engine: it computed for most of a run, or read late. The figures are "
            "partly its own; run the probe where more processors are free."
        )
    elif any(run.get("client_cpu_share", 0) > BUSY_CLIENT_SHARE for run in good if "client" not in run):
        warnings.append("The client computed for more than half of a run: the figures are partly its own.")
    if any(run.get("busy") for run in good):
        warnings.append("Other requests ran meanwhile: the figures are those of a busy engine.")
    if workload.params.cold and any(run["cached_prompt_tokens"] is None for run in good):
        busy = any(run.get("busy") for run in good if run["cached_prompt_tokens"] is None)
        reason = "counts the cache hits of all requests together" if busy else "tells of no cache hits"
        warnings.append(f"Whether the runs were cold is not known: the engine {reason}.")
    if workload.kind in ("prefix", "decode"):
        key = "warm_cached_prompt_tokens" if workload.kind == "prefix" else "cached_prompt_tokens"
        if good and not any(run.get(key) for run in good):
            warnings.append("The prefix cache gave nothing: it is off, or the prompt is shorter than its blocks.")
    result: dict[str, Any] = {
        "status": "failed" if failed or len(good) < workload.repeats else "passed",
        "faults": [fault for run in failed for fault in run["faults"]],
        "description": workload.description,
        "kind": workload.kind,
        "repeats": len(good),
        "params": dataclasses.asdict(workload.params),
        "prompt_tokens": _common(good, "prompt_tokens"),
        "completion_tokens": _common(good, "completion_tokens"),
        "cached_prompt_tokens": _common(good, "cached_prompt_tokens"),
    }
    for name, unit in SUMMED[workload.kind]:
        spread = measures.summary([run.get(f"{name}_{unit}") for run in good])
        if workload.kind in ("generation", "prefix"):
            result[f"{name}_p50_{unit}"] = spread["p50"]
        result[f"{name}_{unit}"] = spread
    result["server"] = server
    result["client_cpu_share_max"] = max((run["client_cpu_share"] for run in good), default=None)
    result["runs"] = runs
    result["warnings"] = warnings
    return result


def skipped(workload: Workload, cut: Mapping[str, list[int]], limit: int | None) -> dict[str, Any]:
    """A workload that the instance is too short for."""
    asked, left = cut["prompt_tokens"]
    return {
        "status": "skipped",
        "faults": [],
        "description": workload.description,
        "kind": workload.kind,
        "params": dataclasses.asdict(workload.params),
        "warnings": [f"Skipped: of {asked} tokens of input {left} would be left in an instance of {limit} tokens."],
        "runs": [],
    }


def _common(runs: list[dict[str, Any]], key: str) -> int | None:
    """The largest of the runs' values; None when no run has one."""
    return max((run[key] for run in runs if run.get(key) is not None), default=None)


def parse_workloads(entries: Sequence[Any], params: Mapping[str, Mapping[str, Any]] | None = None) -> list[Workload]:
    """All workloads of a run; none at all, or one twice, is refused."""
    changes = params or {}
    workloads: list[Workload] = []
    for entry in entries:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str) or not entry["name"].strip():
            raise ProbeError(f"A workload must be a map with a name; found {entry!r}.")
        change = changes.get(entry["name"]) or {}
        if not isinstance(change, Mapping):
            raise ProbeError(f"The changes to the workload {entry['name']!r} must be a map; found {change!r}.")
        workloads.append(parse_workload(entry, change))
    names = [workload.name for workload in workloads]
    if not names or len(set(names)) < len(names):
        raise ProbeError(f"Each workload must be named once, and one at least; found {', '.join(names) or 'none'}.")
    return workloads


def run_all(bench: Bench, workloads: Sequence[Workload]) -> dict[str, Any]:
    """The whole benchmark. Where the probe itself breaks, that workload says so and the others still run."""
    results: dict[str, dict[str, Any]] = {}
    interrupted = ""
    for workload in workloads:
        if interrupted:
            results[workload.name] = bench.broken("error", f"{interrupted} was interrupted before; measure again.", {})
            continue
        try:
            results[workload.name] = bench.run(workload)
            if any(run.get("interrupted") for run in results[workload.name]["runs"]):
                interrupted = workload.name
        except SocleError as error:
            status = "failed" if isinstance(error, EngineFault) else "error"
            results[workload.name] = bench.broken(status, error.message, error.fields)
        except Exception as error:
            words = (
                f"{type(error).__name__}: {error}. This is the probe's own fault: repeat it, and report it if it stays."
            )
            results[workload.name] = bench.broken("error", words, {})
    return {"verdict": benchmark_verdict(results), "workloads": results, "method": method(workloads)}


def preview(workloads: Sequence[Workload]) -> dict[str, Any]:
    """What check mode shows: the workloads that would run, and no verdict."""
    shown = {
        workload.name: {
            "status": "would_run",
            "repeats": workload.repeats,
            "params": dataclasses.asdict(workload.params),
        }
        for workload in workloads
    }
    return {"verdict": None, "workloads": shown, "method": None}


def benchmark_verdict(workloads: Mapping[str, Mapping[str, Any]]) -> str:
    """failed when a workload failed, error when none could run or the probe broke, else passed."""
    states = {result["status"] for result in workloads.values()} - {"skipped"}
    if "failed" in states:
        return "failed"
    return "passed" if states == {"passed"} else "error"


def parse_cost_us(chunks: int = 500) -> float:
    """What this client spends on one chunk of a stream, in microseconds: its own share in every gap between tokens."""
    chunk = {
        "model": "self-check",
        "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
    frame = f"data: {json.dumps(chunk)}\n\n".encode()
    reader = TraceReader(0)
    started = time.process_time_ns()
    for number in range(chunks):
        reader.feed(number, frame)
    return round((time.process_time_ns() - started) / chunks / 1000, 1)


def method(workloads: Sequence[Workload]) -> dict[str, Any]:
    """How the figures were taken, for the record."""
    clock = time.get_clock_info("monotonic")
    return {
        "client": "socle-probe (one request at a time by httpx, loads by a loop of its own; streamed)",
        "client_version": HTTPX_VERSION,
        "python": platform.python_version(),
        "clock": f"{clock.implementation}, resolution {clock.resolution:g} s",
        "concurrency": {
            workload.name: 1 if workload.kind == "generation" else workload.params.concurrency for workload in workloads
        },
        "rate_per_s": {workload.name: workload.params.rate_per_s for workload in workloads if workload.kind == "load"},
        "repeats": {workload.name: workload.repeats for workload in workloads},
        "warmups": {workload.name: workload.warmups for workload in workloads},
        "prompt_tokens": {workload.name: workload.params.prompt_tokens for workload in workloads},
        "tokens_from": "server usage",
        "definitions": {
            "ttft": "t_first_token - t_sent; the role chunk does not count",
            "e2e": "t_last_token - t_sent; the usage chunk does not count",
            "tpot": "(e2e - ttft) / (completion_tokens - 1)",
            "decode": "(completion_tokens - tokens_in_first_chunk) / (t_last_token - t_first_token)",
            "itl": "the gap between two chunks divided by the tokens that the later one brought, once for each token",
            "output_tok_per_s": "completion tokens of all requests / (last token of any - first request sent)",
            "goodput_per_s": "requests within the slo / the same time",
            "percentiles": "linear interpolation",
            "spread_pct": "(max - min) / p50",
            "noise_pct": "1.96 * sqrt(2) * sqrt(pi / 2) * standard deviation / sqrt(n) / p50, over the repeats",
        },
        "client_parse_us_per_chunk": parse_cost_us(),
    }
