# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes secrets, and what users wrote, out of evidence. Pure; private to socle.inference."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._records.schema import scrub

MASK = "***"

_NAMED = re.compile(
    r"""(?ix) ( (?: api[_-]?key | token | passw(?:or)?d | passphrase | (?<![a-z])(?:pass|pwd) | secret(?:[_-]\w{1,32})?
    | private[_-]?key | access[_-]?key(?:[_-]?id)? | credentials? ) ["']? [ \t]{0,9} [=:] [ \t]{0,9} )
    ( "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | [^\s,;&)}\]]+ )"""
)
"""NAME=VALUE and NAME: VALUE where the name says what it is. Counts of tokens are no secrets: see _named."""

_OPTION = re.compile(
    r"""(?ix) ( --[a-z-]{0,32}(?:api-key|token|password|secret) ["']? (?:,[ \t]{0,9}|[ \t]{1,9}) ["']? )
    ( [^\s"',]+ )"""
)
"""--NAME VALUE, as a command line or as Python's list of its words."""

_HEADER = re.compile(r"""(?i)(\b(?:(?:proxy-)?authorization|(?:set-)?cookie)["']?\s*[:=]\s*["']?)[^"',;}\n]+""")
_BEARER = re.compile(r"(?i)(\bbearer\s+)[^\s\"',;]+")
_KNOWN = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{8,}|hf_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|AKIA[0-9A-Z]{16}"
    r"|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[a-z]-[\w-]{8,}|nvapi-[\w-]{16,}|AIza[\w-]{30,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*)"
)
_USERINFO = re.compile(r"(\b[a-z][a-z0-9+.-]{0,15}://)[^\s/]{1,256}@", re.IGNORECASE)
_REQUEST = re.compile(
    r"((?:Received request|Generated response|Dumping input data)\b(?: [\w-]+)?|\bRequest \S{1,256} details:).*"
)
"""What vLLM writes of a request with --enable-log-requests, and of the batch in which it died: prompts and answers."""

_NUMBER = re.compile(r"[\d.,]+%?")


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """*text* without the values of *secrets*, and without what looks like one."""
    text = str(scrub(text, secrets))
    text = _REQUEST.sub(rf"\1 {MASK}", text)
    text = _HEADER.sub(rf"\1{MASK}", text)
    text = _BEARER.sub(rf"\1{MASK}", text)
    text = _KNOWN.sub(MASK, text)
    text = _USERINFO.sub(rf"\1{MASK}@", text)
    return _OPTION.sub(_named, _NAMED.sub(_named, text))


def redact_all(value: Any, secrets: Iterable[str] = ()) -> Any:
    """*value* with every text in it redacted."""
    known = list(secrets)
    if isinstance(value, Mapping):
        return {key: redact_all(item, known) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_all(item, known) for item in value]
    return redact(value, known) if isinstance(value, str) else value


def _named(match: re.Match[str]) -> str:
    count = "token" in match[1].lower() and _NUMBER.fullmatch(match[2])
    return match[0] if count else f"{match[1]}{MASK}"
