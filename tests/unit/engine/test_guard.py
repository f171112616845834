# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that cannot give an instance its GPUs says so before the start."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.diagnosis import diagnose
from ansible_collections.socle.inference.plugins.module_utils._engine.guard import gpu_obstacle, listed_devices
from ansible_collections.socle.inference.plugins.module_utils._engine.unit import gpu_guard, has_selinux, raised_limits

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


MIG = "MIG-7a5b0000-0000-0000-0000-000000000001"

LIST = f"""GPU 0: NVIDIA A100 80GB PCIe (UUID: GPU-aaaa)
  MIG 1g.10gb     Device  0: (UUID: {MIG})
GPU 11: NVIDIA A100 80GB PCIe (UUID: {UUID})
"""

MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.126\n"


@pytest.mark.parametrize(
    ("gpus", "said", "status", "missing"),
    [
        ([0, 11], LIST, 0, None),
        ([UUID], LIST, 0, None),
        ([MIG], LIST, 0, None),
        # Another GPU of the host fell off the bus.
        ([0], LIST + "Unable to determine the device handle for GPU1: 0000:3B:00.0: Unknown Error\n", 15, None),
        ([0, 1], LIST, 0, "1"),
        (["GPU-aaa"], LIST, 0, "GPU-aaa"),
        ([0], MISMATCH, 18, "0"),
        ([0], "", 0, "0"),
    ],
)
def test_a_start_at_boot_says_in_one_line_which_gpu_the_driver_lacks(
    tmp_path: Path, gpus: list[Any], said: str, status: int, missing: str | None
) -> None:
    (tmp_path / "said").write_text(said)
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\ntest "$*" = -L || exit 2\ncat {tmp_path}/said\nexit {status}\n')
    tool.chmod(0o755)
    done = guarded(gpus, f"{tmp_path}:{os.environ['PATH']}", tmp_path)
    if missing is None:
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        return
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and f"GPU {missing}, which chat needs" in line
    assert line.endswith("but says: " + (" ".join(said.split()) or "nothing"))
    found = diagnose([line])
    assert found is not None and found.sentence == f"the host's driver does not show GPU {missing}"


def test_a_host_without_nvidia_smi_is_left_to_the_engine(tmp_path: Path) -> None:
    assert guarded([0], str(tmp_path), tmp_path).returncode == 0
    assert gpu_guard({"instance": "chat", "gpus": []}) is None


def guarded(gpus: list[Any], path: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = gpu_guard({"instance": "chat", "gpus": gpus})
    assert script is not None
    return subprocess.run(
        ["/bin/sh", "-c", script], env={"PATH": path}, cwd=folder, capture_output=True, text=True, check=False
    )
