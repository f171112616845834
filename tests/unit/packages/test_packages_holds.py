# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is noted of holds may be damaged: then no hold is taken for socle's."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._packages.holds import LEDGER, Holds


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"held": ["\xff"]}', b"{"])
def test_a_damaged_file_names_no_hold_and_is_written_anew(tmp_path: Path, text: bytes) -> None:
    (tmp_path / LEDGER).parent.mkdir(parents=True)
    (tmp_path / LEDGER).write_bytes(text)
    holds = Holds(Files(), tmp_path)
    assert holds.own() == set()
    holds.add(["podman"])
    assert holds.own() == {"podman"}


def test_a_folder_in_its_place_names_no_hold_and_is_one_sentence_when_it_matters(tmp_path: Path) -> None:
    (tmp_path / LEDGER).mkdir(parents=True)
    holds = Holds(Files(), tmp_path)
    assert holds.own() == set()
    with pytest.raises(SocleError, match=r"note which packages are held: Is a directory.*move that folder away"):
        holds.add(["podman"])
