# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the machine of a measurement was busy with, for the last line of its table."""

from __future__ import annotations

import os

MINUTES = (1, 5, 15)
"""Over which the kernel averages the load."""


def describe_machine(minutes: int) -> str:
    """Its cores, and how many processes wanted one of them over the last *minutes*, one of MINUTES."""
    wanted = os.getloadavg()[MINUTES.index(minutes)]
    return (
        f"this machine has {os.cpu_count()} cores, and {wanted:.1f} processes wanted one of them over the last"
        f" {'minute' if minutes == 1 else f'{minutes} minutes'}"
    )
