# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turns the GGUF file of SmolLM2-135M-Instruct into a model directory that vLLM serves. Runs in the engine image.

Usage: convert_model.py MODEL.gguf OUTPUT_DIRECTORY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    source, output = Path(sys.argv[1]), Path(sys.argv[2])
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    model = model.to(torch.bfloat16)
    # The output layer is tied to the embedding: written twice it would be two tensors.
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_file(state, output / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config.pop("_name_or_path", None)
    config.update(architectures=["LlamaForCausalLM"], dtype="bfloat16")
    (output / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    model.generation_config.save_pretrained(output)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(output)
    for file in output.iterdir():
        file.chmod(0o644)


main()
