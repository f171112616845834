# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The double itself: three APIs, /v1/models, /tokenize, /version, /health and /metrics on a thread each."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.simulators.engine import apis, mind, said

FAULTS = {
    "wrong_model_id": "another model is served",
    "wrong_length": "/v1/models names half the length",
    "wrong_version": "/version names another release",
    "empty_text": "answers have no text",
    "usage_off": "usage does not add up",
    "no_usage": "answers carry no usage",
    "cut_stream": "streams end before [DONE]",
    "reset_stream": "the connection closes in the middle of a stream",
    "error_frame": "an error comes inside a 200 stream",
    "aborted": "streams end with finish_reason abort",
    "tokenize_off": "/tokenize counts one token more",
    "over_long_500": "too long is a 500",
    "over_long_wordless": "too long is a 400 that does not say how long is allowed",
    "any_model": "any model name is answered",
    "broken_json_200": "a broken body is a 200",
    "broken_json_500": "a broken body is a 500",
    "dies_of_broken_json": "after a broken body every request is a 500",
    "no_metrics": "/metrics is empty",
    "no_auth": "the key is not asked for",
    "refuses_key": "the right key is refused",
    "few_tokens": "half the tokens that were asked for",
    "cache_ignores_salt": "the prefix cache hits whatever the salt",
    "messages_missing": "/v1/messages is a 404",
    "messages_empty": "/v1/messages answers without text",
    "messages_block_open": "a streamed message leaves its block open",
    "messages_no_stop": "a streamed message has no message_stop",
    "messages_error": "an error comes inside a streamed message",
    "responses_missing": "/v1/responses is a 404",
    "responses_usage_off": "the usage of /v1/responses does not add up",
    "responses_delta_lost": "a delta of a streamed response is missing",
    "responses_number_gap": "a sequence number of a streamed response is missing",
    "responses_no_end": "a streamed response is not closed",
    "system_dropped": "system prompts of messages and responses are dropped",
    "stop_ignored": "stop strings are ignored",
    "stop_unnamed": "the stop string that ended an answer is not named",
    "wrong_types_500": "a field of a wrong type is a 500",
    "wrong_types_pass": "a field of a wrong type passes",
    "wrong_types_hang_up": "a field of a wrong type closes the connection without an answer",
    "random_answers": "no two answers are equal",
    "seed_ignored": "with a temperature no two answers are equal",
    "text_damaged": "characters of four bytes are replaced",
    "required_ignored": "a required call is not made",
    "named_ignored": "another tool than the named one is called",
    "auto_never": "no tool is called that the request does not force",
    "auto_always": "a tool is called where none is of use",
    "wrong_city": "a call asks for another city",
    "parallel_one": "one call of two is made",
    "result_dropped": "the results of tools do not reach the model",
    "arguments_null": "the arguments of calls are null",
    "long_argument_lost": "a stream loses a piece of long arguments",
    "tool_unknown": "a tool is called that was not offered",
    "call_in_text": "calls stay in the text",
    "call_without_id": "calls have no id",
    "calls_of_one_id": "all calls of an answer have one id",
    "calls_end_for_stop": "answers with calls end as answers without",
    "thoughts_in_text": "thoughts are part of the text",
    "thoughts_missing": "thoughts are dropped",
    "thinking_stuck": "thinking cannot be turned off",
    "effort_refused": "levels of effort are refused",
    "effort_500": "levels that the template does not know are a 500",
    "effort_ignored": "levels of effort do nothing",
    "preset_refused": "a penalty is refused",
    "limit_early": "the context ends a token before its limit",
    "limit_late": "the context ends a token after its limit",
    "slow": "the first token takes half a second more",
    "images_blind": "pictures are not seen",
    "images_mixed": "pictures are in another order",
    "images_mirrored": "numbers are read from the right",
    "images_fewer": "fewer pictures are accepted than were planned",
    "images_unlimited": "any number of pictures is accepted",
    "cache_corrupts": "answers out of the cache are other ones",
    "eviction_corrupts": "answers are other ones once blocks were given to others",
    "conversation_drifts": "long conversations out of the cache go another way",
    "soak_null": "under load some calls have null arguments",
    "soak_half": "under load some calls are cut",
    "soak_empty": "under load some turns are empty",
    "soak_dies": "under load some requests are a 500",
    "knows_little": "easy questions are answered wrongly",
    "forgets": "after a load answers are wrong",
    "needle_lost": "long inputs are not read to their end",
}

STALLS = {
    "frozen_core": "requests for tokens get no answer and the counters stand, while /health is a 200",
    "frozen_server": "connections are accepted, and nothing is ever answered",
    "asleep": "requests for tokens get no answer, and /metrics says that it sleeps",
    "fails_tokens": "every request for tokens is a 500",
}
"""Faults that a watchdog has to tell apart. They may come and go while the double serves."""

TEXT = ["Zürich", "liegt", "am", "See", "日本語", "naïve", "🚂", "and", "so", "on"]
TEMPLATE_TOKENS = 5


@dataclass
class Behaviour:
    """What the double does. Times are exact to the machine's sleep."""

    model: str = "double"
    root: str = "/models/Double"
    max_model_len: int = 512
    version: str = "0.32.0+cpu"
    api_key: str | None = None
    ttft_s: float = 0.0
    itl_s: float = 0.0
    tokens_per_chunk: int = 1
    cut_characters: bool = True
    """Write each event in two pieces, cut inside a character where there is one."""
    prefill_tokens_per_s: float | None = None
    """How fast prompts are read, one after the other; token counters move only at their end."""
    images: int = 4
    """Of one request."""
    cache_tokens: int = 1_000_000
    """What the prefix cache holds."""
    faults: frozenset[str] = frozenset()


@dataclass
class State:
    """What /metrics counts."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    seen: dict[str, int] = field(default_factory=dict)
    """Prompts in the cache, the oldest first, with their tokens."""
    evicted: set[str] = field(default_factory=set)
    salts: set[str] = field(default_factory=set)
    hits: int = 0
    finished: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    ttft_s: float = 0.0
    e2e_s: float = 0.0
    dead: bool = False
    loaded: bool = False
    """A load was seen."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    running: int = 0
    chunks: int = 0
    """Steps of the prefill under way, which only the share of the cache in use shows."""
    page: str | None = None
    """/metrics as it was when the core froze."""
    prefill: threading.Lock = field(default_factory=threading.Lock)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is no fault of the double's."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class EngineDouble:
    """A context manager: serves on 127.0.0.1 until the block ends."""

    def __init__(self, behaviour: Behaviour | None = None, port: int = 0) -> None:
        self.behaviour = behaviour or Behaviour()
        self.state = State()
        double = self

        class Handler(_Handler):
            behaviour = double.behaviour
            state = double.state

        self._server = _Server(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> EngineDouble:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def count_tokens(messages: list[dict[str, Any]]) -> int:
    """One token for a word, and the template's."""
    return TEMPLATE_TOKENS + sum(len(str(message.get("content", "")).split()) for message in messages)


def _sure_of(word: str) -> dict[str, Any]:
    """A token with its logarithm of probability, far ahead of the next likeliest."""
    top = [{"token": word, "logprob": -0.01}, {"token": "?", "logprob": -6.0}]
    return {"token": word, "logprob": -0.01, "top_logprobs": top}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # As real servers: else the kernel holds a small chunk back until the one before is acknowledged.
    disable_nagle_algorithm = True
    behaviour: Behaviour
    state: State

    def log_message(self, *_args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._hang("frozen_server")
        path = self.path
        if path == "/health":
            self._send(500 if self.state.dead else 200, b"", "text/plain")
        elif path == "/version":
            version = "0.1.0" if self._faulty("wrong_version") else self.behaviour.version
            self._json(200, {"version": version})
        elif path == "/metrics":
            self._send(200, self._page().encode(), "text/plain; version=0.0.4")
        elif path == "/is_sleeping":
            self._json(200, {"is_sleeping": self._faulty("asleep")})
        elif path == "/v1/models":
            if self._let_in():
                self._json(200, {"object": "list", "data": [self._model()]})
        else:
            self._error(404, "Not Found")

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._hang("frozen_server")
        if self.path.startswith("/v1") and not self._let_in():
            return
        if self.state.dead:
            self._error(500, "EngineCore is dead")
            return
        try:
            body = json.loads(raw)
        except ValueError:
            self._broken()
            return
        if self.path == "/tokenize":
            count = count_tokens(body["messages"]) + self._template_tokens(body.get("chat_template_kwargs") or {})
            self._json(200, {"count": count + self._faulty("tokenize_off"), "tokens": []})
        elif self.path in (*apis.LIMITS, "/v1/completions"):
            self._hang("frozen_core", "asleep")
            if self._faulty("fails_tokens"):
                self._error(500, "Internal Server Error")
            else:
                self._asked(body)
        else:
            self._error(404, "Not Found")

    def _faulty(self, name: str) -> bool:
        return name in self.behaviour.faults

    def _hang(self, *faults: str) -> None:
        """Wait while one of *faults* lasts."""
        while any(map(self._faulty, faults)):
            time.sleep(0.01)

    def _let_in(self) -> bool:
        key = self.behaviour.api_key
        sent = self.headers.get("Authorization")
        right = sent == f"Bearer {key}" and not self._faulty("refuses_key")
        if key is None or self._faulty("no_auth") or right:
            return True
        self._json(401, {"error": "Unauthorized"})
        return False

    def _broken(self) -> None:
        if self._faulty("dies_of_broken_json"):
            self.state.dead = True
        if self._faulty("broken_json_200"):
            self._json(200, {})
        elif self._faulty("broken_json_500"):
            self._error(500, "Internal Server Error")
        else:
            self._error(400, "JSON decode error")

    def _model(self) -> dict[str, Any]:
        length = self.behaviour.max_model_len
        return {
            "id": "something-else" if self._faulty("wrong_model_id") else self.behaviour.model,
            "object": "model",
            "root": self.behaviour.root,
            "max_model_len": length // 2 if self._faulty("wrong_length") else length,
        }

    def _asked(self, body: Any) -> None:
        """A request for tokens, by any API."""
        missing = {"/v1/messages": "messages_missing", "/v1/responses": "responses_missing"}.get(self.path)
        if missing and self._faulty(missing):
            self._error(404, "Not Found")
            return
        if self.path in apis.LIMITS:
            wrong = apis.wrong_field(self.path, body)
            if wrong and self._faulty("wrong_types_500"):
                self._error(500, "Internal Server Error")
                return
            if wrong and self._faulty("wrong_types_hang_up"):
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if wrong and self._faulty("wrong_types_pass"):
                self._json(200, {})
                return
            if wrong:
                self._error(400, f"{wrong}: Input should be valid")
                return
            effort = self._effort(body)
            if effort is None:
                return
            body = apis.as_chat(self.path, {**body, "chat_template_kwargs": effort}, self._faulty)
            if self._faulty("preset_refused") and "presence_penalty" in body:
                self._error(400, "presence_penalty: not allowed")
                return
            images, most = mind.count_images(body["messages"]), self.behaviour.images - self._faulty("images_fewer")
            if images > most and not self._faulty("images_unlimited"):
                self._error(400, f"At most {most} image(s) may be provided in one prompt.")
                return
        self._generate(body)

    def _effort(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """The template's options with the effort that the request says; None where it was refused."""
        options = dict(body.get("chat_template_kwargs") or {})
        said_by = {
            "/v1/chat/completions": body.get("reasoning_effort"),
            "/v1/messages": (body.get("output_config") or {}).get("effort"),
            "/v1/responses": (body.get("reasoning") or {}).get("effort"),
        }
        level = said_by[self.path]
        if level == "none" and self.path != "/v1/messages":
            options["enable_thinking"] = False
            return options
        level = level or options.get("reasoning_effort")
        if level is None:
            return options
        if level not in mind.EFFORT_TOKENS:
            self._error(500 if self._faulty("effort_500") else 400, f"reasoning_effort {level} is not supported")
            return None
        if self._faulty("effort_refused"):
            self._error(400, "reasoning_effort is not supported")
            return None
        return {**options, "reasoning_effort": level}

    def _template_tokens(self, options: dict[str, Any], ignored: bool = False) -> int:
        """What the options of the template add to a prompt; with *ignored* levels of effort, without these."""
        off = mind.OFF_TOKENS if options.get("enable_thinking") is False else 0
        level = "" if ignored else options.get("reasoning_effort", "")
        return off + mind.EFFORT_TOKENS.get(level, 0)

    def _generate(self, body: dict[str, Any]) -> None:
        if "prompt" in body:
            body = {**body, "messages": [{"role": "user", "content": body["prompt"]}]}
        with self.state.lock:
            self.state.running += 1
        try:
            self._prefill(count_tokens(body["messages"]))
            self._chat(body)
        finally:
            with self.state.lock:
                self.state.running -= 1

    def _prefill(self, prompt: int) -> None:
        rate = self.behaviour.prefill_tokens_per_s
        if rate is None:
            return
        with self.state.prefill:
            until = time.monotonic() + prompt / rate
            while time.monotonic() < until:
                time.sleep(0.02)
                self.state.chunks += 1

    def _chat(self, body: dict[str, Any]) -> None:
        limit = self.behaviour.max_model_len
        if body.get("model") != self.behaviour.model and not self._faulty("any_model"):
            self._error(404, f"The model `{body.get('model')}` does not exist.")
            return
        options = body.get("chat_template_kwargs") or {}
        prompt = count_tokens(body["messages"]) + self._template_tokens(options, self._faulty("effort_ignored"))
        room = limit - self._faulty("limit_early") + self._faulty("limit_late")
        if prompt >= room:
            if self._faulty("over_long_500"):
                self._error(500, "Internal Server Error")
            elif self._faulty("over_long_wordless"):
                self._error(400, "Bad Request")
            else:
                self._error(400, f"This model's maximum context length is {limit} tokens. Your request has {prompt}.")
            return
        spoiled = self._note_prefix(body, prompt)
        if self._faulty("soak_dies") and mind.soaked(body):
            self._error(500, "EngineCore encountered an issue")
            return
        if "Continue this list" in str(body["messages"][-1:]):
            self.state.loaded = True
        meant = mind.answer(body, self._faulty, self.state.loaded)
        if meant is not None and body["max_tokens"] > 1 and "prompt" not in body:
            self._say(body, prompt, meant)
            return
        # As newer versions of vLLM, which answer with what fits.
        body = {**body, "max_tokens": min(body["max_tokens"], room - prompt)}
        tokens = body["max_tokens"] // 2 if self._faulty("few_tokens") else body["max_tokens"]
        words = self._words(body, tokens)
        if spoiled:
            words[len(words) // 2 :] = ["corrupted "] * (len(words) - len(words) // 2)
        finish, stop = "length", None
        text = "".join(words)
        if body.get("stop") and body["stop"][0] in text and not self._faulty("stop_ignored"):
            finish, stop = "stop", body["stop"][0]
            words = [text.partition(stop)[0]]
            tokens = 1
        if self.path in ("/v1/messages", "/v1/responses"):
            self._other_api(body, prompt, tokens, words, finish, stop)
            return
        started = time.monotonic()
        if body.get("stream"):
            first_s = self._stream(body, prompt, tokens, words)
        else:
            time.sleep(self.behaviour.ttft_s + self.behaviour.itl_s * (tokens - 1))
            first_s = self.behaviour.ttft_s
            choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "stop_reason": self._named(stop)}
            if "prompt" in body:
                choice["text"] = self._echo(body) + "".join(words)
            else:
                choice["message"] = {"role": "assistant", "content": "".join(words)}
            if body.get("logprobs"):
                choice["logprobs"] = {"content": [_sure_of(word) for word in words]}
            answer: dict[str, Any] = {"model": self.behaviour.model, "choices": [choice]}
            if not self._faulty("no_usage"):
                answer["usage"] = self._usage(prompt, tokens)
            self._count(prompt, tokens, first_s, time.monotonic() - started)
            self._json(200, answer)
            return
        self._count(prompt, tokens, first_s, time.monotonic() - started)

    def _say(self, body: dict[str, Any], prompt: int, meant: mind.Said) -> None:
        """An answer with a meaning; how long it takes is of no interest."""
        tokens = min(len((meant.text + meant.reasoning).split()) + 4 * len(meant.calls) or 1, body["max_tokens"])
        self._count(prompt, tokens, 0.0, 0.0)
        model = self.behaviour.model
        if self.path == "/v1/chat/completions":
            whole, follow = said.chat_whole, said.chat_events
            arguments: tuple[Any, ...] = (meant, model, self._usage(prompt, tokens), self._faulty)
        else:
            other = self.path == "/v1/messages"
            whole = said.messages_whole if other else said.responses_whole
            follow = said.messages_events if other else said.responses_events
            arguments = (meant, model, prompt, tokens, self._faulty)
        if not body.get("stream"):
            self._json(200, whole(*arguments))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in follow(*arguments):
            # Chats tell their usage where it is asked for only.
            if event.get("choices") == [] and not (body.get("stream_options") or {}).get("include_usage"):
                continue
            self._event(event, event.get("type"))
        if self.path == "/v1/chat/completions":
            self._write(b"data: [DONE]\n\n")
        self._write(b"")

    def _words(self, body: dict[str, Any], tokens: int) -> list[str]:
        if self._faulty("empty_text") or (self._faulty("messages_empty") and self.path == "/v1/messages"):
            return []
        random = self._faulty("random_answers") or (self._faulty("seed_ignored") and body.get("temperature"))
        first = self.state.finished if random else 0
        return [TEXT[(first + place) % len(TEXT)] + " " for place in range(tokens)]

    def _named(self, stop: str | None) -> str | None:
        return None if self._faulty("stop_unnamed") else stop

    def _echo(self, body: dict[str, Any]) -> str:
        """The prompt, where it is asked back."""
        text = str(body["prompt"]) if body.get("echo") else ""
        return (
            "".join("\ufffd" if ord(each) > 0xFFFF else each for each in text) if self._faulty("text_damaged") else text
        )

    def _other_api(
        self, body: dict[str, Any], prompt: int, tokens: int, words: list[str], finish: str, stop: str | None
    ) -> None:
        """Anthropic's, or the responses of OpenAI."""
        model, text = self.behaviour.model, "".join(words)
        time.sleep(self.behaviour.ttft_s + self.behaviour.itl_s * (tokens - 1))
        self._count(prompt, tokens, self.behaviour.ttft_s, self.behaviour.ttft_s + self.behaviour.itl_s * (tokens - 1))
        if self.path == "/v1/messages":
            answer = apis.messages_answer(model, text, finish, self._named(stop), prompt, tokens)
            events = apis.messages_events(answer, words, self._faulty)
            if self._faulty("messages_error"):
                events.insert(4, {"type": "error", "error": {"message": "EngineCore encountered an issue"}})
        else:
            answer = apis.responses_answer(model, text, finish, prompt, tokens)
            answer["usage"]["total_tokens"] += self._faulty("responses_usage_off")
            events = apis.responses_events(answer, words, self._faulty)
        if not body.get("stream"):
            self._json(200, answer)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            self._event(event, event["type"])
        self._write(b"")

    def _note_prefix(self, body: dict[str, Any], prompt: int) -> bool:
        """Whether the cache spoils the answer."""
        salt = "" if self._faulty("cache_ignores_salt") else str(body.get("cache_salt", ""))
        words = json.dumps(body["messages"]).split()
        key = salt + (words[0] if self._faulty("cache_ignores_salt") else " ".join(words))
        with self.state.lock:
            self.state.requests.append(body)
            state, given = self.state, str(body.get("cache_salt", ""))
            spoiled = (
                (self._faulty("cache_corrupts") and given in state.salts)
                or (self._faulty("eviction_corrupts") and key in state.evicted)
                or (self._faulty("conversation_drifts") and given in state.salts and len(body["messages"]) > 4)
            )
            if given:
                state.salts.add(given)
            if key in state.seen:
                state.hits += prompt // 2
            state.seen[key] = prompt
            while sum(state.seen.values()) > self.behaviour.cache_tokens:
                oldest = next(iter(state.seen))
                state.evicted.add(oldest)
                del state.seen[oldest]
            return spoiled

    def _count(self, prompt: int, tokens: int, first_s: float, whole_s: float) -> None:
        with self.state.lock:
            self.state.finished += 1
            self.state.prompt_tokens += prompt
            self.state.generation_tokens += tokens
            self.state.ttft_s += first_s
            self.state.e2e_s += whole_s

    def _usage(self, prompt: int, tokens: int) -> dict[str, int]:
        total = prompt + tokens + self._faulty("usage_off")
        return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": total}

    def _stream(self, body: dict[str, Any], prompt: int, tokens: int, words: list[str]) -> float:
        options = body.get("stream_options") or {}
        running = bool(options.get("continuous_usage_stats")) and not self._faulty("no_usage")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._write(b": a comment, as proxies send to keep the line open\n\n")
        self._event(
            self._delta({"role": "assistant", "content": ""}, None, self._usage(prompt, 0) if running else None)
        )
        step = self.behaviour.tokens_per_chunk
        for made in range(0, tokens, step):
            time.sleep(self.behaviour.itl_s if made else self.behaviour.ttft_s + 0.5 * self._faulty("slow"))
            if made >= tokens // 2 and self._faulty("error_frame"):
                self._event({"error": {"message": "EngineCore encountered an issue", "code": 500}})
            if made >= tokens // 2 and self._faulty("reset_stream"):
                self.close_connection = True
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                return self.behaviour.ttft_s
            done = min(made + step, tokens)
            last = done == tokens
            reason = ("abort" if self._faulty("aborted") else "length") if last else None
            text = "".join(words[made:done])
            self._event(self._delta({"content": text}, reason, self._usage(prompt, done) if running else None))
        if not self._faulty("cut_stream"):
            if options.get("include_usage") and not self._faulty("no_usage"):
                usage = self._usage(prompt, tokens)
                self._event({"model": self.behaviour.model, "choices": [], "usage": usage})
            self._write(b"data: [DONE]\n\n")
        self._write(b"")
        return self.behaviour.ttft_s

    def _delta(self, delta: dict[str, Any], reason: str | None, usage: dict[str, int] | None) -> dict[str, Any]:
        chunk: dict[str, Any] = {
            "object": "chat.completion.chunk",
            "model": self.behaviour.model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
        }
        return {**chunk, "usage": usage} if usage else chunk

    def _event(self, body: dict[str, Any], name: str | None = None) -> None:
        named = f"event: {name}\n" if name else ""
        data = f"{named}data: {json.dumps(body, ensure_ascii=False)}\n\n".encode()
        wide = next((place for place, byte in enumerate(data) if byte >= 0xC0), None)
        if wide is None or not self.behaviour.cut_characters:
            self._write(data)
        else:
            self._write(data[: wide + 1])
            self._write(data[wide + 1 :])

    def _write(self, piece: bytes) -> None:
        """One HTTP chunk; an empty one ends the answer."""
        self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        self.wfile.flush()

    def _page(self) -> str:
        with self.state.lock:
            if not self._faulty("frozen_core"):
                self.state.page = None
                return self._metrics()
            if self.state.page is None:
                self.state.page = self._metrics()
            return self.state.page

    def _metrics(self) -> str:
        if self._faulty("no_metrics"):
            return "# nothing\n"
        state, labels = self.state, '{engine="0",model_name="double"}'
        values = {
            "num_requests_running": state.running,
            "num_requests_waiting": 0,
            "kv_cache_usage_perc": state.chunks % 1000 / 1000,
            "prefix_cache_queries_total": state.prompt_tokens,
            "prefix_cache_hits_total": state.hits,
            "prompt_tokens_total": state.prompt_tokens,
            "generation_tokens_total": state.generation_tokens,
            "num_preemptions_total": 0,
            "request_success_total": state.finished,
            "time_to_first_token_seconds_sum": state.ttft_s,
            "time_to_first_token_seconds_count": state.finished,
            "inter_token_latency_seconds_sum": max(state.e2e_s - state.ttft_s, 0),
            "inter_token_latency_seconds_count": max(state.generation_tokens - state.finished, 0),
            "e2e_request_latency_seconds_sum": state.e2e_s,
            "e2e_request_latency_seconds_count": state.finished,
        }
        lines = [f"vllm:{name}{labels} {value}\n" for name, value in values.items()]
        held = self.behaviour.cache_tokens
        lines.append(f'vllm:cache_config_info{{block_size="16",kv_cache_size_tokens="{held}"}} 1\n')
        awake = 0 if self._faulty("asleep") else 1
        lines.append(f'vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} {awake}\n')
        return "# HELP of the double\n" + "".join(lines)

    def _error(self, status: int, message: str) -> None:
        self._json(status, {"error": {"message": message, "code": status}})

    def _json(self, status: int, body: Any) -> None:
        self._send(status, json.dumps(body).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
