# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the user wants of a container engine, from a module's options. Private to socle.inference."""

from __future__ import annotations

import contextlib
import json
import re
import resource
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.common.validation import check_type_dict
from ansible_collections.socle.inference.plugins.module_utils._errors import ToolkitError
from ansible_collections.socle.inference.plugins.module_utils._kinds import kind_of
from ansible_collections.socle.inference.plugins.module_utils._packages.source import hide_passwords
from ansible_collections.socle.inference.plugins.module_utils._toolkit.daemon_json import Settings
from ansible_collections.socle.inference.plugins.module_utils._toolkit.dockerd import RESTARTS

AUTO = "auto"

LOG_MAX_SIZE = "50m"
NOFILE = 1048576
"""What "auto" stands for. Docker's own default, as from 29 on, is 1024 open files, too few for a serving engine."""

ARGUMENTS: dict[str, dict[str, Any]] = {
    "registry_mirrors": {"type": "list", "elements": "str", "default": []},
    # What is no dictionary Ansible refuses without the variable's name, and shows it with its password.
    "proxy": {"type": "raw", "default": {}, "no_log": True},
    "log_max_size": {"type": "str", "default": AUTO},
    "log_max_files": {"type": "int", "default": 3},
    "nofile": {"type": "str", "default": AUTO},
    "restart": {"type": "str", "choices": list(RESTARTS), "default": "auto"},
    "state_dir": {"type": "path", "default": "/var/lib/socle"},
}
"""The argument spec of the options that fragment container_engine documents."""


PROXIES = ("http", "https", "no_proxy")


def read_proxy(given: Any) -> dict[str, str]:
    """The proxies by name, "" for none. Raises ToolkitError, which shows no value, for what is no such dictionary."""
    expected = f"expected {{{', '.join(f'{name}:' for name in PROXIES)}}}"
    end = "correct it. Nothing was changed."
    proxy = {} if given is None else given
    if isinstance(given, str):
        # As -e container_engine_proxy='{"http": ...}' gives it.
        with contextlib.suppress(TypeError, ValueError):
            proxy = check_type_dict(given)
    if not isinstance(proxy, Mapping):
        raise ToolkitError(f"container_engine_proxy is {kind_of(proxy)}, {expected}; {end}")
    for name, value in proxy.items():
        if name not in PROXIES:
            known = re.fullmatch(r"\w{1,40}", str(name))
            raise ToolkitError(f"container_engine_proxy has {name if known else 'another key'}, {expected}; {end}")
        if value is not None and not isinstance(value, str):
            raise ToolkitError(f"container_engine_proxy has {kind_of(value)} as {name}, expected a string; {end}")
    return {name: proxy.get(name) or "" for name in PROXIES}


def hide_logins(module: Any) -> None:
    """Keep users and passwords of addresses out of what *module*, an AnsibleModule, returns, and show the rest.

    Proxies are secrets of the argument spec, whose whole value Ansible hides, in a diff too. They stay so, since it
    writes the arguments into the host's log before anybody can say which part of them is secret.
    """
    hide_passwords(module)
    try:
        proxy = read_proxy(module.params["proxy"])
    except ToolkitError:
        # What may be a password stays hidden; other words would only be cut out of the refusal.
        module.no_log_values.difference_update([value for value in module.no_log_values if "@" not in value])
        return
    for address in proxy.values():
        login = re.match(r"(?:\w+://)?(.*@)", address, re.DOTALL)
        module.no_log_values.discard(address)
        if login:
            module.no_log_values.add(login[1])


def from_options(params: Mapping[str, Any], needs_cdi: bool) -> Settings:
    """The settings that a module's options name. Raises ToolkitError for a value that is none."""
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
    proxy = read_proxy(params["proxy"])
    return Settings(
        needs_cdi=needs_cdi,
        mirrors=tuple(params["registry_mirrors"]),
        http_proxy=proxy["http"],
        https_proxy=proxy["https"],
        no_proxy=proxy["no_proxy"],
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
