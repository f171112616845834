# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that cannot give an instance its GPUs says so before the start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.guard import gpu_obstacle, listed_devices
from ansible_collections.socle.inference.plugins.module_utils._engine.unit import has_selinux, raised_limits

UUID = "GPU-5f2c0000-0000-0000-0000-000000000001"

YAML = f"""---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
    - name: "0"
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
    - name: {UUID}
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
    - containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
      name: all
containerEdits:
    hooks:
        - hookName: createContainer
          path: /usr/bin/nvidia-cdi-hook
"""

SAME = {"driver": {"version": "580.126.09", "library_version": "580.126.09"}}


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    (tmp_path / "cdi").mkdir()
    return [tmp_path / "missing", tmp_path / "cdi"]


@pytest.mark.parametrize("form", ["yaml", "json", "one line"])
def test_devices_are_read_from_every_form_of_a_specification(folders: list[Path], form: str) -> None:
    devices = [{"name": name, "containerEdits": {}} for name in ("0", UUID, "all")]
    document = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}
    texts = {"yaml": YAML, "json": json.dumps(document, indent=2), "one line": json.dumps(document)}
    (folders[1] / f"nvidia.{'yaml' if form == 'yaml' else 'json'}").write_text(texts[form])
    assert listed_devices(folders) == {"nvidia.com/gpu=0", f"nvidia.com/gpu={UUID}", "nvidia.com/gpu=all"}


def test_specifications_of_others_and_other_files_do_not_count(folders: list[Path]) -> None:
    (folders[1] / "other.yaml").write_text(YAML.replace("nvidia.com/gpu", "vendor.example/gpu"))
    (folders[1] / "nvidia.yaml.bak").write_text(YAML)
    assert listed_devices(folders) == set()


@pytest.mark.parametrize(
    ("gpus", "facts", "sentence"),
    [
        ([0, UUID], SAME, None),
        ([0], None, None),
        ([0], {"driver": {"version": "580.126.09", "library_version": None}}, None),
        ([], {"driver": {"version": "1", "library_version": "2"}}, None),
        (
            [0],
            {"driver": {"version": "570.195.03", "library_version": "580.126.09"}},
            "the loaded NVIDIA module is version 570.195.03 and the libraries are 580.126.09, expected the same;",
        ),
        (
            [0, 1],
            SAME,
            "expected a CDI specification with nvidia.com/gpu=1, found only nvidia.com/gpu=0, nvidia.com/gpu=",
        ),
    ],
)
def test_what_keeps_a_host_from_giving_its_gpus_is_one_sentence(
    folders: list[Path], gpus: list[Any], facts: dict[str, Any] | None, sentence: str | None
) -> None:
    (folders[1] / "nvidia.yaml").write_text(YAML)
    found = gpu_obstacle({"instance": "chat", "gpus": gpus}, facts, folders)
    assert (found is None) == (sentence is None)
    if found is not None and sentence is not None:
        assert found.message.startswith("Cannot start chat: ") and sentence in found.message


def test_a_host_without_a_specification_is_told_how_to_write_one(folders: list[Path]) -> None:
    found = gpu_obstacle({"instance": "chat", "gpus": [0]}, SAME, folders)
    assert found is not None and "found no device of NVIDIA in" in found.message
    # Not nvidia-ctk, whose file in /etc/cdi would hide every later one from the service.
    assert "'systemctl restart nvidia-cdi-refresh'" in found.message and "nvidia-ctk" not in found.message


@pytest.mark.parametrize(
    ("bounding", "most", "limits"),
    [
        ("000001ffffffffff", "1048576", ["nofile=1048576:1048576", "memlock=-1:-1"]),
        ("000001ffffffffff", "524288", ["nofile=524288:524288", "memlock=-1:-1"]),
        ("000001fffeffffff", "1048576", []),  # a container without CAP_SYS_RESOURCE
        ("", "1048576", []),
    ],
)
def test_limits_are_raised_only_where_the_host_may_raise_them(
    tmp_path: Path, bounding: str, most: str, limits: list[str]
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1/status").write_text(f"Name:\tsystemd\nCapBnd:\t{bounding}\n")
    (tmp_path / "sys/fs").mkdir(parents=True)
    (tmp_path / "sys/fs/nr_open").write_text(f"{most}\n")
    assert raised_limits(tmp_path) == limits
    assert raised_limits(tmp_path / "missing") == []


@pytest.mark.parametrize("enforce", ["1", "0", None])
def test_selinux_counts_also_while_it_only_warns(tmp_path: Path, enforce: str | None) -> None:
    if enforce is not None:
        (tmp_path / "fs/selinux").mkdir(parents=True)
        (tmp_path / "fs/selinux/enforce").write_text(enforce)
    assert has_selinux(tmp_path) == (enforce is not None)
