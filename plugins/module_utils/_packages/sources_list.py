# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""apt's files of package sources, in both forms, as fields. Private to socle.inference."""

from __future__ import annotations

import re


def stanzas(text: str) -> list[dict[str, str]]:
    """The enabled binary sources of a deb822 file: fields by name in lower case, folded lines as they stand."""
    found: list[dict[str, str]] = []
    for block in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        name = ""
        for line in block.splitlines():
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t"):
                fields[name] = f"{fields.get(name, '')}\n{line}"
                continue
            key, _colon, value = line.partition(":")
            name = key.strip().lower()
            fields[name] = value.strip()
        enabled = fields.get("enabled", "yes").lower() not in ("no", "false", "0")
        if enabled and "deb" in fields.get("types", "").split():
            found.append(fields)
    return found


def one_line(text: str) -> list[dict[str, str]]:
    """The binary sources of a sources.list, with the field names of deb822."""
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)(?:\s+(\S+))?(?:\s+([^#]+))?", line)
        if match is None:
            continue
        options, uri, suite, components = (group or "" for group in match.groups())
        fields = {"types": "deb", "uris": uri, "suites": suite, "components": components.strip()}
        for option in options.split():
            key, _equals, value = option.partition("=")
            fields[key.lower()] = value
        found.append(fields)
    return found


def parse(name: str, text: str) -> list[dict[str, str]]:
    """The enabled binary sources of the file *name*; its suffix tells its form."""
    return stanzas(text) if name.endswith(".sources") else one_line(text)
