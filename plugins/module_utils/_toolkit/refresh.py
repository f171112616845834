# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps the description of the GPUs current: settings and units of nvidia-cdi-refresh. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, Runner, explaining
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError, ToolkitError
from ansible_collections.socle.inference.plugins.module_utils._stack.parse import parse_environment, parse_units
from ansible_collections.socle.inference.plugins.module_utils._toolkit import cdi
from ansible_collections.socle.inference.plugins.module_utils._toolkit.versions import needs_plain_gids

ENVIRONMENT = "etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
FLAGS = "NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS"
PLAIN_GIDS = "no-additional-gids-for-device-nodes"
OUTPUT = "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"
STRATEGIES = "NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES"

WRITTEN = "/var/run/cdi/nvidia.yaml"
"""Where the refresh unit writes unless it is told otherwise."""

HOOK = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
"""Of NVIDIA's former way into Podman: it gives GPUs a second time, beside CDI, and fails."""

SERVICE = "nvidia-cdi-refresh.service"
PATH_UNIT = "nvidia-cdi-refresh.path"

PUT_ASIDE = "gpu_container_toolkit/put_aside"
"""Folder of files that described GPUs before, kept for whoever had written them."""

MODULES = ("nvidia", "nvidia_current")

CONTROL_NODES = ("dev/nvidiactl", "dev/nvidia-uvm")

REFRESH_S = 120.0


def merge_environment(text: str, *, plain_gids: bool) -> str:
    """The environment file with or without the one flag that is ours; all other lines and flags stay."""
    lines = text.splitlines()
    found = False
    merged = []
    for line in lines:
        key, _equals, value = line.partition("=")
        if key.strip() != FLAGS or line.lstrip().startswith(("#", ";")):
            merged.append(line)
            continue
        flags = [flag for flag in value.strip().strip("\"'").replace(" ", ",").split(",") if flag]
        kept = [flag for flag in flags if flag != PLAIN_GIDS] + ([PLAIN_GIDS] if plain_gids and not found else [])
        found = True
        if set(kept) == set(flags):
            merged.append(line)
        elif kept:
            merged.append(f"{FLAGS}={','.join(kept)}")
    if plain_gids and not found:
        merged.append(f"{FLAGS}={PLAIN_GIDS}")
    return "\n".join(merged) + "\n" if merged else ""


@dataclass
class Outcome:
    """What was done, or in check mode would be."""

    changed: bool = False
    actions: list[str] = field(default_factory=list)
    diffs: list[tuple[str, str, str]] = field(default_factory=list)
    """Changed files: path, before, after."""
    warnings: list[str] = field(default_factory=list)
    specs: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    uuids: list[str] = field(default_factory=list)
    """Of the host's GPUs and MIG devices; empty where the driver does not run."""

    def add(self, action: str) -> None:
        """Note an action."""
        self.changed = True
        self.actions.append(action)


class CdiRefresh:
    """The refresh units of one host and what they write."""

    def __init__(
        self,
        runner: Runner,
        files: Files,
        root: Path = Path("/"),
        sys_root: Path = Path("/sys"),
        state_dir: Path = Path("/var/lib/socle"),
    ) -> None:
        self._run = runner
        self._files = files
        self._root = root
        self._sys_root = sys_root
        self._put_aside = state_dir / PUT_ASIDE

    def present(self, engine: str, engine_version: str, toolkit_version: str, *, check: bool = False) -> Outcome:
        """Units on, settings right, nothing left over, and exactly the host's GPUs described for this engine."""
        outcome = Outcome()
        plain_gids = needs_plain_gids(engine, engine_version, toolkit_version)
        path = self._root / ENVIRONMENT
        before = self._files.read(path) or ""
        after = merge_environment(before, plain_gids=plain_gids)
        settings = parse_environment(after)
        if after != before:
            outcome.diffs.append((f"/{ENVIRONMENT}", before, after))
            outcome.add(f"{'set' if plain_gids else 'take back'} {PLAIN_GIDS}")
        left = self._left_over(settings)
        units = self._units()
        if not check and any(units[name].get("LoadState") != "loaded" for name in (PATH_UNIT, SERVICE)):
            raise ToolkitError(
                f"Cannot keep the description of the GPUs current: the unit {SERVICE} is missing or masked, expected it"
                " from nvidia-container-toolkit-base; install that package again or unmask the unit."
            )
        off = [name for name in (PATH_UNIT, SERVICE) if units[name].get("UnitFileState") not in ("enabled", "static")]
        if off:
            outcome.add(f"enable {', '.join(off)}")
        start_path = units[PATH_UNIT].get("ActiveState") != "active"
        if start_path:
            outcome.add(f"start {PATH_UNIT}")
        expected = self._expected(engine, engine_version, settings, check=check)
        specs = [spec for spec in cdi.read_specs(self._root) if spec.path not in left]
        faults = cdi.judge(specs, expected) if expected else []
        if expected is None:
            outcome.warnings.append("The driver is not loaded yet, so the GPUs are described for containers only then.")
        due = after != before or any(fault.refreshable for fault in faults)
        if due and expected:
            outcome.add("describe the GPUs again" + (f", since {faults[0].text}" if faults else ""))
        self._note_aside(left, outcome)
        if not check:
            self._apply(after if after != before else None, off, start_path)
            if due and expected:
                self._refresh()
                specs = [spec for spec in cdi.read_specs(self._root) if spec.path not in left]
                faults = cdi.judge(specs, expected)
            if faults:
                raise ToolkitError(_lasting(faults, specs), faults=[fault.text for fault in faults])
            # Only now, since until here containers may have had their GPUs by these files alone.
            self._move_aside(left)
        outcome.uuids = cdi.device_uuids(expected.gpus) if expected else []
        outcome.specs = [spec.path for spec in specs]
        outcome.devices = sorted({name for spec in specs for name in spec.devices})
        return outcome

    def absent(self, *, check: bool = False) -> Outcome:
        """Units off, and nothing left that describes GPUs."""
        outcome = Outcome()
        units = self._units()
        on = [
            name
            for name in (PATH_UNIT, SERVICE)
            if units[name].get("LoadState") == "loaded"
            and (units[name].get("UnitFileState") == "enabled" or units[name].get("ActiveState") == "active")
        ]
        if on:
            outcome.add(f"disable {', '.join(on)}")
        before = self._files.read(self._root / ENVIRONMENT)
        written = parse_environment(before or "").get(OUTPUT, WRITTEN)
        left = self._left_over(parse_environment(before or ""))
        gone = [file for file in (written, f"/{ENVIRONMENT}") if (self._root / file.lstrip("/")).exists()]
        for file in gone:
            outcome.add(f"remove {file}")
        self._note_aside(left, outcome)
        if not check:
            if on:
                self._systemctl("disable", "--now", "--no-reload", *on)
            with explaining("remove what described the GPUs"):
                for file in gone:
                    self._files.remove(self._root / file.lstrip("/"))
            self._move_aside(left)
        return outcome

    def _left_over(self, settings: Mapping[str, str]) -> list[str]:
        written = settings.get(OUTPUT, WRITTEN)
        candidates = [file for file in (cdi.LEFT_OVER, HOOK) if file != written]
        return [file for file in candidates if (self._root / file.lstrip("/")).exists()]

    def _units(self) -> dict[str, dict[str, str]]:
        properties = "--property=Id,LoadState,UnitFileState,ActiveState"
        shown = parse_units(self._run(["systemctl", "show", properties, PATH_UNIT, SERVICE]).stdout)
        return {name: shown.get(name, {}) for name in (PATH_UNIT, SERVICE)}

    def _expected(
        self, engine: str, engine_version: str, settings: Mapping[str, str], *, check: bool
    ) -> cdi.Expected | None:
        driver = loaded_driver(self._files, self._sys_root)
        if driver is None:
            if check:
                return None
            raise ToolkitError(
                "Cannot describe the GPUs for containers: the NVIDIA driver is not loaded; install it with role"
                " gpu_driver and reboot the host if that asks for it, then repeat the run."
            )
        try:
            gpus = list_gpus(self._run)
        except (EngineError, ToolkitError):
            if check:
                return None
            raise
        nodes = tuple(f"/{node}" for node in CONTROL_NODES if (self._root / node).exists())
        return cdi.Expected(gpus, driver, engine, engine_version, STRATEGIES not in settings, nodes)

    def _apply(self, environment: str | None, off: Sequence[str], start_path: bool) -> None:
        if environment is not None:
            with explaining("set up the description of the GPUs"):
                self._files.write(self._root / ENVIRONMENT, environment)
        if off:
            # A daemon-reload takes GPUs away from containers that do not have them by CDI.
            self._systemctl("enable", "--no-reload", *off)
        if start_path:
            self._systemctl("start", PATH_UNIT)

    def _note_aside(self, left: Sequence[str], outcome: Outcome) -> None:
        for file in left:
            outcome.add(f"move {file} to {self._put_aside}")
            outcome.diffs.append((file, self._files.read(self._root / file.lstrip("/")) or "", ""))

    def _move_aside(self, left: Sequence[str]) -> None:
        moved: dict[Path, str] = {}
        with explaining("put away what described the GPUs before", self._put_aside):
            try:
                for file in left:
                    path = self._root / file.lstrip("/")
                    text = self._files.read(path) or ""
                    self._files.write(self._put_aside / path.name, text)
                    moved[path] = text
                    self._files.remove(path)
            except OSError:
                for path, text in moved.items():
                    self._files.write(path, text)
                raise

    def _refresh(self) -> None:
        # A unit that failed while there was no driver may have used up its starts.
        self._run(["systemctl", "reset-failed", SERVICE])
        self._systemctl("restart", SERVICE, timeout_s=REFRESH_S)

    def _systemctl(self, *argv: str, timeout_s: float = 60.0) -> None:
        done = self._run(["systemctl", *argv], timeout_s=timeout_s)
        if done.returncode == 0:
            return
        said = self._run(["journalctl", "--unit", SERVICE, "--no-pager", "--quiet", "-n", "5", "-o", "cat"]).stdout
        lines = [line for line in said.splitlines() if "error" in line.lower()] or done.stderr.strip().splitlines()
        command = " ".join(word for word in argv if not word.startswith("--"))
        raise ToolkitError(
            f"systemctl {command} failed: {lines[0].strip().rstrip('.') if lines else 'it gave no reason'}; see"
            f" 'journalctl -u {SERVICE}' on the host.",
            stderr=done.stderr,
            journal=said,
        )


def loaded_driver(files: Files, sys_root: Path) -> str | None:
    """Version of the loaded module, None without one."""
    for name in MODULES:
        text = files.read(sys_root / "module" / name / "version")
        if text and text.strip():
            return text.strip()
    return None


def list_gpus(run: Runner) -> list[cdi.Gpu]:
    """The GPUs that the driver shows. Raises ToolkitError with nvidia-smi's own words."""
    done = run(["nvidia-smi", "-L"])
    gpus = cdi.parse_list(done.stdout) if done.returncode == 0 else []
    if not gpus:
        said = " ".join(f"{done.stdout} {done.stderr}".split()) or f"exit status {done.returncode}"
        raise ToolkitError(
            f"Cannot list the GPUs: nvidia-smi says '{said.rstrip('.')}', expected one line for each GPU; put the"
            " driver right (role gpu_driver; a reboot after an upgrade), then repeat the run.",
            stdout=done.stdout,
        )
    return gpus


def _lasting(faults: Sequence[cdi.Fault], specs: Sequence[cdi.Spec]) -> str:
    others = [spec.path for spec in specs if spec.path != WRITTEN]
    remedy = f"look at what else is in {', '.join(others)}" if others else f"see 'journalctl -u {SERVICE}' on the host"
    tried = f", also after {SERVICE} ran again" if faults[0].refreshable else ""
    return f"Containers would not get the host's GPUs: {faults[0].text}{tried}; {remedy}, then repeat the run."
