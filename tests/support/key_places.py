# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where on a lab host an API key must not be, and the search for it there, for the Molecule scenarios."""

from __future__ import annotations

import base64

from testinfra.host import Host

SECRETS = "/var/lib/socle/secrets"

_FILES = "/etc /opt /srv /tmp /var/tmp /run/systemd /var/log /root /home /var/lib/socle"


def places(instance: str, engine: dict[str, str]) -> dict[str, str]:
    """Shell commands that print what is in each place; *engine* adds those of a container engine."""
    return {
        "unit": f"systemctl cat vllm-{instance}; systemctl show vllm-{instance}",
        "command lines": "cat /proc/[0-9]*/cmdline | tr '\\0' ' '",
        "journal": "journalctl --no-pager --boot --output=export",
        # Where it is kept is another test's matter. The store of the engine's image is a mount of its own.
        "files": f"find {_FILES} -xdev -type f ! -path '{SECRETS}/{instance}/*' ! -size +20M -exec cat {{}} +",
        **engine,
    }


def assert_absent(host: Host, place: str, key: str) -> None:
    """The key is not in what the command *place* prints, neither in plain nor in base64, as engines keep secrets."""
    done = host.run(f"{{ {place}; }} 2>/dev/null")
    assert len(done.stdout_bytes) > 100, f"{place} found nothing to search"
    for form in (key.encode(), base64.b64encode(key.encode())):
        assert form not in done.stdout_bytes
