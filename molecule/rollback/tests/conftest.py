# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab host for testinfra, and what the runs of `converge` said."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import testinfra.host

from tests.support.lab_testinfra import lab_host

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="session")
def host() -> testinfra.host.Host:
    return lab_host()


@pytest.fixture(scope="session")
def said() -> dict[str, str]:
    """Output of the runs that were to fail in the first converge, each as one line."""
    texts = json.loads((Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "said.json").read_text())
    return {name: " ".join(COLOUR.sub("", text).split()) for name, text in texts.items()}


@pytest.fixture(scope="session")
def log() -> str:
    """All output of this scenario's runs, in check mode with diff too."""
    return (Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "ansible.log").read_text()
