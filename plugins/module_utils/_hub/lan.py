# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which address of the host its neighbours reach. Private to socle.inference."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Callable

from ansible_collections.socle.inference.plugins.module_utils._errors import HubError
from ansible_collections.socle.inference.plugins.module_utils._hub.relay import check_address, parse_address

ELSEWHERE = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))
"""Addresses for documentation (RFC 5737, RFC 3849): nothing is sent, the kernel only looks up the route."""

SIOCGIFADDR = 0x8915


def is_own(address: str) -> bool:
    """Whether *address* is one of the host's: only then can it be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
        probe.bind((address, 0))
        return True
    return False


def default_address() -> str | None:
    """The source address of the default route; without one, the only address of the host, if there is just one."""
    for elsewhere, family in ELSEWHERE:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            return str(probe.getsockname()[0])
    found = interface_addresses()
    return found[0] if len(found) == 1 else None


def interface_addresses() -> list[str]:
    """The first IPv4 address of each interface but the loopback."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _index, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                # struct ifreq (netdevice(7)): a name of 16 bytes, then a sockaddr_in with its address at byte 4.
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    return [address for address in found if _is_lan(address)]


def check_lan_address(text: str) -> None:
    """Raise HubError unless a person may have meant *text* as an address that neighbours reach; whether the host has it
    is seen when it is served on."""
    try:
        address = parse_address(text)
    except ValueError:
        fault = "is no IP address"
    else:
        fault = _address_fault(address)
    if fault:
        raise HubError(
            f"model_store_lan_address must be an address of the host that its neighbours reach, but {text[:100]!r} "
            f"{fault}: give the address that it has in the network of the hosts, or leave the variable out; nothing "
            "was fetched"
        )


def _address_fault(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Why no neighbour reaches *address*; "" where one may."""
    if address.is_loopback:
        return "is a loopback address, which leads each host to itself"
    if address.is_unspecified:
        return "stands for all addresses, and a model is never served on all of them"
    if address.is_multicast or address == ipaddress.IPv4Address("255.255.255.255"):
        return "is an address of many hosts"
    if address.is_link_local and not getattr(address, "scope_id", None):
        return "is a link-local address without its interface, so that it leads nowhere from another host"
    return ""


def choose_address(
    wanted: str | None,
    connected_by: str | None,
    own: Callable[[str], bool] = is_own,
    default: Callable[[], str | None] = default_address,
) -> str:
    """*wanted*, else *connected_by* (what the inventory connects to) where it is an address of this host, else that of
    the default route. Raises HubError where there is none, and for a public one that nobody asked for."""
    if wanted:
        check_address(wanted)
        return wanted
    if connected_by and _is_lan(connected_by) and not _is_public(connected_by) and own(connected_by):
        return connected_by
    found = default()
    if found is not None and _is_public(found):
        raise HubError(
            f"the models would be served to the neighbours at {found}, which is a public address of this host: set "
            "model_store_lan_address to its address in the private network, or to this one if it is behind a firewall"
        )
    if found is None:
        raise HubError(
            "this host has no default route and not just one address, so it is not known how its neighbours reach it: "
            "set model_store_lan_address for it"
        )
    return found


def _is_public(address: str) -> bool:
    """Whether the whole internet can reach *address*, as far as it goes by the address."""
    return parse_address(address).is_global


def _is_lan(text: str) -> bool:
    """Whether *text* is an address rather than a name, and one that others could reach."""
    try:
        address = parse_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified or address.is_multicast or address.is_link_local)
