# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The description of the GPUs: read, judged, written again by its unit, and never by reloading systemd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError, ToolkitError
from ansible_collections.socle.inference.plugins.module_utils._toolkit import cdi
from ansible_collections.socle.inference.plugins.module_utils._toolkit.refresh import (
    ENVIRONMENT,
    FLAGS,
    PLAIN_GIDS,
    CdiRefresh,
    merge_environment,
)

from tests.support.commands import Commands

ONE = "GPU-11111111-1111-1111-1111-111111111111"
TWO = "GPU-22222222-2222-2222-2222-222222222222"
SMI = f"GPU 0: NVIDIA A100-SXM4-80GB (UUID: {ONE})\nGPU 1: NVIDIA A100-SXM4-80GB (UUID: {TWO})\n"
SMI_MIG = (
    f"GPU 0: NVIDIA A100-SXM4-80GB (UUID: {ONE})\n"
    "  MIG 3g.40gb     Device  0: (UUID: MIG-aaaaaaaa-0000-0000-0000-000000000000)\n"
    "  MIG 3g.40gb     Device  1: (UUID: MIG-bbbbbbbb-0000-0000-0000-000000000000)\n"
    f"GPU 1: NVIDIA A100-SXM4-80GB (UUID: {TWO})\n"
)
DRIVER = "580.159.03"
LEFT = "etc/cdi/nvidia.yaml"
HOOKS = "usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"


def spec(version: str = "0.5.0", driver: str = DRIVER, names: tuple[str, ...] = ("0", "1", ONE, TWO, "all")) -> str:
    """As nvidia-ctk writes it: keys in alphabetical order, the name after the edits."""
    devices = "".join(
        f'    - containerEdits:\n        deviceNodes:\n            - path: /dev/nvidia0\n      name: "{name}"\n'
        for name in names
    )
    return (
        f"---\ncdiVersion: {version}\ncontainerEdits:\n    deviceNodes:\n        - path: /dev/nvidiactl\n"
        "        - path: /dev/nvidia-uvm\n    hooks:\n        - args:\n            - nvidia-cdi-hook\n"
        "          hookName: createContainer\n          path: /usr/bin/nvidia-cdi-hook\n    mounts:\n"
        f"        - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.{driver}\n"
        f"          hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.{driver}\n"
        f"devices:\n{devices}kind: nvidia.com/gpu\n"
    )


class Host:
    """A host with the toolkit, and a unit that writes what the driver shows."""

    def __init__(self, commands: Commands, root: Path) -> None:
        self.commands = commands
        self.root = root
        self.sys = root / "sys"
        self.writes = spec()
        self.target = root / "var/run/cdi/nvidia.yaml"
        self.load(DRIVER)
        self.put("dev/nvidiactl", "")
        self.put("dev/nvidia-uvm", "")
        self.put(ENVIRONMENT, "# Settings\n")
        self.units()
        commands.on("nvidia-smi", "-L", out=SMI)
        commands.do("systemctl", "restart", "nvidia-cdi-refresh.service", then=self._refresh)
        self.refresh = CdiRefresh(commands, Files(), root, self.sys, root / "state")

    def _refresh(self, _argv: list[str]) -> tuple[int, str, str]:
        self.put("var/run/cdi/nvidia.yaml", self.writes)
        return 0, "", ""

    def put(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def load(self, version: str, name: str = "nvidia") -> None:
        self.put(f"sys/module/{name}/version", f"{version}\n")

    def units(self, enabled: str = "enabled", active: str = "active", load: str = "loaded") -> None:
        path = f"Id=nvidia-cdi-refresh.path\nLoadState={load}\nUnitFileState={enabled}\nActiveState={active}\n"
        service = f"Id=nvidia-cdi-refresh.service\nLoadState={load}\nUnitFileState={enabled}\nActiveState=inactive\n"
        self.commands.on("systemctl", "show", out=f"{path}\n{service}")

    def bring(self, engine: str = "podman", version: str = "5.4.2", toolkit: str = "1.20.0", **more: Any) -> Any:
        return self.refresh.present(engine, version, toolkit, **more)

    def refreshed(self) -> int:
        return self.commands.ran("systemctl", "restart", "nvidia-cdi-refresh.service")


@pytest.fixture
def host(commands: Commands, tmp_path: Path) -> Host:
    return Host(commands, tmp_path)


def test_a_description_that_fits_is_left_alone(host: Host) -> None:
    host.put("var/run/cdi/nvidia.yaml", spec())
    outcome = host.bring()
    assert not outcome.changed and outcome.actions == [] and host.refreshed() == 0
    assert outcome.uuids == [ONE, TWO]
    assert outcome.specs == ["/var/run/cdi/nvidia.yaml"] and outcome.devices == sorted(["0", "1", ONE, TWO, "all"])
    assert {tuple(call[:2]) for call in host.commands.calls} == {("systemctl", "show"), ("nvidia-smi", "-L")}


def test_a_missing_description_is_written_by_the_unit(host: Host) -> None:
    assert host.bring().actions == ["describe the GPUs again, since no CDI spec describes the GPUs"]
    assert host.refreshed() == 1 and not host.bring().changed


def test_a_description_of_another_driver_is_written_again(host: Host) -> None:
    host.put("var/run/cdi/nvidia.yaml", spec(driver="570.211.01"))
    action = host.bring().actions[0]
    assert "was written for driver 570.211.01, but driver 580.159.03 is loaded" in action and host.refreshed() == 1


def test_debians_module_name_counts(host: Host) -> None:
    (host.sys / "module/nvidia/version").unlink()
    host.load("550.163.01", "nvidia_current")
    host.writes = spec(driver="550.163.01")
    host.put("var/run/cdi/nvidia.yaml", spec(driver="550.163.01"))
    assert not host.bring().changed


@pytest.mark.parametrize("missing", ["1", TWO])
def test_every_gpu_must_be_there_by_index_and_by_uuid(host: Host, missing: str) -> None:
    names = tuple(name for name in ("0", "1", ONE, TWO) if name != missing)
    host.put("var/run/cdi/nvidia.yaml", spec(names=names))
    assert f"no CDI spec describes {missing}" in host.bring().actions[0]


def test_a_gpu_that_is_gone_is_noticed(host: Host) -> None:
    host.commands.on("nvidia-smi", "-L", out=SMI.splitlines()[0] + "\n")
    host.put("var/run/cdi/nvidia.yaml", spec())
    host.writes = spec(names=("0", ONE, "all"))
    assert f"describes {TWO}, which the host no longer has" in host.bring().actions[0]


def test_a_description_without_the_control_nodes_is_written_again(host: Host) -> None:
    host.put("var/run/cdi/nvidia.yaml", spec().replace("        - path: /dev/nvidia-uvm\n", ""))
    assert "hands /dev/nvidia-uvm to containers" in host.bring().actions[0]


def test_mig_devices_stand_for_their_gpu(host: Host) -> None:
    host.commands.on("nvidia-smi", "-L", out=SMI_MIG)
    mig = ("MIG-aaaaaaaa-0000-0000-0000-000000000000", "MIG-bbbbbbbb-0000-0000-0000-000000000000")
    host.put("var/run/cdi/nvidia.yaml", spec(names=("0:0", "0:1", *mig, "1", TWO, "all")))
    assert not host.bring().changed


def test_names_by_uuid_alone_suffice_where_the_user_wanted_that(host: Host) -> None:
    host.put(ENVIRONMENT, "NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES=uuid\n")
    host.put("var/run/cdi/nvidia.yaml", spec(names=(ONE, TWO, "all")))
    assert not host.bring().changed


def test_a_description_that_stays_wrong_is_a_sentence(host: Host) -> None:
    host.writes = spec(names=("0", ONE))
    with pytest.raises(
        ToolkitError, match=rf"no CDI spec describes 1, {TWO}, also after nvidia-cdi-refresh.service ran"
    ) as caught:
        host.bring()
    assert "\n" not in str(caught.value)


def test_two_descriptions_of_one_gpu_are_named_and_not_touched(host: Host) -> None:
    host.put("var/run/cdi/nvidia.yaml", spec())
    host.put("etc/cdi/mine.yaml", spec(names=("0",)))
    with pytest.raises(
        ToolkitError, match=r"/etc/cdi/mine.yaml and /var/run/cdi/nvidia.yaml both describe the device '0'"
    ):
        host.bring()
    assert host.refreshed() == 0 and (host.root / "etc/cdi/mine.yaml").exists()


def test_other_vendors_descriptions_do_not_matter(host: Host) -> None:
    host.put("var/run/cdi/nvidia.yaml", spec())
    host.put("etc/cdi/amd.yaml", spec(names=("0",)).replace("nvidia.com/gpu", "amd.com/gpu"))
    host.put("etc/cdi/net.json", '{"cdiVersion": "0.5.0", "kind": "example.org/nic", "devices": [{"name": "0"}]}')
    assert not host.bring().changed


def test_what_earlier_set_ups_left_is_put_aside_and_shown(host: Host) -> None:
    host.put("var/run/cdi/nvidia.yaml", spec())
    old = {LEFT: spec(driver="535.104.05"), HOOKS: "{}"}
    for name, text in old.items():
        host.put(name, text)
    outcome = host.bring()
    aside = host.root / "state/gpu_container_toolkit/put_aside"
    assert outcome.actions == [f"move /{name} to {aside}" for name in old]
    assert outcome.diffs == [(f"/{name}", text, "") for name, text in old.items()]
    for name, text in old.items():
        assert not (host.root / name).exists() and (aside / Path(name).name).read_text() == text
    assert host.refreshed() == 0 and not host.bring().changed


def test_a_description_by_hand_stays_until_another_takes_its_place(host: Host) -> None:
    host.put(LEFT, spec())
    there: list[bool] = []

    def refresh(_argv: list[str]) -> tuple[int, str, str]:
        there.append((host.root / LEFT).exists())
        host.put("var/run/cdi/nvidia.yaml", spec())
        return 0, "", ""

    host.commands.do("systemctl", "restart", "nvidia-cdi-refresh.service", then=refresh)
    host.bring()
    assert there == [True] and not (host.root / LEFT).exists()


@pytest.mark.parametrize("written", ["", spec(names=("0", ONE))])
def test_a_description_by_hand_stays_where_no_other_takes_its_place(host: Host, written: str) -> None:
    host.put(LEFT, spec())
    host.writes = written
    with pytest.raises(ToolkitError):
        host.bring()
    assert (host.root / LEFT).read_text() == spec()


def test_what_cannot_be_put_aside_whole_is_put_back(host: Host) -> None:
    host.put("var/run/cdi/nvidia.yaml", spec())
    host.put(LEFT, spec(driver="535.104.05"))
    host.put(HOOKS, "{}")
    host.put("state/gpu_container_toolkit/put_aside/oci-nvidia-hook.json/full", "")
    with pytest.raises(EngineError, match="Cannot put away what described the GPUs before"):
        host.bring()
    assert (host.root / LEFT).read_text() == spec(driver="535.104.05") and (host.root / HOOKS).exists()


def test_a_description_that_the_user_has_written_to_etc_is_no_left_over(host: Host) -> None:
    host.put(ENVIRONMENT, "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/etc/cdi/nvidia.yaml\n")
    host.put("etc/cdi/nvidia.yaml", spec())
    assert not host.bring().changed and (host.root / "etc/cdi/nvidia.yaml").exists()


@pytest.mark.parametrize(
    ("engine", "version", "toolkit", "needed"),
    [("podman", "4.9.3", "1.20.0", True), ("docker", "26.1.5", "1.20.0", False), ("podman", "4.9.3", "1.18.2", False)],
)
def test_the_flag_follows_the_engine(host: Host, engine: str, version: str, toolkit: str, needed: bool) -> None:
    host.put("var/run/cdi/nvidia.yaml", spec())
    outcome = host.bring(engine, version, toolkit)
    text = (host.root / ENVIRONMENT).read_text()
    assert (f"{FLAGS}={PLAIN_GIDS}" in text) is needed and outcome.changed is needed
    assert host.refreshed() == int(needed)
    if needed:
        assert host.bring("podman", "5.4.2").actions[0] == f"take back {PLAIN_GIDS}"
        assert (host.root / ENVIRONMENT).read_text() == "# Settings\n"


def test_a_description_too_new_for_the_engine_is_written_again(host: Host) -> None:
    host.put(ENVIRONMENT, f"{FLAGS}={PLAIN_GIDS}\n")
    host.put("var/run/cdi/nvidia.yaml", spec("0.7.0"))
    assert "CDI 0.7.0, but Podman 4.9.3 reads CDI up to 0.6.0" in host.bring("podman", "4.9.3").actions[0]


@pytest.mark.parametrize(
    ("before", "plain", "after"),
    [
        ("", True, f"{FLAGS}={PLAIN_GIDS}\n"),
        ("", False, ""),
        ("# c\nNVIDIA_CTK_DEBUG=true\n", True, f"# c\nNVIDIA_CTK_DEBUG=true\n{FLAGS}={PLAIN_GIDS}\n"),
        (f"{FLAGS}=other\n", True, f"{FLAGS}=other,{PLAIN_GIDS}\n"),
        (f"{FLAGS}=other,{PLAIN_GIDS}\n", False, f"{FLAGS}=other\n"),
        (f'{FLAGS}="{PLAIN_GIDS}"\n', True, f'{FLAGS}="{PLAIN_GIDS}"\n'),
        (f"{FLAGS}={PLAIN_GIDS}\nX=1\n", False, "X=1\n"),
        (f"#{FLAGS}={PLAIN_GIDS}\n", False, f"#{FLAGS}={PLAIN_GIDS}\n"),
    ],
)
def test_only_our_flag_in_the_environment_file_changes(before: str, plain: bool, after: str) -> None:
    assert merge_environment(before, plain_gids=plain) == after
    assert merge_environment(after, plain_gids=plain) == after


def test_units_are_switched_on_without_reloading_systemd(host: Host) -> None:
    host.put("var/run/cdi/nvidia.yaml", spec())
    host.units(enabled="disabled", active="inactive")
    assert host.bring().actions == [
        "enable nvidia-cdi-refresh.path, nvidia-cdi-refresh.service",
        "start nvidia-cdi-refresh.path",
    ]
    assert host.commands.ran("systemctl", "enable", "--no-reload") == 1
    assert not [call for call in host.commands.calls if "daemon-reload" in call]


@pytest.mark.parametrize("load", ["not-found", "masked"])
def test_missing_units_are_a_sentence(host: Host, load: str) -> None:
    host.units(load=load)
    with pytest.raises(ToolkitError, match="missing or masked"):
        host.bring()


def test_check_mode_tells_and_touches_nothing(host: Host) -> None:
    host.put("etc/cdi/nvidia.yaml", spec(driver="535.104.05"))
    outcome = host.bring("podman", "4.9.3", check=True)
    assert outcome.changed and len(outcome.actions) == 3
    assert [path for path, _before, _after in outcome.diffs] == [f"/{ENVIRONMENT}", f"/{LEFT}"]
    assert (host.root / ENVIRONMENT).read_text() == "# Settings\n" and host.refreshed() == 0
    assert (host.root / "etc/cdi/nvidia.yaml").exists()


def test_check_mode_works_before_driver_and_toolkit_are_there(host: Host) -> None:
    (host.sys / "module/nvidia/version").unlink()
    host.units(load="not-found", enabled="", active="inactive")
    outcome = host.bring(check=True)
    assert outcome.changed and "not loaded yet" in outcome.warnings[0]


def test_without_a_driver_it_says_so(host: Host) -> None:
    (host.sys / "module/nvidia/version").unlink()
    with pytest.raises(ToolkitError, match="the NVIDIA driver is not loaded"):
        host.bring()


def test_a_driver_that_does_not_answer_is_quoted(host: Host) -> None:
    said = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.159\n"
    host.commands.on("nvidia-smi", "-L", rc=18, out=said)
    with pytest.raises(
        ToolkitError, match="nvidia-smi says 'Failed to initialize NVML: Driver/library version mismatch"
    ):
        host.bring()


def test_a_refresh_that_fails_is_quoted(host: Host) -> None:
    host.commands.on("systemctl", "restart", "nvidia-cdi-refresh.service", rc=1, err="Job failed.\n")
    host.commands.on("journalctl", out='Starting\ntime="now" level=error msg="failed to generate CDI spec: no NVML"\n')
    with pytest.raises(ToolkitError, match="failed to generate CDI spec: no NVML"):
        host.bring()


def test_removal_switches_off_and_takes_all_away(host: Host) -> None:
    host.put("var/run/cdi/nvidia.yaml", spec())
    host.put("etc/cdi/nvidia.yaml", spec())
    assert host.refresh.absent(check=True).changed and host.target.exists()
    assert host.refresh.absent().changed
    assert not host.target.exists() and not (host.root / ENVIRONMENT).exists() and not (host.root / LEFT).exists()
    assert (host.root / "state/gpu_container_toolkit/put_aside/nvidia.yaml").read_text() == spec()
    assert host.commands.ran("systemctl", "disable", "--now") == 1
    host.units(load="not-found", enabled="", active="inactive")
    assert not host.refresh.absent().changed


OLD = cdi.Spec("/var/run/cdi/nvidia.yaml", "0.7.0", ("all",), ())
UNRESOLVED = "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all"


@pytest.mark.parametrize(
    ("said", "specs", "version", "modes", "reason"),
    [
        (UNRESOLVED, [], "5.4.2", {}, "no CDI spec describes the GPUs"),
        (UNRESOLVED, [OLD], "4.9.3", {}, "CDI 0.7.0, but Podman 4.9.3 reads CDI up to 0.6.0"),
        (UNRESOLVED, [OLD], "3.4.4", {}, "Podman 3.4.4 knows no CDI"),
        (UNRESOLVED, [OLD], "5.4.2", {OLD.path: 0o600}, "has mode 0600"),
        (
            UNRESOLVED,
            [cdi.Spec("/etc/cdi/n.json", None, (), (), "it is no valid JSON (x)")],
            "5.4.2",
            {},
            "no valid JSON",
        ),
        (UNRESOLVED, [OLD], "5.4.2", {OLD.path: 0o644}, "unresolvable CDI devices"),
        ('could not select device driver "cdi" with capabilities: []', [OLD], "5.4.2", {}, "dockerd runs without CDI"),
        (
            "Error: stat /usr/lib/libEGL_nvidia.so.570: no such file or directory",
            [OLD],
            "5.4.2",
            {},
            "libEGL_nvidia.so.570",
        ),
        ("Failed to initialize NVML: Driver/library version mismatch", [OLD], "5.4.2", {}, "reboot the host"),
        ("Failed to initialize NVML: Insufficient Permissions", [OLD], "5.4.2", {}, "SELinux"),
        ("crun: out of memory.", [OLD], "5.4.2", {}, "crun: out of memory"),
    ],
)
def test_the_engines_words_are_explained(
    said: str, specs: list[cdi.Spec], version: str, modes: dict[str, int], reason: str
) -> None:
    assert reason in cdi.explain(said, specs, "podman", version, modes)
