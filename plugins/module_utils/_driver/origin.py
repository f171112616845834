# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where an Ubuntu host's driver came from, which not every version tells. Private to socle.inference."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ansible_collections.socle.inference.plugins.module_utils._commands import Run
from ansible_collections.socle.inference.plugins.module_utils._packages.source import without_password
from ansible_collections.socle.inference.plugins.module_utils._stack.packages import source_kind


def parse_policy(text: str) -> dict[str, list[str]]:
    """Package -> addresses that offer the version that is installed, of ``apt-cache policy``."""
    found: dict[str, list[str]] = {}
    name, inside = "", False
    for line in text.splitlines():
        if re.match(r"\S+:$", line):
            name, inside = line[:-1], False
        elif re.match(r" (\*\*\*|   ) \S", line):
            inside = line.startswith(" ***")
        elif inside:
            source = re.match(r"\s+-?\d+ ([a-z+]+:\S+)", line)
            if source:
                found.setdefault(name, []).append(source.group(1))
    return found


def ubuntu_origins(run: Run, names: Sequence[str], base_url: str) -> dict[str, str]:
    """Package -> "nvidia" or "distribution", where the package sources tell; *base_url* is that of a mirror."""
    answer = run(["apt-cache", "policy", *names])
    base = without_password(base_url).rstrip("/")
    origins = {}
    for name, uris in parse_policy(answer[1] if answer is not None and answer[0] == 0 else "").items():
        kinds = {
            "nvidia"
            if (base and without_password(uri).startswith(f"{base}/")) or source_kind("", uri).startswith("nvidia")
            else "distribution"
            for uri in uris
        }
        if len(kinds) == 1:
            origins[name] = kinds.pop()
    return origins
