# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No profile that the collection ships has a flag or variable that its own version of the engine would not take."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._plan.data import Catalogue
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import DataPath

from .conftest import Check

CATALOGUE = Catalogue(DataPath([]))


@pytest.mark.parametrize("name", CATALOGUE.serving_names())
def test_flags_of_a_serving_profile(check: Check, name: str) -> None:
    model, _dashes, host_class = name.partition("--")
    layers = (CATALOGUE.model(model), CATALOGUE.host_class(host_class))
    profiles = CATALOGUE.serving(model, host_class).profiles
    assert "safe" in profiles
    for profile in profiles.values():
        flags: dict[str, Any] = {}
        for layer in (*layers, profile):
            flags.update(layer.flags)
        env = {**CATALOGUE.engine().env, **profile.env}
        findings = check(profile.vllm_version, flags, env)
        assert [finding for finding in findings if finding.severity != "note"] == [], profile.name
