# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host's files and commands say, read from trees and answers like theirs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._stack.gather import UNITS, gather_stack
from ansible_collections.socle.inference.plugins.module_utils._stack.parse import (
    cgroup_owner,
    first_error,
    parse_cdi_dirs,
    parse_cdi_spec,
    parse_dkms,
    parse_json_object,
    parse_runtime_config,
    parse_shm_mib,
    parse_unattended,
    parse_units,
)
from ansible_collections.socle.inference.plugins.module_utils._stack.regular import LIMIT, read_regular

KERNEL = "6.12.118+deb13-cloud-amd64"
FACTS: dict[str, Any] = {"gpus": [{"pci_bus_id": "0000:01:00.0", "processes": []}], "kernel": KERNEL}

SPEC = """---
cdiVersion: 0.7.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidia-uvm
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-cdi-hook
    - update-ldcache
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  mounts:
  - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04
    hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04
  - containerPath: /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.159.04
    hostPath: /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.159.04
  - containerPath: /usr/lib/x86_64-linux-gnu/libEGL.so.1.1.0
    hostPath: /usr/lib/x86_64-linux-gnu/libEGL.so.1.1.0
devices:
- containerEdits:
    additionalGids:
    - 44
    deviceNodes:
    - path: /dev/nvidia0
    hooks:
    - hookName: createContainer
      path: /usr/bin/nvidia-cdi-hook
    netDevices:
    - hostInterfaceName: eth1
      name: eth0
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: GPU-00000000-1111-2222-3333-444444444444
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: all
kind: nvidia.com/gpu
"""

SHOWN = """Id=nvidia-persistenced.service
LoadState=loaded
UnitFileState=static
ActiveState=inactive
Result=success
ConditionResult=no
After=basic.target system.slice
ActiveEnterTimestampMonotonic=0

Id=docker.service
LoadState=loaded
UnitFileState=enabled
ActiveState=active
Result=success
ConditionResult=yes
After=network-online.target
ActiveEnterTimestampMonotonic=60000000

Id=nvidia-fabricmanager.service
LoadState=not-found
UnitFileState=
ActiveState=inactive
"""

MAKE_LOG = """  CC [M]  /var/lib/dkms/nvidia/550.163.01/build/nvidia/nv-pci.o
/build/nvidia/nv-pci.c: In function 'nv_resize_pcie_bars':
/build/nvidia/nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'
  237 |     r = pci_resize_resource(pci_dev, NV_GPU_BAR1, requested_size);
make[3]: *** [/usr/src/linux-headers/scripts/Makefile.build:249: nv-pci.o] Error 1
"""


class Host:
    """Files below a root, and answers by a command's first words; other commands are not installed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.answers: dict[str, str] = {}
        self.asked: list[str] = []

    def write(self, name: str, text: str = "", mode: int = 0o644) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
        return path

    def run(self, argv: Sequence[str]) -> tuple[int, str, str] | None:
        command = " ".join(argv)
        self.asked.append(command)
        return next(((0, text, "") for start, text in self.answers.items() if command.startswith(start)), None)

    def stack(self, **facts: Any) -> dict[str, Any]:
        return gather_stack(self.run, self.root, self.root / "sys", self.root / "proc", {**FACTS, **facts})


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_an_empty_host_gives_every_key_and_no_finding_of_its_own(host: Host) -> None:
    stack = host.stack()
    assert stack["packages"] == {}
    assert stack["cdi"] == {"specs": [], "environment": {}, "spec_dirs": None}
    assert stack["docker"] == {"daemon": {}, "error": None, "changed_since_start": False}
    assert set(stack["units"]) == set(UNITS)
    assert not any(unit["present"] for unit in stack["units"].values())
    assert set(stack) == set(host.stack(gpus=[]))


def test_without_a_gpu_no_command_runs(host: Host) -> None:
    host.write("etc/docker/daemon.json", "{")
    stack = host.stack(gpus=[], secure_boot=True)
    assert host.asked == []
    assert stack["docker"]["error"]


def test_without_a_gpu_units_are_read_where_docker_is(host: Host) -> None:
    host.answers["systemctl show"] = SHOWN
    stack = host.stack(gpus=[], engines={"podman": None, "docker": "26.1.5"})
    assert [command.split()[:2] for command in host.asked] == [["systemctl", "show"]]
    assert stack["units"]["docker.service"]["active"] == "active"


def test_with_a_gpu_each_command_runs_once(host: Host) -> None:
    host.stack(secure_boot=False)
    assert sorted(command.split()[0] for command in host.asked) == ["dkms", "dpkg-query", "rpm", "systemctl"]


def test_units_are_read_in_one_call(host: Host) -> None:
    host.answers["systemctl show"] = SHOWN
    units = host.stack()["units"]
    persistenced = units["nvidia-persistenced.service"]
    assert (persistenced["present"], persistenced["active"], persistenced["enabled"]) == (True, "inactive", "static")
    assert persistenced["condition"] is False
    assert persistenced["after"] == ["basic.target", "system.slice"]
    assert units["docker.service"]["active_since_us"] == 60_000_000
    assert not units["nvidia-fabricmanager.service"]["present"]
    assert not units["nvidia-cdi-refresh.path"]["present"]


def test_a_unit_that_nobody_started_has_no_condition_that_was_not_met(host: Host) -> None:
    host.answers["systemctl show"] = SHOWN.replace(
        "ConditionResult=no\n", "ConditionResult=no\nConditionTimestampMonotonic=0\n", 1
    ).replace("LoadState=loaded", "LoadState=masked", 1)
    persistenced = host.stack()["units"]["nvidia-persistenced.service"]
    assert persistenced["condition"] and persistenced["masked"]


def test_specs_of_both_folders_are_read_with_mode_and_versions(host: Host) -> None:
    host.write("var/run/cdi/nvidia.yaml", SPEC, 0o600)
    host.write("etc/cdi/nvidia.json", json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": []}))
    host.write("etc/cdi/other.yaml", "cdiVersion: 0.5.0\nkind: vendor.example/nic\n")
    host.write("etc/cdi/nvidia-broken.yaml", "")
    host.write("etc/cdi/nvidia.yaml.old", SPEC)
    specs = host.stack()["cdi"]["specs"]
    assert [(spec["path"], spec["error"]) for spec in specs] == [
        ("/etc/cdi/nvidia-broken.yaml", "it has no cdiVersion"),
        ("/etc/cdi/nvidia.json", None),
        ("/var/run/cdi/nvidia.yaml", None),
    ]
    assert specs[2] == {
        "path": "/var/run/cdi/nvidia.yaml",
        "mode": "0600",
        "version": "0.7.0",
        "kind": "nvidia.com/gpu",
        "devices": ["0", "GPU-00000000-1111-2222-3333-444444444444", "all"],
        "error": None,
        "driver_versions": ["580.159.04"],
    }


@pytest.mark.parametrize(
    "text",
    [
        'cdiVersion: "0.6.0"\nkind: nvidia.com/gpu\ndevices:\n  - name: "0"\n    containerEdits:\n'
        "      deviceNodes:\n        - path: /dev/nvidia0\n  - name: all\n    containerEdits: {}\n",
        '{"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0"}, {"name": "all"}]}',
        "devices:\n- name: '0'\n- name: all\nkind: nvidia.com/gpu\ncdiVersion: 0.6.0",
    ],
)
def test_a_spec_may_be_indented_in_other_ways_or_be_json(text: str) -> None:
    spec = parse_cdi_spec(text)
    assert (spec["version"], spec["devices"], spec["error"]) == ("0.6.0", ["0", "all"], None)


def test_a_pipe_among_the_files_keeps_nothing_waiting(host: Host) -> None:
    host.write("etc/cdi/nvidia.yaml", SPEC)
    for name in ("etc/cdi/fifo.yaml", "etc/cdi/nvidia-fifo.json", "etc/docker/daemon.json", "etc/modules"):
        (host.root / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(host.root / name)
    stack = host.stack()
    assert [(spec["path"], spec["error"]) for spec in stack["cdi"]["specs"]] == [
        ("/etc/cdi/nvidia-fifo.json", "it is no regular file"),
        ("/etc/cdi/nvidia.yaml", None),
    ]
    assert stack["docker"]["daemon"] == {}


def test_notes_of_socle_are_read_and_a_damaged_one_keeps_nothing_waiting(host: Host) -> None:
    assert (host.stack()["left_stopped"], host.stack()["damaged_notes"]) == ([], [])
    host.write("var/lib/socle/gpu_driver_stopped.json", '{"units": ["vllm-a.service", "vllm-b.service"]}')
    host.answers["systemctl show --property=Id,ActiveState -- vllm-a.service vllm-b.service"] = (
        "Id=vllm-a.service\nActiveState=active\n\nId=vllm-b.service\nActiveState=inactive\n"
    )
    os.mkfifo(host.root / "var/lib/socle/package_holds.json")
    (host.root / "var/lib/socle/gpu_driver.json").mkdir()
    stack = host.stack()
    assert stack["left_stopped"] == ["vllm-b.service"]
    assert stack["damaged_notes"] == [
        {"path": "/var/lib/socle/gpu_driver.json", "why": "it is a folder"},
        {"path": "/var/lib/socle/package_holds.json", "why": "it is no regular file"},
    ]


def test_signing_keys_of_our_own_sources_that_are_none_are_found(host: Host) -> None:
    apt, dnf = "etc/apt/sources.list.d", "etc/yum.repos.d"
    for name, head in (
        ("docker", "# Written by socle.\n"),
        ("toolkit", "# Written by socle.\n"),
        ("gone", "# Written by socle.\n"),
        ("cuda", "# Written by socle.inference, role gpu_driver; a run replaces it.\n"),
        ("theirs", ""),
    ):
        source = f"{head}Types: deb\nURIs: https://x.example/\nSuites: /\nSigned-By: /etc/apt/keyrings/{name}.gpg\n"
        host.write(f"{apt}/{name}.sources", source)
        host.write(f"etc/apt/keyrings/{name}.gpg", "<html>")
    host.write("etc/apt/keyrings/toolkit.gpg", "-----BEGIN PGP PUBLIC KEY BLOCK-----\n")
    (host.root / "etc/apt/keyrings/gone.gpg").unlink()
    (host.root / "etc/apt/keyrings/docker.gpg").unlink()
    os.mkfifo(host.root / "etc/apt/keyrings/docker.gpg")
    archive = (
        "# Written by socle.inference, role gpu_driver; a run replaces it.\nSigned-By: /usr/share/keyrings/d.pgp\n"
    )
    host.write(f"{apt}/socle-debian-components.sources", archive)
    key = "etc/pki/rpm-gpg/RPM-GPG-KEY-toolkit"
    host.write(f"{dnf}/toolkit.repo", f"# Written by socle.inference; a run replaces it.\n[t]\ngpgkey=file:///{key}\n")
    assert host.stack()["damaged_keys"] == [
        *(
            {"file": f"/{apt}/{name}.sources", "key": f"/etc/apt/keyrings/{name}.gpg"}
            for name in ("cuda", "docker", "gone")
        ),
        {"file": f"/{dnf}/toolkit.repo", "key": f"/{key}"},
    ]


def test_a_spec_that_is_a_link_to_nothing_is_a_broken_spec(host: Host) -> None:
    (host.root / "etc/cdi").mkdir(parents=True)
    (host.root / "etc/cdi/nvidia.yaml").symlink_to("/nope")
    (host.root / "dev").mkdir()
    (host.root / "dev/nvidia9").symlink_to("/nope")
    stack = host.stack()
    assert [spec["error"] for spec in stack["cdi"]["specs"]] == ["it is a link to nothing"]
    assert [node["path"] for node in stack["device_nodes"]] == ["/dev/nvidia9"]


def test_a_file_of_any_size_costs_no_more_than_the_limit(host: Host) -> None:
    with host.write("etc/cdi/nvidia.yaml", SPEC).open("a") as stream:
        stream.truncate(LIMIT + 1)
    assert len(read_regular(host.root / "etc/cdi/nvidia.yaml")) == LIMIT
    assert [spec["error"] for spec in host.stack()["cdi"]["specs"]] == ["it is larger than 4 MiB"]


DEEP = '{"a":' * 200_000


def test_json_nested_without_end_is_a_complaint() -> None:
    assert "recursion" in str(parse_json_object(DEEP)[1])
    assert "recursion" in parse_cdi_spec(DEEP)["error"]


def test_a_spec_whose_kind_is_no_text_has_none() -> None:
    assert parse_cdi_spec('{"cdiVersion": "0.6.0", "kind": 5}')["kind"] is None


@pytest.mark.parametrize("text", ["{", "[]", "{}", "", "\x00\x01"])
def test_a_spec_that_is_none_says_why(text: str) -> None:
    assert parse_cdi_spec(text)["error"]


def test_dkms_states_come_with_the_first_error_of_the_log(host: Host) -> None:
    host.answers["dkms status"] = "nvidia/550.163.01: added\nzfs/2.3.1, 6.12, x86_64: installed\n"
    host.write("var/lib/dkms/nvidia/550.163.01/build/make.log", MAKE_LOG)
    assert host.stack()["dkms"] == [
        {
            "module": "nvidia",
            "version": "550.163.01",
            "kernel": None,
            "state": "added",
            "error": "/build/nvidia/nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'",
        }
    ]


def test_dkms_2_and_3_are_read_alike() -> None:
    new = f"nvidia-current/550.163.01, {KERNEL}, x86_64: installed (WARNING! Diff between built and installed module!)"
    old = f"nvidia-current, 550.163.01, {KERNEL}, x86_64: installed (Original modules exist)"
    expected = {"module": "nvidia-current", "version": "550.163.01", "kernel": KERNEL, "state": "installed"}
    assert parse_dkms(new) == parse_dkms(old) == [expected]
    assert parse_dkms("Error! Could not find module source directory.\n") == []


def test_a_log_without_an_error_has_no_first_one() -> None:
    assert first_error(["make: Entering directory", "CC nv-error.o"]) is None


def test_daemon_json_is_shown_without_what_may_be_secret(host: Host) -> None:
    settings = {
        "features": {"cdi": True},
        "runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": ["--token=secret"]}},
        "proxies": {"http-proxy": "http://user:secret@proxy.example"},
        "log-opts": {"max-size": "10m", "splunk-token": "secret"},
    }
    host.write("etc/docker/daemon.json", json.dumps(settings))
    stack = host.stack()
    assert stack["docker"]["daemon"] == {
        "features": {"cdi": True},
        "runtimes": {"nvidia": {}},
        "log-opts": {"max-size": "10m"},
    }
    assert "secret" not in json.dumps(stack)


@pytest.mark.parametrize(("changed", "expected"), [(1_000_050, False), (1_000_070, True)])
def test_a_daemon_json_newer_than_docker_is_seen(host: Host, changed: int, expected: bool) -> None:
    host.answers["systemctl show"] = SHOWN  # docker started 60 s after boot
    host.write("proc/stat", "cpu  1 2 3\nbtime 1000000\nprocesses 5\n")
    os.utime(host.write("etc/docker/daemon.json", "{}"), (changed, changed))
    assert host.stack()["docker"]["changed_since_start"] is expected


@pytest.mark.parametrize("text", ["{", "[]", "null", '"x"'])
def test_what_is_no_json_object_is_complained_about(text: str) -> None:
    assert parse_json_object(text)[1]
    assert parse_json_object(" \n") == ({}, None)


def test_an_enrolled_key_is_told_from_one_that_is_not(host: Host) -> None:
    host.write("var/lib/dkms/mok.pub")
    host.answers["mokutil --test-key /var/lib/dkms/mok.pub"] = "/var/lib/dkms/mok.pub is already enrolled\n"
    assert host.stack(secure_boot=True)["signing_key"] == {"path": "/var/lib/dkms/mok.pub", "enrolled": True}
    host.answers["mokutil --test-key /var/lib/dkms/mok.pub"] = "/var/lib/dkms/mok.pub is not enrolled\n"
    assert host.stack(secure_boot=True)["signing_key"] == {"path": "/var/lib/dkms/mok.pub", "enrolled": False}
    assert host.stack(secure_boot=False)["signing_key"] == {"path": None, "enrolled": None}


def test_unattended_upgrades_are_read_from_both_spellings() -> None:
    texts = [
        'APT::Periodic::Update-Package-Lists "1";\nAPT::Periodic::Unattended-Upgrade "1";\n',
        'Unattended-Upgrade::Package-Blacklist {\n    // "nvidia-";\n    "libnvidia-"; // not "cuda"\n};\n',
        'Unattended-Upgrade::Package-Blacklist:: "cuda-";\n',
    ]
    assert parse_unattended(texts) == {"enabled": True, "blacklist": ["libnvidia-", "cuda-"]}
    assert parse_unattended(['APT::Periodic::Unattended-Upgrade "0";'])["enabled"] is False
    assert parse_unattended([]) == {"enabled": False, "blacklist": []}


def test_the_runtime_configuration_passes_comments_over() -> None:
    text = '#no-cgroups = true\n[nvidia-container-runtime]\nmode = "legacy"\n'
    assert parse_runtime_config(text) == {"no_cgroups": False, "mode": "legacy"}
    assert parse_runtime_config("no-cgroups = true")["no_cgroups"] is True


def test_the_last_file_that_names_cdi_folders_counts(host: Host) -> None:
    host.write("etc/containers/containers.conf", '[engine]\n#cdi_spec_dirs = ["/x"]\n')
    assert host.stack()["cdi"]["spec_dirs"] is None
    host.write(
        "etc/containers/containers.conf.d/50.conf", '[engine]\ncdi_spec_dirs = [\n  "/etc/cdi",\n  "/run/cdi",\n]'
    )
    assert host.stack()["cdi"]["spec_dirs"] == ["/etc/cdi", "/run/cdi"]
    assert parse_cdi_dirs(['cdi_spec_dirs = ["/a"]', 'cdi_spec_dirs = ["/b"]']) == ["/b"]


def test_sizes_of_shared_memory_are_read_in_all_units() -> None:
    assert parse_shm_mib("tmpfs /dev/shm tmpfs rw,nosuid,size=65536k,inode64 0 0", 1000) == 64
    assert parse_shm_mib("tmpfs /dev/shm tmpfs rw,size=16g 0 0", 1000) == 16384
    assert parse_shm_mib("tmpfs /dev/shm tmpfs rw,nosuid 0 0", 1000) == 500
    assert parse_shm_mib("tmpfs /run tmpfs rw,size=1k 0 0", 1000) is None


def test_processes_are_told_by_unit_or_by_container(host: Host) -> None:
    identity = "f" * 64
    host.write("proc/11/cgroup", "0::/system.slice/vllm-chat.service/libpod-payload-abc\n")
    host.write("proc/12/cgroup", f"0::/system.slice/docker-{identity}.scope\n")
    host.write("proc/13/cgroup", "0::/user.slice/user-1000.slice/session-4.scope\n")
    host.answers["docker ps"] = f"{identity} vllm-code\n"
    gpus = [
        {
            "pci_bus_id": "0000:01:00.0",
            "processes": [{"pid": pid, "name": "python3", "memory_mib": 9} for pid in (11, 12, 13, 14)],
        }
    ]
    owners = [process["owner"] for process in host.stack(gpus=gpus)["gpu_processes"]]
    assert owners == ["vllm-chat.service", "vllm-code", "session-4.scope", None]


TRAINER = '["/trainer","nvidia",null,["NVIDIA_VISIBLE_DEVICES=all"]]\n'


def test_containers_of_the_legacy_hook_are_told(host: Host) -> None:
    host.write("run/docker.pid", "812")
    host.answers.update({"systemctl show": SHOWN, "docker ps --quiet": "a1\n", "docker inspect": TRAINER})
    assert host.stack(toolkit={"version": "1.17.8"})["reload_victims"] == ["trainer"]
    assert host.stack(toolkit={"version": "1.18.2"})["reload_victims"] == []


def test_a_docker_that_is_stopped_is_not_asked(host: Host) -> None:
    """Its socket would start it."""
    host.answers.update({"systemctl show": SHOWN.replace("ActiveState=active", "ActiveState=inactive")})
    assert host.stack(toolkit={"version": "1.17.8"})["reload_victims"] == []
    assert not [command for command in host.asked if command.startswith("docker")]


def test_a_process_without_a_unit_has_no_owner() -> None:
    assert cgroup_owner("0::/\n") is None
    assert cgroup_owner("") is None


def test_units_without_a_name_are_passed_over() -> None:
    assert parse_units("Failed to connect to bus\n\nActiveState=active\n") == {}


def test_the_rest_is_read_from_plain_files(host: Host) -> None:
    host.write("dev/nvidia0", mode=0o660)
    host.write("dev/nvidia-caps/nvidia-cap1")
    host.write("etc/modules-load.d/nvidia.conf", "# loaded early\nnvidia-uvm\n")
    host.write("sys/module/nvidia/version", "580.159.04")
    host.write("sys/fs/selinux/enforce", "1")
    host.write("sys/fs/selinux/booleans/container_use_devices", "0 0")
    host.write("var/run/reboot-required")
    host.write("var/run/reboot-required.pkgs", "linux-image-amd64\nlibc6\n")
    host.write("usr/share/containers/oci/hooks.d/oci-nvidia-hook.json", "{}")
    host.write("etc/nvidia-container-toolkit/nvidia-cdi-refresh.env", "# x\nNVIDIA_CTK_DEBUG=1\n")
    host.write("proc/version", "Linux version 6.1.0-57-amd64 (x) #1 SMP PREEMPT_DYNAMIC Debian 6.1.190-1 (2026)")
    stack = host.stack(kernel="6.1.0-57-amd64")
    assert stack["device_nodes"] == [{"path": "/dev/nvidia0", "mode": "0660"}]
    assert stack["modules_load"] == ["nvidia_uvm"]
    assert stack["modules"] == ["nvidia"]
    assert stack["selinux"] == {"mode": "enforcing", "container_use_devices": False}
    assert stack["reboot"] == {"required": True, "packages": ["linux-image-amd64", "libc6"]}
    assert stack["oci_hooks"] == ["/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"]
    assert stack["cdi"]["environment"] == {"NVIDIA_CTK_DEBUG": "1"}
    assert stack["kernel_release"] == [6, 1, 190]
