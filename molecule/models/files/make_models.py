# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes two models whose safetensors files are sound and whose tensors are random bytes: `make_models.py FOLDER`."""

from __future__ import annotations

import json
import random
import struct
import sys
from pathlib import Path

MIB = 1 << 20


def shard(tensor: str, size: int) -> bytes:
    """A safetensors file with one tensor of *size* bytes."""
    header = json.dumps({tensor: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + random.Random(tensor).randbytes(size)


def model(folder: Path, shards: int, size: int) -> None:
    """A config, an index and *shards* files of *size* bytes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    weights = {f"t{number}": f"model-{number:05d}-of-{shards:05d}.safetensors" for number in range(1, shards + 1)}
    for tensor, name in weights.items():
        (folder / name).write_bytes(shard(f"{tensor}", size))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))


def main(root: Path) -> None:
    """Both models."""
    model(root / "Org" / "Small", 1, 3 * MIB)
    model(root / "Org" / "Sharded", 4, 16 * MIB)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
