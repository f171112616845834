# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Model files as objects, and how mistakes in them and in what profiles say of them are told."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.data import Catalogue
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import COLLECTION, DataPath

from tests.unit.plan.test_plan_data import user_data

MODEL = """\
name: tall
hub: modelscope
repo: org/Tall
revision: master
architecture:
  layers: 4
  full_attention_layers: 1
  kv_heads: 2
  head_dim: 64
  linear_attention:
    {layers: 3, key_heads: 2, value_heads: 2, key_head_dim: 64, value_head_dim: 64, conv_kernel: 4}
  max_position_embeddings: 8192
context: {native: 8192, limit_without_rope_override: 8192}
parsers:
  tool:
    - {name: old_xml, until: 0.23.0}
    - {name: new_json, since: 0.24.0}
effort:
  levels: [high, low]
  default: high
  aliases:
    usual: {max: high, minimal: low, none: none}
sampling:
  quick: {temperature: 0.7, top_k: 20, chat_template_kwargs: {enable_thinking: false}}
quantization: fp8
evidence:
  architecture: {source: its configuration}
  effort.aliases: {source: measured}
"""


def test_a_model_says_everything_of_its_file(tmp_path: Path) -> None:
    model = user_data(tmp_path, "profiles/models/tall.yml", MODEL).model("tall")
    assert (model.context.native, model.context.limit, model.max_position_embeddings) == (8192, 8192, 8192)
    assert (model.effort.levels, model.effort.default) == (("high", "low"), "high")
    assert model.effort.aliases["usual"]["max"] == "high"
    assert model.sampling["quick"]["chat_template_kwargs"] == {"enable_thinking": False}
    assert (model.quantization, model.size_bytes, model.trust_remote_code) == ("fp8", None, None)


@pytest.mark.parametrize(
    ("version", "names"),
    [("0.19.1", ("old_xml",)), ("0.23.0", ("old_xml",)), ("0.24.0", ("new_json",)), ("0.33.0+cpu", ("new_json",))],
)
def test_parsers_depend_on_the_version(tmp_path: Path, version: str, names: tuple[str, ...]) -> None:
    model = user_data(tmp_path, "profiles/models/tall.yml", MODEL).model("tall")
    assert model.tool_parser_names(version) == names
    assert model.reasoning_parser(version) is None


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("layers: 4", "layers: 5", ["architecture has 5 layers", "1 of full attention and 3"]),
        ("native: 8192", "native: 9000", ["context.limit_without_rope_override is 8192", "context.native, 9000"]),
        ("override: 8192", "override: 16384", ["max_position_embeddings is 8192", "make them agree"]),
        ("until: 0.23.0", "until: 0.23.0, since: 0.25.0", ["parsers.tool[0]", "until 0.23.0", "since 0.25.0"]),
        ("default: high", "default: xhigh", ["effort.default is 'xhigh'", "effort.levels"]),
        ("max: high", "max: xhigh", ["effort.aliases.usual.max is 'xhigh'", "high, low, none"]),
        ("max: high", "low: high", ["effort.aliases.usual.low gives another meaning"]),
        ("max: high", "ultr: high", ["effort.aliases.usual.ultr", "did you mean 'ultra'?"]),
        ("levels: [high, low]", "levels: [high, tiny]", ["effort.levels[1] must be one of"]),
        ("temperature: 0.7", "temprature: 0.7", ["sampling.quick", "did you mean 'temperature'?"]),
        ("top_k: 20", "top_k: many", ["sampling.quick.top_k must be a whole number"]),
        ("quantization: fp8", "quantization: fp9", ["quantization must be one of", "did you mean 'fp8'?"]),
        ("  effort.aliases: {", "  effort.alias: {", ["evidence.effort.alias is about nothing", "'effort.aliases'"]),
        ("kv_heads: 2", "kv_head: 2", ["architecture has the unknown key 'kv_head'", "did you mean 'kv_heads'?"]),
    ],
)
def test_a_bad_model_file_is_told(tmp_path: Path, old: str, new: str, parts: list[str]) -> None:
    assert old in MODEL
    with pytest.raises(PlanError) as refused:
        user_data(tmp_path, "profiles/models/tall.yml", MODEL.replace(old, new, 1)).model("tall")
    assert [part for part in ["site_data/profiles/models/tall.yml", *parts] if part not in refused.value.message] == []


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("effort_aliases: xhigh", "effort_aliases: medum", "did you mean 'medium'?"),
        ("evidence:\n  image:", "evidence:\n  seed: {source: x}\n  image:", "evidence.seed is about nothing in any"),
        (
            "tokens, for many agents at once.\n    document: report A800\n",
            "tokens, for many agents at once.\n    changes: [{option: -x, reason: y, source: z}]\n",
            "profiles.default has changes, but names no document",
        ),
        ("        reason: the document's switch ENABLE_MTP=0\n", "", "lacks the key 'reason'"),
        ("        value: 41\n", "", "measured.decode_tok_s lacks the key 'value'"),
    ],
)
def test_a_profile_that_speaks_of_nothing_is_told(tmp_path: Path, old: str, new: str, part: str) -> None:
    relative = "profiles/serving/qwen3.8-27b--a800_pcie_80g.yml"
    text = (COLLECTION / relative).read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(PlanError) as refused:
        user_data(tmp_path, relative, text.replace(old, new, 1)).serving("qwen3.8-27b", "a800_pcie_80g")
    assert any(part in sentence for sentence in refused.value.fields["errors"])


def test_what_profiles_share_is_explained_once_and_a_profile_s_own_words_win() -> None:
    profiles = Catalogue(DataPath([])).serving("qwen3.8-27b", "a800_pcie_80g").profiles
    assert profiles["mtp-off"].evidence["watermark"] == profiles["default"].evidence["watermark"]
    assert profiles["yarn-1m"].evidence["max-model-len"]["value"] == 1000000
    assert [change["option"] for change in profiles["mtp-off"].changes][-1] == "--speculative-config"
