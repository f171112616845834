# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the installed driver runs, can be loaded in place, or needs a reboot; pure. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MODULES = ("nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia_peermem", "nvidia")
"""In the order in which they can be removed."""


@dataclass(frozen=True)
class State:
    """The driver as the kernel and the disk have it."""

    kernel: str
    loaded: str | None
    loaded_flavour: str | None
    disk: str | None
    """Version of the module file for the running kernel."""
    disk_flavour: str | None
    next_kernel: str | None
    """The newest installed kernel."""
    next_disk: str | None
    nouveau: bool
    users: Mapping[str, int]
    """Loaded module of NVIDIA -> how often it is used by what is not a module of NVIDIA."""


@dataclass(frozen=True)
class Activation:
    """*action*: "none", "load" (modules are loaded anew) or "reboot"; *reason*: a clause without its full stop."""

    action: str
    reason: str


def activation(state: State, options_differ: Sequence[str] = (), others: Sequence[str] = ()) -> Activation:
    """What makes the driver on disk the running one, once the units that use the GPUs are stopped.

    *others* names what else uses them.
    """
    if state.disk is None:
        if state.next_disk is not None and state.next_kernel != state.kernel:
            return Activation(
                "reboot",
                f"the module {state.next_disk} is built for kernel {state.next_kernel}, and {state.kernel} runs",
            )
        return Activation("none", "no module is installed")
    if state.loaded is None:
        if state.nouveau:
            return Activation("reboot", "nouveau is loaded and holds the GPUs")
        return Activation("load", f"the module {state.disk} is not loaded")
    why = None
    if state.loaded != state.disk:
        why = f"module {state.loaded} is loaded and {state.disk} is installed"
    elif state.loaded_flavour and state.disk_flavour and state.loaded_flavour != state.disk_flavour:
        why = f"the {state.loaded_flavour} module is loaded and the {state.disk_flavour} one is installed"
    elif options_differ:
        why = f"the loaded module has other values of {', '.join(options_differ)}"
    if why is None:
        return Activation("none", f"module {state.loaded} is loaded")
    busy = [*(f"{name} ({count})" for name, count in sorted(state.users.items()) if count > 0), *others]
    if busy:
        return Activation("reboot", f"{why}, and the modules are in use: {', '.join(busy)}")
    return Activation("load", why)


def prediction(state: State, target: str, busy: Sequence[str]) -> Activation:
    """The same before a transaction: what will be needed after *target* is installed; *busy* names what will stay."""
    if state.nouveau and state.loaded is None:
        return Activation("reboot", "nouveau is loaded and holds the GPUs")
    if state.loaded is None:
        return Activation("load", "no module is loaded")
    if busy:
        return Activation(
            "reboot", f"module {state.loaded} is loaded, {target} will be installed, and {', '.join(busy)} uses a GPU"
        )
    return Activation("load", f"module {state.loaded} is loaded and {target} will be installed")
