# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters whose code is imported when they are first used.

To find one filter Ansible imports every filter file of its collection, in each worker anew. What is heavy, and asked
for by few tasks, would be paid for by all of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

PACKAGE = "ansible_collections.socle.inference.plugins.module_utils"


def on_use(module: str, name: str) -> Callable[..., Any]:
    """The function *name* of the private *module*, such as ``_stack.catalogue``, as a filter."""

    def use(*arguments: Any, **options: Any) -> Any:
        return getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)(*arguments, **options)

    return use
