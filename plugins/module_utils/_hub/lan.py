# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which address of the host its neighbours reach. Private to socle.inference."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Callable

from ansible_collections.socle.inference.plugins.module_utils._errors import HubError
from ansible_collections.socle.inference.plugins.module_utils._hub.relay import check_address

ELSEWHERE = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))
"""Addresses for documentation (RFC 5737, RFC 3849): nothing is sent, the kernel only looks up the route."""


def is_own(address: str) -> bool:
    """Whether *address* is one of the host's: only then can it be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
        probe.bind((address, 0))
        return True
    return False


def default_address() -> str | None:
    """The source address of the default route; None without one."""
    for elsewhere, family in ELSEWHERE:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            return str(probe.getsockname()[0])
    return None


def choose_address(
    wanted: str | None,
    connected_by: str | None,
    own: Callable[[str], bool] = is_own,
    default: Callable[[], str | None] = default_address,
) -> str:
    """*wanted*, else *connected_by* (what the inventory connects to) where it is an address of this host, else that of
    the default route. Raises HubError where there is none."""
    if wanted:
        check_address(wanted)
        return wanted
    if connected_by and _is_lan(connected_by) and own(connected_by):
        return connected_by
    found = default()
    if found is None:
        raise HubError(
            "this host has no default route, so it is not known on which address its neighbours reach it: "
            "set lan_address for it"
        )
    return found


def _is_lan(text: str) -> bool:
    """Whether *text* is an address rather than a name, and one that others could reach."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified or address.is_multicast or address.is_link_local)
