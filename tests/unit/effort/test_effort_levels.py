# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each of the eight levels gets on each API, before and after, by version."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._plan.effort import (
    APIS,
    FLAG,
    TEMPLATE,
    answer,
    effort_lines,
    effort_map,
    effort_table,
    means,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.models import EFFORTS, Effort

from tests.support.effort_model import MEDIUM, XHIGH

DOCUMENT = Path(__file__).parents[3] / "docs" / "effort.md"

# none minimal low medium high xhigh max ultra, as run against the stock template.
STOCK = {
    ("chat", "0.19.1"): "400 400 low medium 400 400 400 400",
    ("chat", "0.23.0"): "off 400 low medium 400 xhigh 400 400",
    ("chat", "0.26.0"): "off 400 low medium 400 xhigh 400 400",
    ("chat", "0.32.0"): "off 400 low medium 400 xhigh 400 400",
    ("responses", "0.19.1"): "400 400 low medium 400 xhigh ? 400",
    ("responses", "0.32.0"): "off 400 low medium 400 xhigh 400 400",
    ("messages", "0.19.1"): "xhigh xhigh xhigh xhigh xhigh xhigh xhigh xhigh",
    ("messages", "0.23.0"): "400 400 low medium 500 xhigh 500 400",
    ("messages", "0.26.0"): "400 400 low medium 500 xhigh 500 400",
    ("messages", "0.32.0"): "400 400 low medium 400 xhigh 400 400",
    ("kwargs", "0.26.0"): "400 400 low medium 400 xhigh 400 400",
}

OVERLAY = {
    ("chat", "0.19.1"): "off 400 low medium xhigh 400 400 400",
    ("chat", "0.26.0"): "off low low medium xhigh xhigh xhigh 400",
    ("responses", "0.19.1"): "off low low medium xhigh xhigh ? 400",
    ("responses", "0.32.0"): "off low low medium xhigh xhigh xhigh 400",
    ("messages", "0.26.0"): "400 400 low medium xhigh xhigh xhigh 400",
    ("kwargs", "0.26.0"): "off low low medium xhigh xhigh xhigh xhigh",
}


def row(api: str, version: str, effort: Effort, **more: object) -> str:
    found = [answer(level, api, version, effort, **more) for level in EFFORTS]  # type: ignore[arg-type]
    return " ".join(str(each).removeprefix("200 ") for each in found)


@pytest.mark.parametrize(("api", "version"), STOCK)
def test_the_model_s_own_template(api: str, version: str, effort: Effort) -> None:
    if (api, version) == ("kwargs", "0.26.0"):
        # A template that is told none, and not to think no longer, refuses it like any other word.
        assert answer("none", "kwargs", version, effort).status == 400
    assert row(api, version, effort) == STOCK[api, version]


@pytest.mark.parametrize(("api", "version"), OVERLAY)
def test_with_aliases_by_template(api: str, version: str, effort: Effort) -> None:
    assert row(api, version, effort, aliases=XHIGH, by=TEMPLATE) == OVERLAY[api, version]


def test_high_can_mean_medium(effort: Effort) -> None:
    found = answer("high", "messages", "0.26.0", effort, MEDIUM, TEMPLATE)
    assert (found.status, found.effort) == (200, "medium")


def test_with_the_flag_of_0_33(effort: Effort) -> None:
    expected = "off low low medium xhigh xhigh xhigh 400"
    assert row("chat", "0.33.0", effort, aliases=XHIGH, by=FLAG) == expected
    assert row("messages", "0.33.0", effort, aliases=XHIGH, by=FLAG) == "400 400 low medium xhigh xhigh xhigh 400"
    assert row("kwargs", "0.33.0", effort, aliases=XHIGH, by=FLAG) == row("kwargs", "0.33.0", effort)


def test_the_flag_has_only_levels_that_the_server_takes() -> None:
    assert effort_map(XHIGH) == {"minimal": "low", "high": "xhigh", "max": "xhigh"}
    assert effort_map(MEDIUM)["high"] == "medium"
    assert effort_map({}) == {}


@pytest.mark.parametrize(
    ("version", "own", "found"),
    [("0.32.0", False, TEMPLATE), ("0.33.0", False, FLAG), ("0.34.1", False, FLAG), ("0.33.0", True, None)],
)
def test_by_what_means(version: str, own: bool, found: str | None) -> None:
    assert means(version, own) == found


def test_the_document_shows_what_the_data_say(effort: Effort) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for version, by in (("0.19.1", TEMPLATE), ("0.23.0", TEMPLATE), ("0.26.0", TEMPLATE), ("0.32.0", TEMPLATE)):
        assert "\n".join(effort_lines(version, effort, XHIGH, by)) in text, version
    assert "\n".join(effort_lines("0.33.0", effort, XHIGH, FLAG)) in text


def test_the_table_has_every_level_and_api(effort: Effort) -> None:
    table = effort_table("0.26.0", effort, XHIGH, TEMPLATE)
    assert list(table) == list(EFFORTS)
    assert all(list(row) == list(APIS) for row in table.values())
