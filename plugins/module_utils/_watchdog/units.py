# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The units of the watchdog: one service for each instance, made of a template. Pure; private to socle.inference."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._engine.unit import MANAGED
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._units import path_fault

UNIT_DIR = Path("/etc/systemd/system")

TEMPLATE = "socle-watchdog@.service"
ALARM = "socle-watchdog-alarm@.service"


def service(instance: str) -> str:
    """The unit that watches an instance."""
    return TEMPLATE.replace("@.", f"@{instance}.")


def alarm(instance: str) -> str:
    """The unit that has failed while an instance needs a person."""
    return ALARM.replace("@.", f"@{instance}.")


def template_text(python: str, program_dir: str, state_dir: str) -> str:
    """The unit of the watchdogs of this host.

    It needs root: systemd's manager, the container engine's client, and the kernel's stacks of other processes ask for
    it. What it never does is taken from it.
    """
    for what, path in (("interpreter", python), ("folder of the program", program_dir), ("state folder", state_dir)):
        fault = path_fault(path)
        if fault:
            raise EngineError(f"Cannot put the {what} {path!r} of the watchdog into a unit: {fault}; change it.")
    return f"""{MANAGED}: changes made here are overwritten

[Unit]
Description=Liveness watchdog of vLLM instance %i
Documentation=man:systemctl(1)
After=vllm-%i.service
ConditionPathExists={state_dir}/watchdog/%i/settings.json
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={python} -I -B {program_dir} {state_dir}/watchdog/%i/settings.json
ExecReload=/bin/sh -c "kill -HUP $MAINPID"
Restart=always
RestartSec=10
WatchdogSec=180
TimeoutStopSec=15
Nice=-5
OOMScoreAdjust=-500
MemoryMax=512M
TasksMax=512
UMask=0077

CapabilityBoundingSet=CAP_SYS_ADMIN CAP_SYS_PTRACE CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_CHOWN
NoNewPrivileges=true
ProtectSystem=full
ProtectHome=read-only
ProtectHostname=true
ProtectClock=true
ProtectKernelTunables=true
ProtectKernelModules=true
PrivateTmp=true
RestrictRealtime=true
RestrictSUIDSGID=true
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
LockPersonality=true
SystemCallArchitectures=native
SystemCallFilter=~@clock @cpu-emulation @module @obsolete @raw-io @reboot @swap
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


def alarm_text() -> str:
    """A unit that only fails, so that "systemctl --failed" shows that an instance needs a person."""
    words = (
        "<3>%i: the watchdog restarts it no more; see journalctl -u socle-watchdog@%i, then systemctl reload"
        " socle-watchdog@%i"
    )
    return f"""{MANAGED}: changes made here are overwritten

[Unit]
Description=vLLM instance %i needs a person
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart=/bin/sh -c "echo '{words}'; exit 1"
"""
