# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuses mirrors and proxies that no container engine takes. Private to socle.inference."""

from __future__ import annotations

import json

from ansible_collections.socle.inference.plugins.module_utils._address import WEB, address_fault
from ansible_collections.socle.inference.plugins.module_utils._errors import ToolkitError
from ansible_collections.socle.inference.plugins.module_utils._toolkit.daemon_json import Settings

PROXY_SCHEMES = (*WEB, "socks5", "socks5h")
"""What Go, which both engines are written in, speaks to a proxy."""


def check(settings: Settings) -> None:
    """Raises ToolkitError, without a password in it, for the first address that is none."""
    for mirror in settings.mirrors:
        fault = address_fault(mirror, WEB)
        if not fault and "@" in mirror:
            fault = "has a user or a password"
        if not fault and set("?#") & set(mirror):
            fault = "has a query or a fragment"
        if fault:
            shown = json.dumps(mirror.rpartition("@")[2], ensure_ascii=False)
            raise ToolkitError(
                f"Cannot use a registry mirror at {shown}: it {fault}, expected an address such as"
                " https://mirror.example.org:5000 without user and password; correct container_engine_registry_mirrors."
                " Nothing was changed."
            )
    for option, proxy in (("http", settings.http_proxy), ("https", settings.https_proxy)):
        # Both engines take a proxy without a scheme for one that speaks HTTP.
        fault = address_fault(proxy if "://" in proxy else f"http://{proxy}", PROXY_SCHEMES) if proxy else ""
        if fault:
            raise ToolkitError(
                f"Cannot use the proxy for {option} in container_engine_proxy: its address {fault}, expected one such"
                " as http://proxy.example.org:3128; correct it. Nothing was changed."
            )
    if not settings.no_proxy.isprintable():
        raise ToolkitError(
            "Cannot use no_proxy of container_engine_proxy: it has a line break or another control character, expected"
            " names and addresses with commas between them; correct it. Nothing was changed."
        )
