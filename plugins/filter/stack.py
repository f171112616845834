# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters over what host_checks returns, and over what provisioning did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.socle.inference.plugins.plugin_utils.filter_on_use import on_use


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "host_findings_failure": on_use("_stack.catalogue", "host_findings_failure"),
            "host_findings_lines": on_use("_stack.catalogue", "host_findings_lines"),
            "host_findings_new": on_use("_stack.provisioned", "news"),
            "provision_line": on_use("_stack.provisioned", "provision_line"),
        }
