# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who else uses the GPUs when the driver is to change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._driver.users import foreign_users, reload_victims

ID = "ab" * 32


class Docker:
    """docker with some containers: name -> what inspect says."""

    def __init__(self, containers: dict[str, list[Any]], driver: str = "systemd") -> None:
        self.containers, self.driver = containers, driver

    def __call__(self, argv: Sequence[str]) -> tuple[int, str, str] | None:
        if argv[1] == "ps":
            ids = [f"{ID} {name}" if "--format" in argv else ID for name in self.containers]
            return 0, "\n".join(ids) + "\n", ""
        if argv[1] == "info":
            return 0, f"{self.driver}\n", ""
        return 0, "".join(json.dumps([f"/{name}", *told]) + "\n" for name, told in self.containers.items()), ""


def no_docker(argv: Sequence[str]) -> None:
    return None


def process(proc: Path, pid: int, comm: str, cgroup: str, node: str = "/dev/nvidia0") -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "fd/3").symlink_to("/dev/null")
    (folder / "fd/4").symlink_to(node)
    (folder / "comm").write_text(f"{comm}\n")
    (folder / "cgroup").write_text(f"0::{cgroup}\n")


def test_what_the_run_stops_itself_is_nobody_elses(tmp_path: Path) -> None:
    process(tmp_path, 7, "nvidia-persiste", "/system.slice/nvidia-persistenced.service")
    process(tmp_path, 8, "vllm", "/system.slice/vllm-chat.service/libpod-payload-1")
    process(tmp_path, 9, "vllm", f"/system.slice/docker-{ID}.scope")
    process(tmp_path, 10, "nvidia-smi", "/user.slice/session-1.scope")
    process(tmp_path, 11, "cat", "/user.slice/session-1.scope", node="/dev/zero")
    docker = Docker({"vllm-code": []})
    assert foreign_users(docker, tmp_path, [], ("vllm-chat.service", "vllm-code.service")) == []
    assert foreign_users(docker, tmp_path, [], ("vllm-chat.service",)) == ["process 9 (vllm of vllm-code)"]


def test_what_has_a_node_open_counts_beside_what_nvidia_smi_shows(tmp_path: Path) -> None:
    process(tmp_path, 20, "python3", "/system.slice/train.service", node="/dev/nvidia-uvm")
    process(tmp_path, 21, "python3", f"/docker/{ID}")
    gpus = [{"processes": [{"pid": 22, "name": "/usr/bin/render"}]}, {"processes": None}]
    assert foreign_users(no_docker, tmp_path, gpus, ()) == [
        "process 20 (python3 of train.service)",
        f"process 21 (python3 of {ID})",
        "process 22 (/usr/bin/render)",
    ]


GPU_IMAGE = ["NVIDIA_VISIBLE_DEVICES=all"]
GPUS = [{"Driver": "", "Capabilities": [["gpu"]]}]
CDI = [{"Driver": "cdi", "Capabilities": [[]], "DeviceIDs": ["nvidia.com/gpu=all"]}]


def no_docker_is_asked(argv: Sequence[str]) -> None:
    """Its socket would start a daemon that somebody stopped."""
    raise AssertionError(argv)


@pytest.mark.parametrize(
    ("toolkit", "config", "told", "loses"),
    [
        ("1.17.8", "", ["nvidia", None, GPU_IMAGE], True),
        ("1.18.0", "", ["nvidia", None, GPU_IMAGE], False),
        ("1.20.0", 'mode = "legacy"\n', ["nvidia", None, GPU_IMAGE], True),
        ("1.17.8", 'mode = "cdi"\n', ["nvidia", None, GPU_IMAGE], False),
        ("1.17.8", "", ["nvidia", None, None], False),
        ("1.17.8", "", ["runc", None, GPU_IMAGE], False),
        ("1.20.0", "", ["runc", GPUS, None], True),
        ("1.17.8", "", ["runc", CDI, GPU_IMAGE], False),
    ],
)
def test_containers_of_the_legacy_hook_lose_their_gpus(
    tmp_path: Path, toolkit: str, config: str, told: list[Any], loses: bool
) -> None:
    place = tmp_path / "etc/nvidia-container-runtime/config.toml"
    place.parent.mkdir(parents=True)
    place.write_text(f"[nvidia-container-runtime]\n{config}")
    assert reload_victims(no_docker_is_asked, tmp_path, toolkit) == []
    (tmp_path / "run").mkdir()
    (tmp_path / "run/docker.pid").write_text("812")
    assert reload_victims(Docker({"tgi": told}), tmp_path, toolkit) == (["tgi"] if loses else [])
    assert reload_victims(Docker({"tgi": told}, driver="cgroupfs"), tmp_path, toolkit) == []


def test_without_docker_nothing_loses_gpus(tmp_path: Path) -> None:
    assert reload_victims(no_docker, tmp_path, None) == []
    assert reload_victims(Docker({}), tmp_path, None) == []
