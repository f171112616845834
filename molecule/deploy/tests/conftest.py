# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab host for testinfra, and what the scenario wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import testinfra.host

from tests.support.lab_testinfra import api_key_of, lab_host

SCENARIO = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def host() -> testinfra.host.Host:
    return lab_host()


@pytest.fixture(scope="session")
def api_key() -> str:
    return api_key_of(SCENARIO, "keyed")


@pytest.fixture(scope="session")
def log() -> str:
    """All output of this scenario's runs, in check mode with diff too."""
    return (Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "ansible.log").read_text()
