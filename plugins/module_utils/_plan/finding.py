# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One thing that a check of a plan has to say. Private to socle.inference."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

ERROR = "error"
WARNING = "warning"
NOTE = "note"
SEVERITIES = (ERROR, WARNING, NOTE)

IGNORED_VARIABLE = "vllm_rules_ignored"
"""Maps ids of findings to the reason why they are passed over."""


@dataclass(frozen=True)
class Finding:
    """What is wrong or worth knowing, and what to do about it.

    An error refuses the plan, a warning is shown, a note is shown on request.
    """

    id: str
    """SOC-F.. for flags, SOC-R.. for rules, SOC-C.. for capacity: what a person looks up or passes over by name."""
    severity: str
    sentence: str
    """What was found and what was expected, as one sentence with its full stop."""
    remedy: str
    """What to do, with the exact flag or command, as one sentence with its full stop."""
    evidence: str = ""
    """Where it is known from: a figure, an address, a place in the source of a version."""
    subject: str = ""
    """The flag, variable or key it is about."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def passed_over(self, reason: str) -> Finding:
        """The same with the reason why it does not count here: an error then warns, everything else is a note."""
        return replace(
            self,
            severity=WARNING if self.severity == ERROR else NOTE,
            sentence=f"{self.sentence.rstrip('.')} (passed over by {IGNORED_VARIABLE}: {reason}).",
        )
