# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting until an instance serves, or saying why it does not. Private to socle.inference."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, NoReturn

from ansible_collections.socle.inference.plugins.module_utils import _exposition as exposition
from ansible_collections.socle.inference.plugins.module_utils._engine.backend import Backend, UnitState, check_name
from ansible_collections.socle.inference.plugins.module_utils._engine.signatures import Diagnosis, Reader
from ansible_collections.socle.inference.plugins.module_utils._engine.unit import START_TIMEOUT_S, probe_address
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

POLL_S = 1.0
CALL_TIMEOUT_S = 5.0
TOKEN_TIMEOUT_S = 120.0
CONFIRM_S = 60.0
LOOP_RESTARTS = 2
EXCERPT_LINES = 12

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
            with self._opener.open(request, timeout=timeout_s) as response:
                return int(response.status), response.read(4 << 20)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(1 << 16)
        except (OSError, ValueError, EOFError):
            return 0, b""
        except Exception as error:  # http.client's own errors, for a server that dies while it answers
            return 0, str(error).encode()


def _json(answer: Answer) -> Any:
    try:
        return json.loads(answer[1])
    except ValueError:
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
        return int(value) if value.isdigit() else None

    return {key: number(key) for key in ("num_gpu_blocks", "block_size", "kv_cache_size_tokens")}


class Waiter:
    """Watches one instance from its unit's start to its first token."""

    def __init__(
        self,
        backend: Backend,
        instance: str,
        http: Callable[..., Answer],
        *,
        served_names: list[str] | None = None,
        timeout_s: float = 1800.0,
        started: bool = True,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._backend = backend
        self._instance = instance
        self._service = backend.service(instance)
        self._http = http
        self._served_names = served_names or []
        self._timeout_s = timeout_s
        self._started = started
        self._token_timeout_s = TOKEN_TIMEOUT_S if started else CONFIRM_S
        self._progress = progress or Progress()
        self._clock = clock
        self._sleep = sleep
        self._reader = Reader()
        self._tail: deque[str] = deque(maxlen=EXCERPT_LINES)
        self._cursor: str | None = None
        self._since_us: int | None = None
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
                    self._fail(Diagnosis(lack.id, f"it {lack.sentence}", lack.remedy), unit)
                if lack is None:
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
                self._fail(self._reader.fatal or self._gone(unit), unit)
            if settled:
                if first_restarts is None or unit.restarts < first_restarts:
                    first_restarts = unit.restarts
                if unit.restarts - first_restarts >= LOOP_RESTARTS:
                    self._fail(self._loop(unit.restarts - first_restarts), unit)
            waited = self._clock() - began
            if waited >= self._timeout_s:
                self._fail(self._late(waited), unit)
            self._progress.update(
                phase=self._reader.phase if not token_shown else "waiting for the health check",
                done=self._reader.done,
                total=self._reader.total,
                unit="shards" if self._reader.total else None,
                detail=f"of at most {self._timeout_s:.0f} s",
            )
            self._sleep(0.25 if waited < 2 or token_shown else POLL_S)

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
        if answer[0] != 200 or not isinstance(models, dict):
            return unanswered("/v1/models", answer)
        self._models = [
            {"id": item.get("id"), "root": item.get("root"), "max_model_len": item.get("max_model_len")}
            for item in models.get("data") or []
            if isinstance(item, dict)
        ]
        ids = [item["id"] for item in self._models]
        missing = [name for name in self._served_names if name not in ids]
        if missing or not ids:
            return Lack(
                "served_names",
                f"lists the models {ids}, expected {self._served_names or 'at least one'}",
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
        if not isinstance(usage, dict) or (usage.get("completion_tokens") or 0) < 1:
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
            "milestones": self._reader.milestones,
            "engine_version": version.get("version") if isinstance(version, dict) else None,
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
            if self._reader.fatal is None or len(self._tail) < EXCERPT_LINES:
                self._tail.append(line.text)
            self._reader.feed(line.text, (line.monotonic_us - self._since_us) / 1e6)

    def _error_line(self) -> str | None:
        return self._reader.first_error or (self._tail[-1] if self._tail else None)

    def _gone(self, unit: UnitState) -> Diagnosis:
        if unit.active == "inactive" and unit.result == "success":
            sentence = "the unit was stopped, or the engine ended by itself"
        elif unit.result == "timeout":
            sentence = "systemd gave up waiting for its health check (TimeoutStartSec)"
        elif unit.result == "start-limit-hit":
            sentence = "it failed so often that systemd does not start it any more"
        else:
            sentence = f"it ended with status {unit.exit_status} ({unit.result})"
        return Diagnosis("unit_failed", sentence, "The excerpt shows its last lines.", self._error_line())

    def _loop(self, count: int) -> Diagnosis:
        return Diagnosis(
            "restart_loop",
            f"it ends soon after each start ({count} restarts while waiting)",
            "The excerpt shows its last lines.",
            self._error_line(),
        )

    def _late(self, waited_s: float) -> Diagnosis:
        return Diagnosis(
            "timeout",
            f"it does not serve after {waited_s:.0f} s, last seen at '{self._reader.phase}'",
            "If it is only slow (cold disks, first compilation), raise start_timeout_s; else the excerpt shows where"
            " it hangs.",
            self._error_line(),
        )

    def _fail(self, diagnosis: Diagnosis, unit: UnitState) -> NoReturn:
        # Else it would hold its GPUs, or start again and again, as a generation that counts as failed.
        try:
            self._backend.stop(self._instance)
            stopped = True
        except EngineError:
            stopped = False
        line = f": {diagnosis.line}" if diagnosis.line else ""
        raise EngineError(
            f"{self._service} did not become ready, {diagnosis.sentence}{line} - {diagnosis.remedy}",
            diagnosis=diagnosis.as_dict(),
            excerpt=list(self._tail),
            milestones=self._reader.milestones,
            unit=unit.as_dict(),
            stopped=stopped,
        )


def await_instance(
    backend: Backend,
    given: dict[str, Any],
    plan: dict[str, Any] | None,
    api_key: str | None,
    *,
    progress: Progress,
    started: bool = True,
    check: bool = False,
) -> dict[str, Any]:
    """Facts of the instance that a plan, or what is *given* in its place, describes; see Waiter."""
    plan = plan or {}
    instance = check_name(str(given.get("instance") or plan.get("instance") or ""))
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
        progress=progress,
    )
    return waiter.look() if check else waiter.wait()
