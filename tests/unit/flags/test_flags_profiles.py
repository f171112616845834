# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No profile that the collection ships has a flag or variable that its own version of the engine would not take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import FOLDER, Check

PROFILES = FOLDER.parent


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted((PROFILES / "serving").glob("*.yml")), ids=lambda path: path.stem)
def test_flags_of_a_serving_profile(check: Check, path: Path) -> None:
    document = load(path)
    model = load(PROFILES / "models" / f"{document['model']}.yml")
    host_class = load(PROFILES / "host_classes" / f"{document['host_class']}.yml")
    for name, profile in document["profiles"].items():
        flags: dict[str, Any] = {}
        env = dict(load(PROFILES / "engine.yml")["env"])
        for layer in (model, host_class, profile):
            flags.update(layer.get("flags", {}))
            env.update(layer.get("env", {}))
        findings = check(profile["vllm_version"], flags, env)
        assert [finding for finding in findings if finding.severity != "note"] == [], name
