# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scenario's host for testinfra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import testinfra.host
import yaml

from tests.support.lab_testinfra import lab_host

SCENARIO = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def variables() -> dict[str, Any]:
    found = yaml.safe_load((SCENARIO / "inventory/group_vars/virtual_lab.yml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="session")
def host(variables: dict[str, Any]) -> testinfra.host.Host:
    return lab_host(variables["ansible_port"])


@pytest.fixture(scope="session")
def api_key(variables: dict[str, Any]) -> str:
    return str(variables["vllm_instances"]["keyed"]["api_key"])
