# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the driver's modules run commands and keep temporary files. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._driver.decide import Settings
from ansible_collections.socle.inference.plugins.module_utils._driver.plan import Host
from ansible_collections.socle.inference.plugins.module_utils._gpu.commands import run_limited
from ansible_collections.socle.inference.plugins.module_utils._packages.apt import ENVIRONMENT

NVIDIA_SMI_S = 60.0
"""A driver in trouble makes nvidia-smi hang for ever; a slow one on eight GPUs takes up to 20 s."""


def host_of(module: Any) -> Host:
    """The host that *module* (an AnsibleModule with the options root and proc_root) runs on."""

    def run(argv: Sequence[str]) -> tuple[int, str, str] | None:
        path = module.get_bin_path(argv[0])
        if path is None:
            return None
        if argv[0] == "nvidia-smi":
            return run_limited([path, *argv[1:]], NVIDIA_SMI_S)
        code, stdout, stderr = module.run_command([path, *argv[1:]], environ_update=ENVIRONMENT)
        return code, stdout, stderr

    root = Path(module.params["root"])

    def preference_file(text: str) -> str:
        # The option names one file, and what the host's own file says must go on to hold.
        own = root / "etc/apt/preferences"
        kept = own.read_text(encoding="utf-8", errors="replace") if own.is_file() else ""
        path = Path(module.tmpdir) / "preferences"
        path.write_text(f"{text}\n{kept}", encoding="utf-8")
        return str(path)

    return Host(run, root, Path(module.params["proc_root"]), preference_file)


SETTINGS = {
    "state": {"type": "str", "choices": ["present", "absent", "unmanaged"], "default": "present"},
    "source": {"type": "str", "choices": ["nvidia", "distribution"], "default": "nvidia"},
    "branch": {"type": "str", "default": ""},
    "version": {"type": "str", "default": ""},
    "flavour": {"type": "str", "choices": ["auto", "open", "proprietary"], "default": "auto"},
    "architecture": {"type": "str", "default": ""},
    "minimum": {"type": "str", "default": ""},
    "cuda": {"type": "str", "default": "13"},
    "compute_only": {"type": "bool", "default": True},
    "upgrade": {"type": "bool", "default": False},
    "hold": {"type": "bool", "default": True},
    "repository_url": {"type": "str", "default": "https://developer.download.nvidia.com/compute/cuda/repos"},
    "services": {"type": "list", "elements": "str", "default": []},
    "reboot": {"type": "str", "choices": ["auto", "never", "force"], "default": "auto"},
    "module_options": {"type": "dict", "default": {}},
    "persistence": {"type": "bool", "default": True},
}
"""The argument spec of the option settings, which the role hands to every module."""

ARGUMENTS: dict[str, dict[str, Any]] = {
    "facts": {"type": "dict", "required": True},
    "settings": {"type": "dict", "default": {}, "options": SETTINGS, "apply_defaults": True},
    "root": {"type": "path", "default": "/"},
    "sys_root": {"type": "path", "default": "/sys"},
    "proc_root": {"type": "path", "default": "/proc"},
}
"""The argument spec of the options that fragments gpu_driver and roots document."""


def settings_of(module: Any) -> Settings:
    """The option settings as decisions take it."""
    given = module.params["settings"]
    return Settings(**{**given, "services": tuple(given["services"])})
