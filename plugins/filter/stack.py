# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters over what host_checks returns, and over what provisioning did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._stack.catalogue import (
    host_findings_failure,
    host_findings_lines,
)
from ansible_collections.socle.inference.plugins.module_utils._stack.provisioned import news, provision_line


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "host_findings_failure": host_findings_failure,
            "host_findings_lines": host_findings_lines,
            "host_findings_new": news,
            "provision_line": provision_line,
        }
