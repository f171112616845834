# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Numbers that Docker would not take are refused before anything is changed."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._toolkit.engine_settings import ARGUMENTS, from_options

OPTIONS: dict[str, Any] = {name: option.get("default") for name, option in ARGUMENTS.items()}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("log_max_files", 0),
        ("log_max_files", -1),
        ("nofile", "\N{SUPERSCRIPT TWO}"),
        ("nofile", "\N{ARABIC-INDIC DIGIT FIVE}"),
        ("nofile", "9" * 5000),
        ("log_max_size", "\N{ARABIC-INDIC DIGIT FIVE}m"),
        ("log_max_size", "50m\n"),
        ("log_max_size", "0m"),
        ("log_max_size", "much"),
    ],
)
def test_a_number_that_is_none_is_one_sentence(option: str, value: object) -> None:
    with pytest.raises(SocleError, match=rf"correct container_engine_{option}\. Nothing was changed\.$") as caught:
        from_options({**OPTIONS, option: value}, needs_cdi=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", ["", "50m", "1G", "1048576", "100k"])
def test_sizes_that_docker_takes_are_taken(size: str) -> None:
    assert from_options({**OPTIONS, "log_max_size": size}, needs_cdi=False).log_max_size == size
