# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the files that socle keeps on a host. Private to socle.inference."""

from __future__ import annotations

from ansible_collections.socle.inference.plugins.module_utils._stack.check import (
    AFTER,
    BOTH,
    ERROR,
    WARNING,
    Check,
    Evidence,
    Tree,
)


def left_stopped(_facts: Tree, stack: Tree, _intent: Tree) -> Evidence:
    units = stack.get("left_stopped") or []
    return {"units": units, "first": " ".join(units), "do": "does" if len(units) == 1 else "do"} if units else None


def damaged_notes(_facts: Tree, stack: Tree, _intent: Tree) -> Evidence:
    notes = [f"{note['path']} ({note['why']})" for note in stack.get("damaged_notes") or []]
    return {"notes": notes, "do": "does" if len(notes) == 1 else "do"} if notes else None


def damaged_keys(_facts: Tree, stack: Tree, _intent: Tree) -> Evidence:
    damaged = stack.get("damaged_keys") or []
    keys = [one["key"] for one in damaged]
    files = [one["file"] for one in damaged]
    return {"keys": keys, "files": files, "be": "is" if len(keys) == 1 else "are"} if keys else None


CHECKS = (
    Check(
        "SOC-H98",
        "A change of the driver left instances stopped",
        ERROR,
        (AFTER,),
        "Units in /var/lib/socle/gpu_driver_stopped.json, which a run notes before it stops them, that do not run.",
        "{units} {do} not run: a change of the driver stopped what uses the GPUs, and did not come to its end.",
        "Run playbook provision.yml, which ends the change and starts them, or 'systemctl start {first}'.",
        left_stopped,
        needs_gpu=False,
    ),
    Check(
        "SOC-H99",
        "A note of held packages is damaged",
        WARNING,
        BOTH,
        "The notes of socle's own holds, /var/lib/socle/gpu_driver.json and package_holds.json there.",
        "{notes} {do} not say which packages socle holds, so that its holds count as somebody else's, and a change of"
        " these packages is refused.",
        "Remove it, release the holds that socle has set ('apt-mark showhold' or 'dnf versionlock list' shows all), and"
        " run playbook provision.yml, which sets and notes them anew.",
        damaged_notes,
        needs_gpu=False,
    ),
    Check(
        "SOC-H100",
        "A signing key of a package source is damaged",
        WARNING,
        (AFTER,),
        "Key files that socle's own package sources name: one that is missing or does not begin as an OpenPGP public"
        " key.",
        "{keys} {be} no signing key: the package manager takes nothing from {files}, and upgrades of the system fail"
        " there.",
        "Run playbook provision.yml, which fetches it again.",
        damaged_keys,
        needs_gpu=False,
    ),
)
"""Checks of these files, by id."""
