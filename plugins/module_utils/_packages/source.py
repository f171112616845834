# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What package sources of apt and DNF have in common: addresses, signing keys, files. Private to socle.inference."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable
from urllib.parse import unquote, urlsplit

from ansible.module_utils.urls import open_url
from ansible_collections.socle.inference.plugins.module_utils._address import address_fault
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, explaining, put_bytes
from ansible_collections.socle.inference.plugins.module_utils._errors import PackageError

Fetch = Callable[[str], bytes]
"""The content of an address; raises OSError."""

KEY_BYTES = 1 << 20
"""No key is larger; a page of a captive portal may be."""

ARGUMENTS: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "uri": {"type": "str"},
    # Not a secret, whatever its name makes Ansible think.
    "key_url": {"type": "str", "no_log": False},
    "replaces": {"type": "list", "elements": "path", "default": []},
    "expect": {"type": "dict", "default": {}},
    "variable": {"type": "str", "default": "the repository's URL"},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}
"""The argument spec of the options that fragment package_source documents."""

ARMOUR = "-----BEGIN PGP PUBLIC KEY BLOCK-----"


@dataclass(frozen=True)
class PackageSource:
    """A package source and its signing key."""

    name: str
    """Of the files, and the repository's id for DNF."""
    uri: str
    key_url: str
    """Address of the key, or the key itself as ASCII armour."""
    replaces: Sequence[str] = ()
    """Files of the same source from elsewhere: apt refuses two definitions with different keys."""
    expect: Mapping[str, str] = field(default_factory=dict)
    """Version by package that the source must offer; "" for any."""
    variable: str = "the repository's URL"
    """What the user changes when the address is wrong."""
    spared: str = "The package sources are as they were."
    """How a refusal ends: other things may have changed before in the same run."""


def fields(params: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a PackageSource from a module's parameters."""
    names = ("name", "uri", "key_url", "replaces", "expect", "variable")
    # Address and key are left out where the source shall be absent.
    return {name: "" if params[name] is None else params[name] for name in names}


_LOGIN = re.compile(r"[^/\s]*@")
_UP_TO_LAST = re.compile(r"\S*@")
_AUTHORITY = re.compile(r"[^/\s\"',;]*")


def _end_of_login(text: str, start: int, *, strict: bool = True) -> int:
    """Where user and password end that begin at *start*; *start* where there are none.

    A password's slash that is not escaped ends the host for every tool, so where what stands before it is no host, the
    last @ before a blank ends the password (only if *strict*). An @ in the path of a valid address means nothing.
    """
    login = _LOGIN.match(text, start)
    end = login.end() if login else start
    last = _UP_TO_LAST.match(text, end) if strict else None
    found = _AUTHORITY.match(text, end)
    authority = found.group() if found else ""
    broken = authority.endswith(":") or address_fault(f"http://{authority}") != ""
    return last.end() if last and authority and broken else end


def _logins(text: str) -> Iterator[tuple[int, int]]:
    """Where user and password of each address in a text begin and end."""
    end = 0
    for slashes in re.finditer("//", text):
        start = slashes.end()
        if start > end:
            end = _end_of_login(text, start, strict=text[: start - 2].endswith(":"))
            if end > start:
                yield start, end


def without_password(uri: str) -> str:
    """The address, or a text with addresses, without user and password, which may hold an @ or a / of their own."""
    parts, done = [], 0
    for start, end in _logins(uri):
        parts.append(uri[done:start])
        done = end
    return "".join([*parts, uri[done:]])


def hide_passwords(module: Any) -> None:
    """Keep user and password of addresses out of all that *module*, an AnsibleModule, returns, its arguments included.

    With -vvv Ansible prints these. The @ belongs to what is hidden: a short password alone is part of other words.
    """

    def walk(value: Any) -> None:
        if isinstance(value, str):
            found = [value[start:end] for start, end in _logins(value)]
            # An address without a scheme is refused, but has its password.
            if re.match(r"[^/\s]*:(?!//)", value):
                found.append(value[: _end_of_login(value, 0)])
            module.no_log_values.update(filter(None, found))
        elif isinstance(value, Mapping):
            for item in value.values():
                walk(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                walk(item)

    walk(module.params)


def is_same(uri: str, other: str) -> bool:
    """Whether two addresses mean the same place, whoever asks for it."""
    return without_password(uri).rstrip("/") == without_password(other).rstrip("/")


def login(uri: str) -> str:
    """The line of apt's auth.conf for an address with user and password; "" for one without.

    A source's file is for everybody to read, since apt-cache reads all of them; those below auth.conf.d are not.
    """
    parts = urlsplit(uri)
    if not parts.username:
        return ""
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
    return f"machine {place} login {unquote(parts.username)} password {unquote(parts.password or '')}".rstrip() + "\n"


def fetch(url: str) -> bytes:
    """Download a small file, with the environment's proxies. Raises OSError."""
    content: bytes = open_url(url, timeout=30, use_proxy=True).read(KEY_BYTES)
    return content


def is_key(content: bytes) -> bool:
    """Whether this is an OpenPGP public key, armoured or not; a proxy's error page is not."""
    return content.lstrip().startswith(ARMOUR.encode()) or content[:1] in (b"\x98", b"\x99", b"\xc6")


def suffix(content: bytes) -> str:
    """apt tells the two forms of keys apart by the name of the file."""
    return ".asc" if content.lstrip().startswith(b"-----BEGIN") else ".gpg"


def check_addresses(source: PackageSource) -> None:
    """Raises PackageError where source or key have an address that is none; a line break would add lines to a file."""
    # A key may come as text.
    addresses = (source.uri, "" if source.key_url.lstrip().startswith("-----BEGIN") else source.key_url)
    for fault in (address_fault(address) for address in addresses if address):
        if fault:
            raise PackageError(
                f"Cannot use the address of package source {source.name}: it {fault}, expected one such as"
                f" https://mirror.example.org/repos; correct {source.variable}. {source.spared}"
            )


def download_key(source: PackageSource, fetcher: Fetch, *, armoured: bool = False) -> bytes:
    """The signing key of *source*; *armoured* takes no other form. Raises PackageError in one sentence."""
    check_addresses(source)
    if source.key_url.lstrip().startswith("-----BEGIN"):
        return source.key_url.strip().encode() + b"\n"
    shown = without_password(source.key_url)
    try:
        content = fetcher(source.key_url)
    except (OSError, ValueError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", error)
        reason = str(getattr(cause, "strerror", None) or cause).rstrip(".")
        raise PackageError(
            f"Cannot fetch the signing key {shown}: {reason}; check that the host reaches this address, or"
            f" set {source.variable} to a mirror. {source.spared}",
            url=shown,
        ) from error
    if not is_key(content) or (armoured and not content.isascii()):
        raise PackageError(
            f"Cannot use {shown} as the signing key of {without_password(source.uri)}: what came is no"
            f" {'armoured ' if armoured else ''}OpenPGP public key (a proxy or login page?); check the address in a"
            f" browser, or set {source.variable} to a mirror. {source.spared}",
            url=shown,
        )
    return content


def put(path: Path, content: bytes | None, mode: int = 0o644) -> None:
    """Replace a source's file or key whole; None removes it."""
    if content is None:
        path.unlink(missing_ok=True)
        return
    put_bytes(path, content, mode)


def take_away(
    source: PackageSource, paths: Sequence[str], files: Files, root: Path, *, check: bool = False
) -> dict[str, Any]:
    """Remove those of *paths* that are there, the first of which describes the source; as_result takes the answer."""
    places = {path: root / path.lstrip("/") for path in paths}
    there = [path for path, place in places.items() if place.exists()]
    before = files.read(places[paths[0]]) or ""
    if not check:
        with explaining(f"remove the package source {source.name}"):
            for path in there:
                files.remove(places[path])
    return {"changed": bool(there), "path": paths[0], "removed": there, "before": before, "after": ""}


def as_result(outcome: dict[str, Any], diff: bool) -> dict[str, Any]:
    """A module's result from path, changed, removed, before and after; with *diff* the texts without passwords."""
    result = {key: value for key, value in outcome.items() if key not in ("before", "after")}
    if diff:
        header = result["path"]
        before, after = (without_password(outcome[key] or "") for key in ("before", "after"))
        result["diff"] = [{"before_header": header, "after_header": header, "before": before, "after": after}]
        result["diff"] += [{"prepared": f"removed {path}\n"} for path in result["removed"]]
    return result
