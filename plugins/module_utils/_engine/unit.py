# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the units of all container engines have in common: limits, order, and the checks of values that go into them.

Private to socle.inference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._engine import backend
from ansible_collections.socle.inference.plugins.module_utils._engine.backend import check_name
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._units import (
    MAX_WORD_BYTES,
    control_character,
    path_fault,
    too_long,
)

ENTRYPOINT = "vllm serve"
"""What the images start; needed where a line of shell takes its place."""

RESTART_SEC = 10
START_LIMIT_BURST = 4
STOP_TIMEOUT_S = 120
STOP_MARGIN_S = 30
HEALTH_INTERVAL_S = 15
HEALTH_TIMEOUT_S = 5
HEALTH_RETRIES = 4
START_TIMEOUT_S = 1800
SHM_SIZE_BYTES = 16 * 1024**3

AFTER = (
    "network-online.target",
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
    "nvidia-cdi-refresh.service",
)
"""After a unit that is not there is harmless."""

GPU_WANTS = ("network-online.target", "nvidia-cdi-refresh.service")
"""What an instance with GPUs starts with itself. Not the fabric manager and nvidia-persistenced: to want a unit
starts it also where it was turned off. Instances without GPUs want all of AFTER, so that their units stay as they are.
"""

INSTANCE_LABEL = backend.INSTANCE_LABEL

MANAGED = "# managed by socle"
"""How every unit of ours begins."""

NO_SELINUX_LABEL = "label=disable"
NO_NEW_PRIVILEGES = "no-new-privileges"

Entries = list[tuple[str, str]]
Sections = list[tuple[str, Entries]]

OPEN_FILES = 1048576
"""The kernel's default for the most that a process may ask for (fs.nr_open)."""

UNIT_BYTES = 1000_000
"""systemd reads no line of more than 1 MiB (LONG_LINE_MAX), and Quadlet makes one line of all arguments."""

GUARD_S = 120
"""Given to nvidia-smi, which wakes every GPU of a host without nvidia-persistenced."""

_CAP_SYS_RESOURCE = 24
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GPU = re.compile(r"[0-9]+|(GPU|MIG)-[0-9A-Za-z-]+")
_ADDRESS = re.compile(r"[0-9A-Za-z.:-]+")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_SECONDS = re.compile(r"[0-9]{1,9}")
_UNIT = re.compile(r"[A-Za-z0-9_.@-]+\.(service|target|mount)")


def _checked(pattern: re.Pattern[str], value: Any, what: str, expected: str) -> str:
    text = str(value)
    if not pattern.fullmatch(text):
        raise EngineError(f"Cannot put the {what} {json.dumps(text)} into a unit: expected {expected}; change it.")
    return text


def printable(word: str, what: str) -> str:
    """The word, or EngineError where it holds what no line of a unit can carry."""
    if control_character(word):
        shown = json.dumps(word)
        raise EngineError(f"Cannot put the {what} {shown} into a unit: it holds a control character; remove it.")
    if too_long(word):
        raise EngineError(
            f"Cannot put the {what} {word[:60]}... into a unit: it has more than the {MAX_WORD_BYTES} bytes that a"
            " program can be given; shorten it."
        )
    return word


def checked_path(value: Any, what: str) -> str:
    """A path that neither systemd nor an engine takes apart."""
    path = str(value)
    fault = path_fault(path)
    if fault:
        raise EngineError(f"Cannot put the {what} {json.dumps(path)} into a unit: {fault}; change it.")
    return path


def checked_image(plan: dict[str, Any]) -> str:
    """Reference of the plan's image."""
    return _checked(_IMAGE, plan["image"], "image", "a reference such as registry/name:tag")


def image_id(plan: dict[str, Any]) -> str | None:
    """Hexadecimal id of the plan's image, so that a tag that moved cannot change what a restart runs."""
    digest = str(plan.get("image_digest") or "")
    return digest[len("sha256:") :] if re.fullmatch(r"sha256:[0-9a-f]{64}", digest) else None


def env_name(value: Any, what: str = "name of an environment variable") -> str:
    """Name of a variable."""
    return _checked(_ENV_NAME, value, what, "letters, digits and '_'")


def cdi_devices(plan: dict[str, Any]) -> list[str]:
    """The plan's GPUs by the names that CDI gives them."""
    expected = "an index or a UUID such as GPU-..."
    return ["nvidia.com/gpu=" + _checked(_GPU, gpu, "GPU", expected) for gpu in plan.get("gpus") or []]


def labels(plan: dict[str, Any]) -> list[str]:
    """By which a container tells whose it is."""
    pairs = (
        (INSTANCE_LABEL, check_name(str(plan["instance"]))),
        ("io.socle.image", checked_image(plan)),
        ("io.socle.launch-fingerprint", plan.get("launch_fingerprint") or "unsealed"),
    )
    return [f"{key}={value}" for key, value in pairs]


def security_options(gpus: bool, selinux: bool) -> list[str]:
    """Values of ``--security-opt`` of a container, with GPUs or without, on a host with SELinux or without.

    SELinux would keep a container from the model's files and from the device nodes. To label the files is no way out:
    the model store may be on NFS, and each start would walk through all of it. Without SELinux the option means
    nothing, so that a container with GPUs always has it.
    """
    if gpus:
        return [NO_NEW_PRIVILEGES, NO_SELINUX_LABEL]
    return [NO_SELINUX_LABEL] if selinux else []


def has_selinux(sys_root: Path) -> bool:
    """Whether the kernel runs SELinux, enforcing or not: that may change at any time, and the units shall not."""
    return (sys_root / "fs/selinux/enforce").exists()


def mounts(plan: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """Source, target and whether it is read-only, by target."""
    return [
        (
            checked_path(mount["source"], "mount source"),
            checked_path(mount["target"], "mount target"),
            bool(mount.get("read_only", True)),
        )
        for mount in sorted(plan.get("mounts") or [], key=lambda mount: str(mount["target"]))
    ]


def probe_address(argv: Sequence[str]) -> str:
    """Where the instance answers on its own host: the value of --host, or loopback where it listens everywhere."""
    host = ""
    for index, word in enumerate(argv):
        if word == "--host" and index + 1 < len(argv):
            host = argv[index + 1]
        elif word.startswith("--host="):
            host = word[len("--host=") :]
    if host in ("", "0.0.0.0", "::", "localhost"):
        return "127.0.0.1"
    address = _checked(_ADDRESS, host, "address (--host)", "an IP address or a host name")
    return f"[{address}]" if ":" in address else address


def health_probe(plan: dict[str, Any]) -> tuple[str, str]:
    """Host and URL that the health check asks, without a proxy."""
    address = probe_address(plan["argv"])
    return address.strip("[]"), f"http://{address}:{int(plan['port'])}/health"


def export_secrets(targets: Iterable[str]) -> str:
    """A line of shell that reads secrets from files into the environment of the engine that it starts."""
    exports = [f'export {target}="$(cat /run/secrets/{target})"' for target in targets]
    return "; ".join([*exports, f'exec {ENTRYPOINT} "$@"'])


def shutdown_timeout_s(plan: Mapping[str, Any]) -> int:
    """Seconds that the engine gives its requests once it was asked to end; 0 where it aborts them."""
    argv = plan.get("argv") or []
    for index, word in enumerate(argv):
        flag, equals, value = str(word).partition("=")
        if flag == "--shutdown-timeout":
            text = value if equals else str(argv[index + 1]) if index + 1 < len(argv) else ""
            return int(text) if _SECONDS.fullmatch(text) else 0
    return 0


def stop_timeout_s(plan: Mapping[str, Any]) -> int:
    """Seconds after which an engine that was asked to end is killed: longer than it may drain."""
    return max(STOP_TIMEOUT_S, shutdown_timeout_s(plan) + STOP_MARGIN_S)


def start_timeout_s(plan: dict[str, Any]) -> int:
    """Seconds that a start may take."""
    return int(plan.get("start_timeout_s") or START_TIMEOUT_S)


def raised_limits(proc_root: Path) -> list[str]:
    """Limits of a GPU instance (pinned memory, many sockets), in the form NAME=SOFT:HARD of both engines.

    No limit where the host's own init lacks CAP_SYS_RESOURCE, as inside another container: asking for more than what is
    inherited would keep the container from starting.
    """
    try:
        status = (proc_root / "1" / "status").read_text(encoding="utf-8")
        most = int((proc_root / "sys/fs/nr_open").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    bounding = re.search(r"^CapBnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
    if not bounding or not int(bounding[1], 16) >> _CAP_SYS_RESOURCE & 1:
        return []
    files = min(OPEN_FILES, most)
    return [f"nofile={files}:{files}", "memlock=-1:-1"]


def unit_section(plan: dict[str, Any], requires: Sequence[str] = (), paths: Sequence[str] = ()) -> tuple[str, Entries]:
    """[Unit]: order, the *paths* that must be mounted, and a limit of starts."""
    needed = [
        *requires,
        *(_checked(_UNIT, name, "unit", "such as name.service") for name in plan.get("requires") or []),
    ]
    # Longer than all allowed attempts take together, or the limit never trips and a bad flag loops for ever.
    interval = 2 * START_LIMIT_BURST * (start_timeout_s(plan) + RESTART_SEC)
    wanted = GPU_WANTS if plan.get("gpus") else AFTER
    return (
        "Unit",
        [
            ("Description", f"vLLM instance {check_name(str(plan['instance']))}"),
            *(("Requires", name) for name in needed),
            *(("Wants", name) for name in wanted if name not in needed),
            *(("After", name) for name in (*(name for name in needed if name not in AFTER), *AFTER)),
            *(("RequiresMountsFor", path) for path in paths),
            ("StartLimitIntervalSec", str(interval)),
            ("StartLimitBurst", str(START_LIMIT_BURST)),
        ],
    )


def gpu_guard(plan: dict[str, Any]) -> str | None:
    """Shell for the host before each start, also at boot: one line and a failure where the driver lacks a GPU.

    Else the engine says it later and in other words: a module and libraries of different versions after an upgrade
    without a reboot, a GPU that fell off the bus. The container engine speaks for itself where CDI or a path is
    missing. None for a plan without GPUs; a host without nvidia-smi is left to the engine.
    """
    gpus = [device.partition("=")[2] for device in cdi_devices(plan)]
    if not gpus:
        return None
    said = f"error: nvidia-smi does not list GPU $gpu, which {check_name(str(plan['instance']))} needs, but says:"
    return (
        "command -v nvidia-smi >/dev/null || exit 0; set -f;"
        f" list=$(timeout -k 5 {GUARD_S} nvidia-smi -L 2>&1); for gpu in {' '.join(gpus)}; do"
        ' case "$list" in *"GPU $gpu: "*|*"(UUID: $gpu)"*) ;;'
        f' *) echo "{said}" ${{list:-nothing}} >&2; exit 1;; esac; done'
    )


def service_entries(plan: dict[str, Any]) -> Entries:
    """[Service], without the commands."""
    return [
        # The engine exits with 0 when it dies. Status 2 is a command line that it refuses: no use to repeat it.
        ("Restart", "always"),
        ("RestartSec", str(RESTART_SEC)),
        ("RestartPreventExitStatus", "2"),
        ("TimeoutStartSec", str(start_timeout_s(plan))),
        ("TimeoutStopSec", str(stop_timeout_s(plan) + STOP_MARGIN_S)),
    ]


INSTALL: tuple[str, Entries] = ("Install", [("WantedBy", "multi-user.target")])


def write_sections(sections: Sections) -> str:
    """The text of a unit file."""
    blocks = [f"{MANAGED}: changes made here are overwritten"]
    for title, entries in sections:
        blocks.append("\n".join([f"[{title}]", *(f"{key}={value}" for key, value in entries)]))
    text = "\n\n".join(blocks) + "\n"
    if len(text.encode()) > UNIT_BYTES:
        raise EngineError(
            f"Cannot write a unit of {len(text.encode())} bytes, of which systemd reads {UNIT_BYTES} at most; shorten"
            " flags and env of the instance."
        )
    return text
