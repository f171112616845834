# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting until an instance serves, or saying why it does not. Private to socle.inference."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, NoReturn

from ansible_collections.socle.inference.plugins.module_utils import _exposition as exposition
from ansible_collections.socle.inference.plugins.module_utils._engine.backend import Backend, UnitState, check_name
from ansible_collections.socle.inference.plugins.module_utils._engine.claim import Claim
from ansible_collections.socle.inference.plugins.module_utils._engine.diagnosis import (
    KILLED,
    SIGKILL_STATUS,
    Diagnosis,
    Reader,
    end_of_unit,
    killed_for_memory,
    observed,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._engine.phases import (
    ANSWER,
    GRAPHS,
    LOADING,
    SERVER,
    expected_phases,
    progress_detail,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.plan_form import plan_fault
from ansible_collections.socle.inference.plugins.module_utils._engine.signatures import BY_NAME, Signature
from ansible_collections.socle.inference.plugins.module_utils._engine.unit import START_TIMEOUT_S, probe_address
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress
from ansible_collections.socle.inference.plugins.module_utils._records.files import read_text
from ansible_collections.socle.inference.plugins.module_utils._records.schema import (
    Invalid,
    Record,
    parse,
    parse_spool_name,
    path_component,
)
from ansible_collections.socle.inference.plugins.module_utils._watchdog.redaction import redact

POLL_S = 1.0
CLOSE_S = 0.25
"""How often to look where an answer may come at any moment."""

CALL_TIMEOUT_S = 5.0
BODY_BYTES = 4 << 20
TOKEN_TIMEOUT_S = 120.0
CONFIRM_S = 60.0
LOOP_RESTARTS = 2
NAMES, NAME_CHARS = 10, 300
"""Of what a server says it serves, in a sentence; and of each name."""

MODELS = 1000
"""Of what a server lists; an engine with adapters lists some hundred."""

EXCERPT_LINES = 12
AFTER_LINES = 3
"""How many lines after the cause an excerpt shows: messages of pydantic go on below their first line."""

NEWEST_RECORDS = 20
"""How many records of earlier deployments are read at most."""

_COUNT = re.compile(r"[0-9]{1,15}")

Answer = tuple[int, bytes]
"""HTTP status (0: no connection or no answer in time) and body."""


class Http:
    """Calls one server directly: no proxy, no redirect to anywhere else."""

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        class NoRedirect(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
                return None

        self.base_url = base_url.rstrip("/")
        self._api_key = api_key
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirect())

    def __call__(self, path: str, body: dict[str, Any] | None = None, timeout_s: float = CALL_TIMEOUT_S) -> Answer:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self._api_key and path.startswith("/v1"):
            headers["Authorization"] = f"Bearer {self._api_key}"
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.base_url + path, data=data, headers=headers)
        try:
            return self._ask(request, timeout_s)
        except (OSError, ValueError, EOFError):
            return 0, b""
        except Exception as error:  # http.client's own errors, for a server that dies while it answers
            return 0, str(error).encode()

    def _ask(self, request: urllib.request.Request, timeout_s: float) -> Answer:
        deadline = time.monotonic() + timeout_s
        try:
            with self._opener.open(request, timeout=timeout_s) as response:
                return int(response.status), _read(response, deadline)
        except urllib.error.HTTPError as error:
            # What counts is its status, also where the server dies, or goes on for ever, while it says more.
            with error, contextlib.suppress(OSError, ValueError, http.client.HTTPException):
                return error.code, _read(error, deadline)
            return error.code, b""


def _read(response: Any, deadline: float) -> bytes:
    """The body, as far as it is needed; TimeoutError where it goes on after *deadline*."""
    # The timeout of the socket begins anew with every byte.
    body = b""
    while len(body) < BODY_BYTES:
        part = response.read1(1 << 16)
        if not part:
            break
        body += part
        if time.monotonic() > deadline:
            raise TimeoutError
    return body


def _few(names: list[Any]) -> str:
    """Names that somebody else's server may have given, for a sentence."""
    shown = ", ".join(repr(str(name)[:NAME_CHARS]) for name in names[:NAMES])
    return f"[{shown}{f', and {len(names) - NAMES} more' if len(names) > NAMES else ''}]"


def _plain(value: Any) -> Any:
    """A text or number of an answer; None for all else, which may be nested without end."""
    if isinstance(value, str):
        return value[:NAME_CHARS]
    return value if isinstance(value, int) else None


def _json(answer: Answer) -> Any:
    try:
        return json.loads(answer[1])
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True)
class Lack:
    """What an instance lacks to be ready, in words that go on from its name."""

    id: str
    sentence: str
    remedy: str = ""
    final: bool = False
    """Waiting cannot change it."""


def parse_cache_info(metrics: bytes) -> dict[str, int | None]:
    """num_gpu_blocks, block_size and kv_cache_size_tokens from /metrics; None where the version does not tell."""
    samples = exposition.parse(metrics.decode("utf-8", "replace"))
    labels = next((sample.labels for sample in samples if sample.name == "vllm:cache_config_info"), {})

    def number(key: str) -> int | None:
        value = labels.get(key, "")
        return int(value) if _COUNT.fullmatch(value) else None

    return {key: number(key) for key in ("num_gpu_blocks", "block_size", "kv_cache_size_tokens")}


class Waiter:
    """Watches one instance from its unit's start to its first token.

    *expected* are seconds by phase (phases.expected_phases), *size_bytes* is the size of the model's weights, *claim*
    tells whether another run has launched the instance meanwhile.
    """

    def __init__(
        self,
        backend: Backend,
        instance: str,
        http: Callable[..., Answer],
        *,
        served_names: list[str] | None = None,
        timeout_s: float = 1800.0,
        started: bool = True,
        expected: Mapping[str, float] | None = None,
        size_bytes: int | None = None,
        claim: Claim | None = None,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._backend = backend
        self._instance = instance
        self._claim = claim
        self._service = backend.service(instance)
        self._http = http
        self._served_names = served_names or []
        self._timeout_s = timeout_s
        self._started = started
        self._token_timeout_s = TOKEN_TIMEOUT_S if started else CONFIRM_S
        self._expected = expected or {}
        self._size_bytes = size_bytes
        self._progress = progress or Progress()
        self._clock = clock
        self._sleep = sleep
        self._reader = Reader()
        self._tail: deque[str] = deque(maxlen=EXCERPT_LINES)
        self._after = 0
        self._cursor: str | None = None
        self._since_us: int | None = None
        self._fatal_us: int | None = None
        self._phase_seen = (self._reader.phases.phase, clock())
        self._models: list[dict[str, Any]] = []

    def look(self) -> dict[str, Any]:
        """One look: the facts if it serves at this moment, else the reason why it does not; never fails for that."""
        unit = self._backend.state(self._instance)
        lack = self._lack(unit)
        if lack is None:
            return self._facts(unit, waited_s=0.0)
        return {"ready": False, "reason": f"{self._service} {lack.sentence}", "milestones": {}, "unit": unit.as_dict()}

    def wait(self) -> dict[str, Any]:
        """Facts of the serving instance, or EngineError.

        An instance that this run started is followed by its journal, and stopped where it does not become ready, so
        that nothing that counts as failed serves. Any other one is only asked: whoever uses it keeps it.
        """
        return self._follow() if self._started else self._confirm()

    def _follow(self) -> dict[str, Any]:
        began = self._clock()
        first_restarts: int | None = None
        token_shown = False
        while True:
            unit = self._backend.state(self._instance)
            # While a restart is queued or the old engine goes down, the old one may still answer. A unit that starts
            # has a job until it is active.
            settled = unit.active == "activating" or (not unit.job_pending and unit.active != "deactivating")
            if settled and unit.alive:
                lack = self._answer_lack()
                if lack is not None and lack.final:
                    self._read_journal()
                    self._fail(replace(observed(lack.id), sentence=f"it {lack.sentence}", remedy=lack.remedy), unit)
                if lack is None:
                    self._refuse_half_served(unit)
                    if self._up(unit) and self._same(unit):
                        return self._facts(unit, waited_s=self._clock() - began)
                    token_shown = True
                    self._backend.check_health(self._instance)
            if self._since_us is None and settled and unit.started_us:
                self._since_us = unit.started_us
            self._read_journal()
            if self._reader.fatal is not None and not token_shown:  # what serves is not to be stopped
                self._fail(self._reader.fatal, unit)
            if settled and not unit.running:
                self._read_journal()
                self._fail(self._reader.conclude(self._gone(unit)), unit)
            if settled and self._gave_up(unit):
                self._fail(self._reader.conclude(self._gone(unit)), unit)
            if settled:
                if first_restarts is None or unit.restarts < first_restarts:
                    first_restarts = unit.restarts
                if unit.restarts - first_restarts >= LOOP_RESTARTS:
                    loop = observed("restart_loop", unit.restarts - first_restarts, line=self._last_line())
                    self._fail(self._reader.conclude(loop), unit)
            waited = self._clock() - began
            if waited >= self._timeout_s:
                self._fail(self._late(waited), unit)
            self._show("waiting for the health check" if token_shown else self._reader.phases.phase)
            close = waited < 2 or token_shown or self._reader.phases.phase in (SERVER, ANSWER)
            self._sleep(CLOSE_S if close else POLL_S)

    def _confirm(self) -> dict[str, Any]:
        began = self._clock()
        quiet_since: float | None = None
        while True:
            unit = self._backend.state(self._instance)
            lack = self._lack(unit)
            now = self._clock()
            if lack is None:
                return self._facts(unit, waited_s=now - began)
            # One that systemd brings up (after a crash or a reboot) has the time that a start may take.
            quiet_since = None if unit.coming_up else now if quiet_since is None else quiet_since
            given_up = quiet_since is not None and now - quiet_since >= CONFIRM_S
            given_up = given_up or unit.active in ("inactive", "failed")
            if lack.final or given_up or now - began >= self._timeout_s:
                after = "" if lack.final else f" after {now - began:.0f} s"
                remedy = lack.remedy or (
                    f"See 'journalctl -u {self._service}' on the host;"
                    f" 'systemctl restart {self._service}' starts it anew."
                )
                raise EngineError(
                    f"{self._service} runs the planned launch already and does not serve it{after}: it {lack.sentence};"
                    f" this run did not start it and left it as it is - {remedy}",
                    lack=lack.id,
                    milestones={},
                    unit=unit.as_dict(),
                    stopped=False,
                )
            self._progress.update(phase=f"asking it: it {lack.sentence}", detail=f"of at most {CONFIRM_S:.0f} s")
            self._sleep(POLL_S)

    @staticmethod
    def _up(unit: UnitState) -> bool:
        return unit.active == "active" and unit.alive and not unit.job_pending

    def _same(self, unit: UnitState) -> bool:
        """Whether the unit still runs as it did before it was asked, so that it can be the one that answered."""
        now = self._backend.state(self._instance)
        return self._up(now) and now.invocation_id == unit.invocation_id

    def _lack(self, unit: UnitState) -> Lack | None:
        """What the instance lacks at this moment; None where it serves."""
        if not self._up(unit):
            waits = ", with a job pending" if unit.job_pending else ""
            return Lack("unit", f"is not up (its unit is {unit.active}, {unit.sub}{waits})")
        lack = self._answer_lack()
        if lack is None and not self._same(unit):
            return Lack("unit", "did not stay up while it was asked")
        return lack

    def _answer_lack(self) -> Lack | None:
        """Healthy, lists its models, and makes a token, or what of it is missing."""

        def unanswered(path: str, answer: Answer) -> Lack:
            return Lack("answer", f"answered {path} with HTTP {answer[0]}" if answer[0] else f"did not answer {path}")

        answer = self._http("/health")
        if answer[0] != 200:
            return unanswered("/health", answer)
        answer = self._http("/v1/models")
        if answer[0] in (401, 403):
            return Lack(
                "api_key",
                f"refuses the API key (HTTP {answer[0]} from /v1/models)",
                "Set api_key of the instance to the key that the engine was started with, or deploy again.",
                final=True,
            )
        models = _json(answer)
        listed = models.get("data") if isinstance(models, dict) else None
        if answer[0] != 200 or not isinstance(listed, list):
            return unanswered("/v1/models", answer)
        self._models = [
            {key: _plain(item.get(key)) for key in ("id", "root", "max_model_len")}
            for item in listed[:MODELS]
            if isinstance(item, dict)
        ]
        ids = [item["id"] for item in self._models]
        missing = [name for name in self._served_names if name not in ids]
        if missing or not ids:
            return Lack(
                "served_names",
                f"lists the models {_few(ids)}, expected {self._served_names or 'at least one'}",
                "Another process may hold the port: see 'ss -ltnp' on the host.",
                final=True,
            )
        name = (self._served_names or ids)[0]
        answer = self._http(
            "/v1/completions",
            {"model": name, "prompt": "1", "max_tokens": 1, "temperature": 0},
            self._token_timeout_s,
        )
        if answer[0] in (400, 404, 405):  # an engine that serves chat only
            message = {"role": "user", "content": "1"}
            answer = self._http(
                "/v1/chat/completions", {"model": name, "messages": [message], "max_tokens": 1}, self._token_timeout_s
            )
        reply = _json(answer)
        usage = reply.get("usage") if isinstance(reply, dict) else None
        if answer[0] != 200:
            return unanswered("the request for one token", answer)
        tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if not isinstance(tokens, int) or tokens < 1:
            return Lack("token", "answered the request for one token without a token")
        return None

    def _facts(self, unit: UnitState, waited_s: float) -> dict[str, Any]:
        version = _json(self._http("/version"))
        ready_s = None
        if unit.started_us and unit.active_us and unit.active_us >= unit.started_us:
            ready_s = round((unit.active_us - unit.started_us) / 1e6, 1)
        return {
            "ready": True,
            "ready_s": ready_s,
            "waited_s": round(waited_s, 1),
            "milestones": self._reader.phases.milestones,
            "phases": self._reader.phases.took_s,
            "engine_version": _plain(version.get("version")) if isinstance(version, dict) else None,
            "models": self._models,
            "max_model_len": self._models[0]["max_model_len"],
            "kv_cache": parse_cache_info(self._http("/metrics")[1]),
            "unit": unit.as_dict(),
        }

    def _read_journal(self) -> None:
        if self._since_us is None:
            return
        lines, self._cursor = self._backend.follow(self._instance, self._since_us, self._cursor)
        for line in lines:
            if self._reader.fatal is not None:
                self._after += 1
            if self._after <= AFTER_LINES or len(self._tail) < EXCERPT_LINES:
                self._tail.append(line.text)
            self._reader.feed(line.text, (line.monotonic_us - self._since_us) / 1e6)
            if self._reader.fatal is not None and self._fatal_us is None:
                self._fatal_us = line.monotonic_us

    def _show(self, phase: str) -> None:
        """Progress: the phase, what of it is done, and how long it was expected to take."""
        now = self._clock()
        if phase != self._phase_seen[0]:
            self._phase_seen = (phase, now)
        phases = self._reader.phases
        done, total, unit = phases.done, phases.total, None
        if done is not None and total:
            unit = {LOADING: "shards", GRAPHS: "graphs"}.get(phase)
            if phase == LOADING and self._size_bytes:
                done, total, unit = self._size_bytes * done // total, self._size_bytes, "B"
        detail = progress_detail(phase, now - self._phase_seen[1], self._expected, self._timeout_s)
        self._progress.update(phase=phase, done=done, total=total, unit=unit, detail=detail)

    def _last_line(self) -> str | None:
        return self._tail[-1] if self._tail else None

    def _refuse_half_served(self, unit: UnitState) -> None:
        """Fail where an engine that was followed answers, and said on the way that a part of it does not work."""
        self._read_journal()
        fatal = self._reader.fatal
        cause = BY_NAME[fatal.name] if fatal else None
        if fatal is not None and isinstance(cause, Signature) and cause.serves:
            self._fail(fatal, unit)

    def _gave_up(self, unit: UnitState) -> bool:
        """Whether the engine ended for a reason that the next start would meet again."""
        if not unit.sub.startswith("auto-restart") or unit.job_pending:
            return False
        killed = unit.result == "oom-kill" or unit.exit_status in SIGKILL_STATUS
        return killed or self._reader.probable is not None or self._reader.unexplained

    def _gone(self, unit: UnitState) -> Diagnosis:
        """Why the unit is not up any more, as far as systemd tells."""
        return replace(end_of_unit(unit.active, unit.result, unit.exit_status), line=self._last_line())

    def _late(self, waited_s: float) -> Diagnosis:
        hint = self._reader.hint
        phase = self._reader.phases.phase
        found = observed("timeout", f"{waited_s:.0f}", phase, line=self._reader.first_error or self._last_line())
        # A hint explains a wait without an end; an error on the way explains it better.
        if hint is not None and self._reader.first_error is None:
            found = replace(
                found, remedy=f"{hint.sentence[0].upper()}{hint.sentence[1:]}: {hint.remedy}", line=hint.line
            )
        return found

    def _explained(self, diagnosis: Diagnosis) -> Diagnosis:
        """*diagnosis*, or why the process was killed where somebody knows; before the container is gone."""
        if diagnosis.name not in KILLED:
            return diagnosis
        try:
            kernel = self._backend.kernel_log(self._since_us) if self._since_us else []
            return killed_for_memory(diagnosis, kernel, self._backend.oom_killed(self._instance))
        except EngineError:
            return diagnosis

    def _since_it_gave_up(self, unit: UnitState) -> float | None:
        """Seconds since the line that ends the wait, or else the end of its process; None where it had neither."""
        ended_us = unit.ended_us if unit.ended_us and unit.ended_us >= (self._since_us or 0) else None
        gave_up_us = self._fatal_us or ended_us
        return None if gave_up_us is None else round(max(0.0, self._clock() - gave_up_us / 1e6), 2)

    def _stop(self, unit: UnitState) -> bool:
        """End what failed, else it would hold its GPUs, or start again and again; whether that could be done.

        EngineError without a diagnosis where another run has launched the instance since: what runs is that one's.
        """
        with self._claim.held() if self._claim else contextlib.nullcontext(True) as ours:
            if not ours:
                raise EngineError(
                    f"Gave up waiting for {self._service}: another run has launched {self._instance} meanwhile, and"
                    " what runs belongs to that one; wait for its end, and run again if you still need to.",
                    milestones=self._reader.phases.milestones,
                    phases=self._reader.phases.took_s,
                    unit=unit.as_dict(),
                    stopped=False,
                )
            try:
                self._backend.end(self._instance)
            except EngineError:
                return False
            return True

    def _fail(self, diagnosis: Diagnosis, unit: UnitState) -> NoReturn:
        diagnosis = self._explained(diagnosis)
        # It goes to the terminal and into a record.
        diagnosis = replace(diagnosis, line=redact(diagnosis.line) if diagnosis.line else None)
        diagnosed_after_s = self._since_it_gave_up(unit)
        stopped = self._stop(unit)
        line = f": {diagnosis.line}" if diagnosis.line else ""
        raise EngineError(
            f"{self._service} did not become ready, {diagnosis.sentence}{line} - {diagnosis.remedy} ({diagnosis.id})",
            diagnosis=diagnosis.as_dict(),
            diagnosed_after_s=diagnosed_after_s,
            excerpt=[redact(line) for line in self._tail],
            milestones=self._reader.phases.milestones,
            phases=self._reader.phases.took_s,
            unit=unit.as_dict(),
            stopped=stopped,
        )


def weights_bytes(plan: Mapping[str, Any]) -> int | None:
    """Size of the weights in the model's folder on this host; None where the plan mounts none or it has none."""
    source = next((mount.get("source") for mount in plan.get("mounts") or [] if mount.get("kind") == "model"), None)
    if not source:
        return None
    try:
        return sum(path.stat().st_size for path in Path(source).glob("*.safetensors")) or None
    except OSError:
        return None


def earlier_records(state_dir: Path, instance: str) -> list[Record]:
    """The newest records of this instance's deployments that the host keeps; what cannot be read is left out."""
    try:
        names = sorted((path.name for path in (state_dir / "records").iterdir()), reverse=True)
    except OSError:
        return []
    wanted = path_component(instance)
    records = []
    for name in names:
        said = parse_spool_name(name)
        if said is None or said.kind != "deploy" or said.instance != wanted:
            continue
        try:
            records.append(parse(read_text(state_dir / "records" / name)))
        except Invalid:
            continue
        if len(records) == NEWEST_RECORDS:
            break
    return records


def await_instance(
    backend: Backend,
    given: dict[str, Any],
    plan: dict[str, Any] | None,
    api_key: str | None,
    *,
    progress: Progress,
    started: bool = True,
    check: bool = False,
    state_dir: Path | None = None,
    generation: int | None = None,
) -> dict[str, Any]:
    """Facts of the instance that a plan, or what is *given* in its place, describes; see Waiter.

    What earlier starts took is read from the records below *state_dir*. *generation* is the one that was started.
    """
    plan = plan or {}
    instance = check_name(given.get("instance") or plan.get("instance") or "")
    fault = plan_fault(plan, "the plan", () if given.get("port") else ("port",))
    if fault:
        raise EngineError(f"Cannot wait for {instance}: {fault}; give the plan as vllm_plan sealed it.")
    if plan.get("api_key_required") and not api_key:
        reason = f"Cannot ask {instance} for a token: it requires an API key and none was given; set its api_key."
        if check:
            return {"ready": False, "reason": reason, "milestones": {}, "unit": backend.state(instance).as_dict()}
        raise EngineError(reason)
    address = given.get("address") or probe_address(plan.get("argv") or [])
    waiter = Waiter(
        backend,
        instance,
        Http(f"http://{address}:{int(given.get('port') or plan['port'])}", api_key),
        served_names=given.get("served_names") or plan.get("served_names"),
        timeout_s=float(given.get("timeout_s") or plan.get("start_timeout_s") or START_TIMEOUT_S),
        started=started,
        expected=expected_phases(earlier_records(state_dir, instance), plan.get("launch_fingerprint"))
        if state_dir and started
        else None,
        size_bytes=weights_bytes(plan) if started else None,
        claim=Claim(state_dir / "instances" / instance, Files(), generation) if state_dir and started else None,
        progress=progress,
    )
    return waiter.look() if check else waiter.wait()
