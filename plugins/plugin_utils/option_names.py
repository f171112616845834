# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets messages of a module name the variables that its options come from.

A message names an option by its bare name where that has an underscore or begins the message, and as "the option NAME"
where its name could be any word of the sentence. Who uses the module alone reads just that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def name_variables(text: str, names: Mapping[str, str]) -> str:
    """*text* with the variables of *names* (option to variable) in the place of the options."""
    for option, variable in names.items():
        text = re.sub(rf"(?:^|\b(?:the )?option ){re.escape(option)}\b", lambda _match, name=variable: name, text)
        if "_" in option:
            # Not in the middle of a path, or of a longer name.
            text = re.sub(rf"(?<![\w/.-]){re.escape(option)}(?![\w/-])", lambda _match, name=variable: name, text)
    return text


def text_of(warning: Any) -> str:
    """The words of a warning in the result of a module, which newer versions of Ansible wrap."""
    event = getattr(warning, "event", None)
    return str(warning if event is None else event.msg)


def name_in_result(result: dict[str, Any], names: Mapping[str, str]) -> None:
    """Do that in what a module returns for people to read: its message, its warnings, and the faults of its plan."""
    if result.get("msg"):
        message = name_variables(str(result["msg"]), names)
        event = getattr(result.get("exception"), "event", None)
        # Newer versions of Ansible print this first; without it they make one of the message.
        if message != result["msg"] and event is not None and event.msg == result["msg"]:
            del result["exception"]
        result["msg"] = message
    if result.get("warnings"):
        result["warnings"] = [name_variables(text_of(warning), names) for warning in result["warnings"]]
    for fault in (result.get("plan") or {}).get("faults", []):
        fault["message"] = name_variables(fault["message"], names)
