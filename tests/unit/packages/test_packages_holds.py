# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is noted of holds may be damaged: then no hold is taken for socle's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._packages.holds import LEDGER, Holds, damage, refusal


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


def spoil(path: Path, how: str) -> None:
    """Put a folder, a pipe, a link to nothing or a text in the place of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "link":
        path.symlink_to("/nowhere")
    else:
        path.write_text(how, encoding="utf-8")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("folder", "it is a folder"),
        ("pipe", "it is no regular file"),
        ("link", "it is no regular file"),
        ("{", "it is no JSON"),
        ("[]", "it names no packages"),
        ('{"held": [1]}', "it names no packages"),
        ('{"held": ["podman"]}', ""),
        ("", ""),
    ],
)
def test_what_is_wrong_with_the_note_is_known_without_opening_what_waits(tmp_path: Path, how: str, why: str) -> None:
    spoil(tmp_path / LEDGER, how)
    assert damage(tmp_path / LEDGER) == why
    assert damage(tmp_path / "nothing") == ""


def test_a_refusal_over_holds_says_that_they_may_be_our_own(tmp_path: Path) -> None:
    holds = Holds(Files(), tmp_path)
    assert holds.lost() == ""
    spoil(tmp_path / LEDGER, "pipe")
    said = refusal("install podman", ["podman"], "debian", lost=holds.lost())
    assert said.startswith(
        "Cannot install podman: /var/lib/socle/package_holds.json, which notes socle's own holds, cannot be read (it is"
        " no regular file), so they count as somebody else's: podman is held, and not by socle; release with "
    )
