# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What keeps a text from being an address that configuration files and tools take. Private to socle.inference."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import SplitResult, urlsplit

WEB = ("http", "https")

_SCHEME = re.compile(r"([A-Za-z][\w+.-]*):/")
_NAME = re.compile(r"(?![.-])[\w.-]+")
# What RFC 3986 has no place for, but for the braces of DNF's variables; apt, TOML or a shell take some of it apart.
_REFUSED = re.compile(r"[\"<>\\^`|]")


def address_fault(text: str, schemes: Collection[str] = ()) -> str:
    """What is wrong with an address, as "has ..."; "" for nothing. It never shows a part of it, as of a password.

    Any scheme will do without *schemes*. A host is asked for where the scheme is http or https.
    """
    if any(character.isspace() or not character.isprintable() for character in text):
        return "has a blank or a control character"
    if _REFUSED.search(text):
        return "has a quotation mark, a backtick or another character that no address has"
    scheme = _SCHEME.match(text)
    if not scheme:
        return "has no scheme"
    if schemes and scheme[1].lower() not in schemes:
        return f"has another scheme than {', '.join(schemes)}"
    try:
        parts = urlsplit(text)
        port, host = parts.port, _host(parts)
    except ValueError:
        return "has a broken host, IPv6 address or port"
    if port == 0:
        return "has port 0"
    return "has no host" if parts.scheme in WEB and not host else ""


def _host(parts: SplitResult) -> str:
    """The host; raises ValueError for what is none."""
    host = parts.hostname or ""
    if parts.port is not None and not parts.netloc.rpartition(":")[2].isascii():
        raise ValueError("digits of another script")
    if "[" in parts.netloc.rpartition("@")[2]:
        ipaddress.IPv6Address(host)
    elif host and not (_NAME.fullmatch(host) and ".." not in host):
        raise ValueError(host)
    return host
