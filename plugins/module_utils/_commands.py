# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The form in which a host's commands are injected where one may not exist. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, Optional

Answer = tuple[int, str, str]
"""Return code, standard output, standard error."""

Run = Callable[[Sequence[str]], Optional[Answer]]
"""Runs an argument list; None when there is no such command."""
