# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No file of a host keeps the facts waiting or fills the memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._gpu.commands import READ_LIMIT, read_bytes, read_text

from tests.unit.gpu.hosts import PRODUCTS, Host, acs_config

READ_FOR_FACTS = (
    "os-release",
    "proc/cpuinfo",
    "proc/meminfo",
    "proc/cmdline",
    "sys/bus/pci/devices/0000:3b:00.0/resource",
    "sys/bus/pci/devices/0000:3a:00.0/config",
    "sys/class/infiniband/mlx5_0/device/vpd",
    "sys/firmware/efi/efivars/SecureBoot-8be4df61",
)


def links_to_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("obstacle", [os.mkfifo, os.mkdir, links_to_endless])
def test_what_is_no_file_is_read_as_one_that_is_missing(host: Host, obstacle: Callable[[Path], Any]) -> None:
    host.gpus(PRODUCTS["h100_pcie"], 1)
    host.pci("0000:3a:00.0", vendor="0x8086", kind="0x060400", config=acs_config(0x3B, 0x3B, 0))
    for name in READ_FOR_FACTS:
        (host.root / name).unlink(missing_ok=True)
        (host.root / name).parent.mkdir(parents=True, exist_ok=True)
    missing = host.facts()
    assert missing["acs_redirects"] is missing["secure_boot"] is missing["memory_mib"] is None
    for name in READ_FOR_FACTS:
        obstacle(host.root / name)
    assert host.facts() == missing


def test_a_file_without_end_is_read_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "endless").touch()
    os.truncate(tmp_path / "endless", 1 << 40)
    assert len(read_bytes(tmp_path / "endless")) == len(read_text(tmp_path / "endless")) == READ_LIMIT


def test_the_kernels_files_are_read_whatever_size_they_say(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").symlink_to("/proc/cpuinfo")
    assert (tmp_path / "cpuinfo").stat().st_size == 0
    assert "processor" in read_text(tmp_path / "cpuinfo")


def test_a_file_that_is_no_text_is_told_by_marks(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"Xeon\xff\r\n")
    assert read_text(tmp_path / "model") == "Xeon\ufffd\n"
