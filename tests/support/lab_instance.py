# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An instance on the lab host beside the lab's own: the inventory that knows it alone, and its removal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support import lab

MODEL = "smollm2-135m-instruct"


def inventory_of(folder: Path, name: str, port: int, **settings: Any) -> Path:
    """An inventory in *folder* with the lab host and this instance, which listens on the host's loopback."""
    instance = {"model": MODEL, "port": port, **settings}
    lab.write_inventory(folder, {lab.HOST: {"vllm_instances": {name: instance}}})
    lab.copy_locks(folder)
    return folder


def remove(name: str) -> None:
    """Take all of the instance from the lab host; what it shares with others, as caches and model, stays."""
    lab.on_host(
        f"""
        systemctl disable --now socle-watchdog@{name}.service 2>/dev/null || true
        systemctl stop vllm-{name}.service 2>/dev/null || true
        podman rm --force --ignore vllm-{name} >/dev/null
        rm -f /etc/containers/systemd/vllm-{name}.container
        systemctl daemon-reload
        systemctl reset-failed vllm-{name}.service 2>/dev/null || true
        podman secret rm socle-{name}-api_key >/dev/null 2>&1 || true
        rm -rf /var/lib/socle/instances/{name} /var/lib/socle/secrets/{name} /var/lib/socle/watchdog/{name}
        rm -f /var/lib/socle/records/*-{name}-*.json
        """
    )
