# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What cannot stand in a unit, told when planning and again when the unit is written. Private to socle.inference."""

from __future__ import annotations

import re

PATH = re.compile(r"/[^\s:%$\"'\\,;\x00-\x1f\x7f]*")
PATH_EXPECTED = "an absolute path without spaces, quotes and ':%$\\,;', which Quadlet or systemd would take apart"

MAX_WORD_BYTES = 32 * 4096 - 1
"""Of one argument of a program, as the kernel limits it (MAX_ARG_STRLEN, execve(2))."""

_NAMES = {0x00: "NUL", 0x09: "a tab", 0x0A: "a line break", 0x0D: "a carriage return"}


def control_character(text: str) -> str | None:
    """The first control character of *text* in words, or what no file can hold; None without one."""
    for code in map(ord, text):
        if code < 0x20 or code == 0x7F:
            return _NAMES.get(code, f"the control character U+{code:04X}")
        if 0xD800 <= code < 0xE000:
            return "half of a surrogate pair"
    return None


def too_long(word: str) -> bool:
    """Whether the kernel refuses *word* as an argument, or as a variable with its name."""
    return len(word.encode("utf-8", "surrogatepass")) > MAX_WORD_BYTES


def starts_another_command(word: str) -> bool:
    """Whether systemd would take *word* as the end of the command and start another one with what follows."""
    return word == ";"


def path_fault(path: str) -> str | None:
    """What is wrong with *path* in a unit; None when nothing is."""
    if not PATH.fullmatch(path):
        return f"expected {PATH_EXPECTED}"
    if ".." in path.split("/"):
        return "it holds '..', which must be written out"
    return None
