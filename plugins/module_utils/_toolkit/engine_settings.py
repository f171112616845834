# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the user wants of a container engine, from a module's options. Private to socle.inference."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Mapping
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import ToolkitError
from ansible_collections.socle.inference.plugins.module_utils._packages.source import hide_passwords
from ansible_collections.socle.inference.plugins.module_utils._toolkit.daemon_json import Settings
from ansible_collections.socle.inference.plugins.module_utils._toolkit.dockerd import RESTARTS

AUTO = "auto"

LOG_MAX_SIZE = "50m"
NOFILE = 1048576
"""What "auto" stands for. Docker's own default, as from 29 on, is 1024 open files, too few for a serving engine."""

ARGUMENTS: dict[str, dict[str, Any]] = {
    "registry_mirrors": {"type": "list", "elements": "str", "default": []},
    "proxy": {
        "type": "dict",
        "default": {},
        "options": {
            "http": {"type": "str", "default": "", "no_log": True},
            "https": {"type": "str", "default": "", "no_log": True},
            "no_proxy": {"type": "str", "default": ""},
        },
    },
    "log_max_size": {"type": "str", "default": AUTO},
    "log_max_files": {"type": "int", "default": 3},
    "nofile": {"type": "str", "default": AUTO},
    "restart": {"type": "str", "choices": list(RESTARTS), "default": "auto"},
    "state_dir": {"type": "path", "default": "/var/lib/socle"},
}
"""The argument spec of the options that fragment container_engine documents."""


def hide_logins(module: Any) -> None:
    """Keep users and passwords of addresses out of what *module*, an AnsibleModule, returns, and show the rest.

    Proxies are secrets of the argument spec, whose whole value Ansible hides, in a diff too. They stay so, since it
    writes the arguments into the host's log before anybody can say which part of them is secret.
    """
    hide_passwords(module)
    proxy = module.params["proxy"]
    for value in proxy.values() if isinstance(proxy, Mapping) else ():
        address = str(value or "")
        login = re.match(r"(?:\w+://)?(.*@)", address, re.DOTALL)
        module.no_log_values.discard(address)
        if login:
            module.no_log_values.add(login[1])


def from_options(params: Mapping[str, Any], needs_cdi: bool) -> Settings:
    """The settings that a module's options name. Raises ToolkitError for a limit or size that is no number."""
    log, nofile = str(params["log_max_size"]), str(params["nofile"]).strip()
    if nofile != AUTO and not re.fullmatch(r"[0-9]{1,10}", nofile):
        raise ToolkitError(
            f"Cannot use '{nofile}' as a limit of open files: expected a number, or auto; correct"
            " container_engine_nofile. Nothing was changed."
        )
    # No '\d', which takes the digits of every script, nor spaces: Docker takes neither.
    if log not in (AUTO, "") and not re.fullmatch(r"0*[1-9][0-9]{0,15}[bkmgBKMG]?", log):
        raise ToolkitError(
            f"Cannot use {json.dumps(log)} as the size of a log: expected a number with k, m or g, such as 50m, or"
            " auto; correct container_engine_log_max_size. Nothing was changed."
        )
    if params["log_max_files"] < 1:
        raise ToolkitError(
            f"Cannot keep {params['log_max_files']} files of a container's log: expected 1 or more; correct"
            " container_engine_log_max_files. Nothing was changed."
        )
    limit = NOFILE if nofile == AUTO else int(nofile)
    return Settings(
        needs_cdi=needs_cdi,
        mirrors=tuple(params["registry_mirrors"]),
        http_proxy=params["proxy"].get("http") or "",
        https_proxy=params["proxy"].get("https") or "",
        no_proxy=params["proxy"].get("no_proxy") or "",
        log_max_size=LOG_MAX_SIZE if log == AUTO else log,
        log_max_files=params["log_max_files"],
        log_is_default=log == AUTO,
        nofile=_open_files(limit) if limit else 0,
        nofile_is_default=nofile == AUTO,
    )


def _open_files(wanted: int) -> int:
    """The wanted limit, at most that of PID 1, above which no container of a confined host starts."""
    _soft, hard = resource.prlimit(1, resource.RLIMIT_NOFILE)
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
