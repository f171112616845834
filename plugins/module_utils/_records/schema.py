# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Schema "socle.record/1": build, parse, validate, name. Pure; private to socle.inference."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote

from ansible_collections.socle.inference.plugins.module_utils._errors import RecordError

SCHEMA = "socle.record/1"
KINDS = ("plan", "acceptance", "benchmark", "deploy", "incident")
VERDICTS = ("passed", "failed", "degraded", "error")

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
MAX_NAME = 200
MAX_NUMBER_DIGITS = 40
HASH_LENGTH = 12

_SPOOL_NAME = re.compile(rf"(\d{{8}}T\d{{6}}Z)-([^/]{{1,200}})-({'|'.join(KINDS)})-([0-9a-f]{{12}})\.json")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
_FINGERPRINT = re.compile(r"[a-z0-9-]{1,32}:[0-9a-f]{1,128}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

Record = dict[str, Any]


class Invalid(Exception):
    """Why a document is not a record: *kind* for counting, *reason* for a person."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class SpoolName(NamedTuple):
    """What the name of a spooled record says."""

    stamp: str
    instance: str
    kind: str
    digest: str


def path_component(name: str) -> str:
    """*name* as one component of a path: percent-encoded, so that it neither hides nor leaves its folder."""
    if not isinstance(name, str) or not name:
        raise RecordError(f"A name for a folder of records must be a text that is not empty, found {name!r}.")
    try:
        encoded = quote(name, safe="")
    except UnicodeEncodeError as error:
        raise RecordError(f"The name {name!r} cannot be written as UTF-8; rename the host or instance.") from error
    if encoded.startswith("."):
        encoded = "%2E" + encoded[1:]
    if len(encoded) > MAX_NAME:
        raise RecordError(
            f"The name {name[:40]!r}... takes {len(encoded)} characters as a folder, at most {MAX_NAME} are possible."
        )
    return encoded


def time_stamp(moment: str) -> str:
    """ "2026-11-30T09:28:44Z" -> "20261130T092844Z", the form that file names carry."""
    return moment[:19].replace("-", "").replace(":", "") + "Z"


def digest_of(text: str) -> str:
    """The short hash by which two copies of a record are known to be the same."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:HASH_LENGTH]


def spool_name(record: Mapping[str, Any], text: str) -> str:
    """The name of a record in the spool of its host."""
    stamp = time_stamp(record["finished"])
    return f"{stamp}-{path_component(record['instance'])}-{record['kind']}-{digest_of(text)}.json"


def parse_spool_name(name: str) -> SpoolName | None:
    """The parts of a spool name; None when *name* is not one."""
    match = _SPOOL_NAME.fullmatch(name)
    return SpoolName(*match.groups()) if match else None


def collected_name(record: Mapping[str, Any]) -> str:
    """The name of a record beside the inventory, in the folder of its host and instance."""
    return f"{time_stamp(record['finished'])}-{record['kind']}.json"


def serialise(record: Mapping[str, Any]) -> str:
    """The one text of a record: sorted, indented, with a last newline."""
    try:
        return json.dumps(record, allow_nan=False, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"The record cannot be written as JSON: {error}.") from error


def parse(text: str) -> Record:
    """A valid record from its text; raises Invalid with the kind of fault."""
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise Invalid("not JSON", "not UTF-8") from error
    if size > MAX_BYTES:
        raise Invalid("too large", f"more than {MAX_BYTES} bytes")
    try:
        document = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_integer, parse_float=_float
        )
    except Invalid:
        raise
    except RecursionError as error:
        raise Invalid("nested too deeply", f"more than {MAX_DEPTH} levels") from error
    except ValueError as error:
        raise Invalid("not JSON", str(error)) from error
    return validate(document)


def validate(document: Any) -> Record:
    """*document* if it is a record of this schema version; raises Invalid otherwise."""
    if not isinstance(document, dict):
        raise Invalid("not a record", f"expected an object, found {type(document).__name__}")
    schema = document.get("schema")
    if schema != SCHEMA:
        if isinstance(schema, str) and schema.startswith("socle.record/"):
            raise Invalid("of another schema version", f"schema {schema[:40]!r}, this version reads {SCHEMA!r}")
        raise Invalid("not a record", f"schema is {str(schema)[:40]!r}, expected {SCHEMA!r}")
    _check_values(document)
    _require(document.get("kind") in KINDS, "kind", document.get("kind"), f"one of {', '.join(KINDS)}")
    _require(document.get("verdict") in VERDICTS, "verdict", document.get("verdict"), f"one of {', '.join(VERDICTS)}")
    for key in ("host", "instance"):
        _require(_is_name(document.get(key)), key, document.get(key), "a name without control characters")
    for key in ("started", "finished"):
        _require(_is_time(document.get(key)), key, document.get(key), "UTC like 2026-11-30T09:28:44Z")
    for key in ("launch_fingerprint", "environment_fingerprint"):
        value = document.get(key)
        valid = value is None or (isinstance(value, str) and _FINGERPRINT.fullmatch(value) is not None)
        _require(valid, key, value, "algorithm:hex or null")
    generation = document.get("generation")
    valid = generation is None or (isinstance(generation, int) and not isinstance(generation, bool) and generation >= 0)
    _require(valid, "generation", generation, "a count or null")
    for key in ("tool", "environment", "results", "method"):
        _require(isinstance(document.get(key), dict), key, document.get(key), "an object")
    capacity = document.get("capacity")
    _require(capacity is None or isinstance(capacity, dict), "capacity", capacity, "an object or null")
    return document


def build(
    *,
    kind: str,
    host: str,
    instance: str,
    started: str,
    finished: str,
    verdict: str,
    tool_version: str,
    plan: Mapping[str, Any] | None = None,
    launch_fingerprint: str | None = None,
    environment_fingerprint: str | None = None,
    generation: int | None = None,
    environment: Mapping[str, Any] | None = None,
    results: Mapping[str, Any] | None = None,
    method: Mapping[str, Any] | None = None,
    secrets: Iterable[str] = (),
) -> tuple[Record, str]:
    """A record and its text. What is given wins over what *plan* says; *secrets* never get in."""
    plan = plan or {}
    surroundings = environment_of_plan(plan)
    surroundings.update(environment or {})
    secrets = [secret for secret in secrets if secret]
    document = {
        "schema": SCHEMA,
        "kind": kind,
        "host": host,
        "instance": instance,
        "launch_fingerprint": launch_fingerprint or plan.get("launch_fingerprint"),
        "environment_fingerprint": environment_fingerprint or plan.get("environment_fingerprint"),
        "generation": generation,
        "started": started,
        "finished": finished,
        "tool": {"name": "socle", "version": tool_version},
        "environment": scrub(surroundings, secrets),
        "verdict": verdict,
        "capacity": scrub(plan.get("capacity"), secrets),
        "results": scrub(results or {}, secrets),
        "method": scrub(method or {}, secrets),
    }
    text = serialise(document)
    try:
        # Read back, so that what is written is what a reader accepts and holds plain types only.
        record = parse(text)
        for name in (host, instance):
            path_component(name)
    except Invalid as error:
        raise RecordError(
            f"The {kind} record of instance {instance!r} is not valid: {error.reason}.", fault=error.kind
        ) from error
    return record, text


def environment_of_plan(plan: Mapping[str, Any]) -> Record:
    """What a plan knows about the surroundings of a run; unknown values are null."""
    model = plan.get("model")
    model = model if isinstance(model, Mapping) else {}
    return {
        "host_class": plan.get("host_class"),
        "profile": plan.get("profile"),
        "model": model.get("name"),
        "model_repo": model.get("repo"),
        "model_revision": model.get("revision"),
        "content_id": plan.get("content_id"),
        "image": plan.get("image"),
        "image_digest": plan.get("image_digest"),
        "vllm_version": plan.get("vllm_version"),
        "gpus": plan.get("gpus"),
    }


def scrub(value: Any, secrets: Iterable[str]) -> Any:
    """*value* with every occurrence of a secret, plain or percent-encoded, replaced by "***"."""
    needles = {secret for secret in secrets if secret}
    needles |= {quote(secret, safe="") for secret in needles}
    return _scrub(value, sorted(needles, key=len, reverse=True))


def _scrub(value: Any, needles: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {
            _scrub(key, needles) if isinstance(key, str) else key: _scrub(item, needles) for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_scrub(item, needles) for item in value]
    if isinstance(value, str):
        for needle in needles:
            value = value.replace(needle, "***")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> Record:
    found: Record = {}
    for key, value in pairs:
        if key in found:
            raise Invalid("with a key given twice", f"key {key[:40]!r} is given twice")
        found[key] = value
    return found


def _no_constant(name: str) -> None:
    raise Invalid("with a number that is not finite", f"{name} is not JSON")


def _integer(digits: str) -> int:
    if len(digits) > MAX_NUMBER_DIGITS:
        raise Invalid("not a record", f"a number of {len(digits)} digits")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise Invalid("with a number that is not finite", f"{digits[:40]} is too large")
    return value


def _check_values(document: Record) -> None:
    """Bounded depth, and texts that can be written again. Iterative, since the depth is not known yet."""
    todo: list[tuple[Any, int]] = [(document, 1)]
    while todo:
        value, depth = todo.pop()
        if depth > MAX_DEPTH:
            raise Invalid("nested too deeply", f"more than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            todo += [(key, depth) for key in value]
            todo += [(item, depth + 1) for item in value.values()]
        elif isinstance(value, list):
            todo += [(item, depth + 1) for item in value]
        elif isinstance(value, str):
            try:
                value.encode("utf-8")
            except UnicodeEncodeError as error:
                raise Invalid("not JSON", "a text with half of a surrogate pair") from error


def _require(valid: bool, key: str, found: Any, expected: str) -> None:
    if not valid:
        raise Invalid("with wrong fields", f"{key} is {str(found)[:80]!r}, expected {expected}")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME and not _CONTROL.search(value)


def _is_time(value: Any) -> bool:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        return False
    try:
        datetime.strptime(value[:19], "%Y-%m-%dT%H:%M:%S")
    except ValueError:
        return False
    return True
