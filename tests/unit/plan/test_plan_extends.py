# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Profiles that take what they have in common from another one of their file."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.data import Catalogue
from ansible_collections.socle.inference.plugins.module_utils._plan.serving import Serving
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import COLLECTION

from .conftest import MemoryReader


@pytest.fixture
def profiles(documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Those of one serving file, to be changed by a test."""
    found: dict[str, Any] = documents["profiles/serving"]["small-chat--cpu"]["profiles"]
    found["default"].update(
        {
            "document": "report",
            "description": "The first.",
            "changes": [{"option": "-x", "reason": "y", "source": "z"}],
            "measured": {"decode_tok_s": {"value": 1, "source": "report"}},
            "cuda": "13.0",
        }
    )
    return found


@pytest.fixture
def serving(documents: dict[str, dict[str, Any]], profiles: dict[str, Any]) -> Any:
    return lambda: Catalogue(MemoryReader(documents)).serving("small-chat", "cpu")


def test_a_profile_has_all_of_another_but_what_it_says_itself(profiles: dict[str, Any], serving: Any) -> None:
    profiles["long"] = {
        "extends": "default",
        "flags": {"max-model-len": 8192, "enable-prefix-caching": None},
        "env": {"A": "1"},
    }
    made: Serving = serving()
    base, long = made.profiles["default"], made.profiles["long"]
    assert long.flags == {"max-model-len": 8192, "enable-prefix-caching": None}
    assert long.env == {**base.env, "A": "1"}
    assert (long.slo, long.cuda, long.image) == (base.slo, base.cuda, base.image)
    assert (long.vllm_version, long.shm_size_bytes, long.start_timeout_s) == (
        base.vllm_version,
        base.shm_size_bytes,
        base.start_timeout_s,
    )
    assert long.origin == "profiles/serving/small-chat--cpu.yml (long)"
    assert base.flags == {"max-model-len": 4096, "enable-prefix-caching": True}


def test_what_was_told_or_measured_of_the_other_is_not_told_of_it(profiles: dict[str, Any], serving: Any) -> None:
    profiles["long"] = {"extends": "default", "flags": {"max-model-len": 8192}}
    long = serving().profiles["long"]
    assert (long.description, long.document, long.changes, long.measured) == ("", None, (), {})


def test_a_reason_stays_with_the_value_that_it_explains(profiles: dict[str, Any], serving: Any) -> None:
    profiles["same"] = {"extends": "default"}
    profiles["long"] = {"extends": "default", "flags": {"max-model-len": 8192}}
    made = serving()
    assert made.profiles["same"].evidence["max-model-len"] == {"source": "measured"}
    assert "max-model-len" not in made.profiles["long"].evidence


def test_profiles_may_stand_in_a_line_in_any_order(profiles: dict[str, Any], serving: Any) -> None:
    documents = {"last": {"extends": "middle", "flags": {"c": 3}}, "middle": {"extends": "default", "flags": {"b": 2}}}
    profiles.update(documents)
    assert serving().profiles["last"].flags == {**profiles["default"]["flags"], "b": 2, "c": 3}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"long": {"extends": "defalut"}}, "profiles.long.extends is 'defalut', which is none of the profiles of the"),
        ({"long": {"extends": "defalut"}}, "(default, safe); did you mean 'default'?"),
        ({"long": {"extends": "long"}}, "profiles.long extends itself (long -> long); let one of them stand alone."),
        ({"a": {"extends": "b"}, "b": {"extends": "a"}}, "profiles.b extends itself (b -> a -> b)"),
        ({"bare": {"image": "x:1"}}, "profiles.bare lacks vllm_version, shm_size_bytes, start_timeout_s; add"),
        ({"long": {"extends": "default", "evidence": {"a": {"source": "x"}}}}, "profiles.long.evidence.a is about"),
        ({"long": {"extends": "default", "effort_aliases": "high"}}, "profiles.long.effort_aliases is 'high'"),
    ],
)
def test_what_cannot_be_extended_is_told(
    profiles: dict[str, Any], serving: Any, more: dict[str, Any], sentence: str
) -> None:
    profiles.update(more)
    with pytest.raises(PlanError) as refused:
        serving()
    assert [told for told in refused.value.fields["errors"] if sentence in told]


@pytest.mark.parametrize("path", sorted(COLLECTION.glob("profiles/**/*.yml")), ids=lambda path: path.stem)
def test_own_files_merge_no_maps(path: Any) -> None:
    """Ansible, and so every run of ansible-lint, warns of a merged key that is overridden; extends says the same."""
    assert "<<:" not in path.read_text(encoding="utf-8")
