# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that runs inside an image, against a package that has the parts of vLLM it looks at."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._flags import extract

PACKAGE = {
    "vllm/__init__.py": "print('a line of the package')\n__version__ = '0.99.1+cpu'\n",
    "vllm/platforms/__init__.py": """
def __getattr__(name):
    if name == "current_platform":
        raise RuntimeError("Failed to infer device type")
    raise AttributeError(name)
""",
    "vllm/platforms/cpu.py": "class CpuPlatform:\n    pass\n",
    "vllm/utils/__init__.py": "",
    "vllm/utils/argparse_utils.py": """
import argparse
class FlexibleArgumentParser(argparse.ArgumentParser):
    pass
def human_readable_int(value):
    return int(value)
""",
    "vllm/config/__init__.py": """
import dataclasses
from typing import Literal, Optional
@dataclasses.dataclass
class Inner:
    depth: int = 1
@dataclasses.dataclass
class SpeculativeConfig:
    method: Optional[Literal["mtp", "old_mtp"]] = None
    tokens: int = 0
    inner: Optional[Inner] = None
    made: bool = dataclasses.field(default=False, init=False)
@dataclasses.dataclass
class VllmConfig:
    speculative_config: Optional[SpeculativeConfig] = None
""",
    "vllm/config/speculative.py": "from typing import Literal\nMTPModelTypes = Literal['mtp', 'old_mtp']\n",
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": "class EngineArgs:\n    pass\n",
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/cli/__init__.py": "",
    "vllm/entrypoints/cli/serve.py": """
import argparse, json, sys
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import human_readable_int
def optional_type(return_type):
    def _optional_type(val):
        return return_type(val)
    return _optional_type
class ServeSubcommand:
    def subparser_init(self, subparsers):
        parser = subparsers.add_parser("serve")
        parser.add_argument("model_tag", nargs="?")
        if "--help" not in sys.argv:
            parser.add_argument("--model")
        parser.add_argument("--speculative-config", "-sc", type=optional_type(json.loads))
        parser.add_argument("--enable-it", action=argparse.BooleanOptionalAction, default=None, help="Secret words.")
        parser.add_argument("--batch", type=human_readable_int, default=2048)
        parser.add_argument("--kind", choices=["b", "a", None], default="a")
        parser.add_argument("--loose", metavar=["y", "x"], default="x")
        parser.add_argument("--old", help="Deprecated: will be removed in\\n    v1.0. Use --batch instead.")
        parser.add_argument("--names", nargs="+", default=[])
        return parser
""",
    "vllm/model_executor/__init__.py": "",
    "vllm/model_executor/model_loader.py": "_LOAD_FORMAT_TO_MODEL_LOADER = {'auto': 1}\n",
    "vllm/model_executor/layers/__init__.py": "",
    "vllm/model_executor/layers/quantization.py": "QUANTIZATION_METHODS = ['fp8', 'awq']\n",
    "vllm/reasoning.py": "class ReasoningParserManager:\n    lazy_parsers = {'qwen3': ('module', 'Qwen3Parser')}\n",
    "vllm/entrypoints/openai/__init__.py": "",
    "vllm/entrypoints/openai/tool_parsers.py": """
class ToolParserManager:
    class Hermes:
        pass
    tool_parsers = {'hermes': Hermes}
""",
    "vllm/v1/__init__.py": "",
    "vllm/v1/attention/__init__.py": "",
    "vllm/v1/attention/backends/__init__.py": "",
    "vllm/v1/attention/backends/registry.py": "import enum\nAttentionBackendEnum = enum.Enum('A', 'FLASHINFER')\n",
    "vllm/envs.py": "environment_variables = {'VLLM_B': 1, 'VLLM_A': 1}\n",
    "torch.py": "__version__ = '2'\n",
    "transformers.py": "__version__ = '5'\n",
    "pydantic.py": "__version__ = '2.1'\n",
}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("package")
    for name, text in PACKAGE.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-"],
        input=inspect.getsource(extract),
        env={"PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "a line of the package" in done.stderr
    # Whatever the package prints, the document alone is on the standard output.
    return dict(json.loads(done.stdout))


def test_it_needs_no_device_and_tells_the_version_without_its_build(document: dict[str, Any]) -> None:
    assert document["vllm_version"] == "0.99.1"
    assert document["schema"] == "socle.vllm_flags/1"


def test_flags_with_names_types_and_defaults(document: dict[str, Any]) -> None:
    assert document["flags"] == {
        "model": {"type": "str"},
        "speculative-config": {
            "type": "json",
            "optional": True,
            "aliases": ["-sc"],
            "class": "SpeculativeConfig",
        },
        "enable-it": {"type": "switch", "negations": ["no-enable-it"]},
        "batch": {"type": "size", "default": 2048},
        "kind": {"type": "str", "choices": ["a", "b"], "default": "a"},
        "loose": {"type": "str", "advised": ["x", "y"], "default": "x"},
        "old": {"type": "str", "deprecated": {"use": "batch", "removed_in": "1.0"}},
        "names": {"type": "str", "nargs": "+", "default": []},
    }


def test_keys_of_json_flags_and_of_what_is_within(document: dict[str, Any]) -> None:
    assert document["classes"] == {
        "Inner": {"rest": "forbid", "keys": {"depth": {"types": ["int"]}}},
        "SpeculativeConfig": {
            "rest": "forbid",
            "keys": {
                "method": {
                    "types": ["null", "str"],
                    "choices": ["mtp", "old_mtp"],
                    "replaced": {"by": "mtp", "values": ["old_mtp"]},
                },
                "tokens": {"types": ["int"]},
                "inner": {"types": ["map", "null"], "class": "Inner"},
            },
        },
    }


def test_registries_and_environment(document: dict[str, Any]) -> None:
    assert document["registries"] == {
        "attention_backends": ["FLASHINFER"],
        "load_formats": ["auto"],
        "quantization_methods": ["awq", "fp8"],
        "reasoning_parsers": {"qwen3": "Qwen3Parser"},
        "tool_parsers": {"hermes": "Hermes"},
    }
    assert document["environment"] == ["VLLM_A", "VLLM_B"]


def test_no_word_of_the_help_is_kept(document: dict[str, Any]) -> None:
    assert "Secret words" not in json.dumps(document)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[DEPRECATED] No longer used.", {}),
        ("The way it was. This is deprecated and will be removed in v0.34.0.", {"removed_in": "0.34.0"}),
        ("The size. It has been replaced by cp_size, and goes later.", {"use": "cp-size"}),
        ("Whether to allow deprecated quantization methods.", None),
        ("Use --other for more.", None),
        ("", None),
    ],
)
def test_what_counts_as_deprecated(text: str, expected: Any) -> None:
    parser = extract.argparse.ArgumentParser()
    action = parser.add_argument("--it", help=text)
    assert extract.deprecation(action, marked=False) == expected
