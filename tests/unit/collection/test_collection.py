"""What holds for the collection as a whole: specs, documentation, what is packed."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("role", ROLES)
def test_argument_specs_name_the_defaults_and_nothing_else(role: str) -> None:
    folder = ROOT / "roles" / role
    options = load(folder / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    defaults = load(folder / "defaults/main.yml") or {}
    # A required input has no default by nature.
    required = {name for name, option in options.items() if option.get("required")}
    assert set(options) - required == set(defaults)
    assert not required & set(defaults)


@pytest.mark.parametrize("role", ROLES)
def test_inputs_of_a_role_carry_its_name_and_a_comment(role: str) -> None:
    lines = (ROOT / "roles" / role / "defaults/main.yml").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if line and not line[0].isspace() and not line.startswith(("#", "---", "}")):
            assert line.startswith((f"{role}_", f"{role}:")), line
            assert lines[number - 1].startswith("#"), f"{line} has no comment above it"


@pytest.mark.parametrize("module", sorted(path.stem for path in (ROOT / "plugins/modules").glob("*.py")))
def test_every_module_supports_check_mode(module: str) -> None:
    text = (ROOT / "plugins/modules" / f"{module}.py").read_text(encoding="utf-8")
    assert re.search(r"check_mode:\n    support: (full|partial)\n", text)


def test_engine_and_toolkit_refuse_before_the_driver_changes() -> None:
    tasks = load(ROOT / "playbooks/provision.yml")[0]["tasks"]
    roles = {
        task["ansible.builtin.include_role"]["name"]: task for task in tasks if "ansible.builtin.include_role" in task
    }
    driver = tasks.index(roles["socle.inference.gpu_driver"])
    for role in ("container_engine", "gpu_container_toolkit"):
        plan = next(task for task in tasks if f"socle.inference.{role}_plan" in task)
        assert tasks.index(plan) < driver
        assert roles[f"socle.inference.{role}"]["vars"][f"{role}_planned"] == f"{{{{ {plan['register']} }}}}"


def test_an_engine_is_planned_and_installed_where_one_is_due_only() -> None:
    tasks = load(ROOT / "playbooks/provision.yml")[0]["tasks"]
    engine = [
        task
        for task in tasks
        if "socle.inference.container_engine_plan" in task
        or task.get("ansible.builtin.include_role", {}).get("name") == "socle.inference.container_engine"
    ]
    assert [task["when"] for task in engine] == ["socle_engine_due"] * 2
    for task in tasks:
        assert "container_engine_result" not in str(task).replace("container_engine_result | default({})", "")


def test_both_bundles_satisfy_the_required_collections() -> None:
    assert load(ROOT / "requirements.yml")["collections"]
    assert load(ROOT / "galaxy.yml")["dependencies"] == {}


def test_the_packed_collection_holds_content_and_nothing_else(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", ":!collections"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        source = ROOT / name
        if source.is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(source.read_bytes())
    galaxy = Path(sys.executable).with_name("ansible-galaxy")
    subprocess.run(
        [galaxy, "collection", "build", "--output-path", tmp_path], cwd=copy, check=True, capture_output=True
    )
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as packed:
        names = packed.getnames()
    tops = {name.split("/")[0] for name in names}
    assert {"plugins", "roles", "playbooks", "profiles", "suites", "workloads", "meta", "LICENSE"} <= tops
    known = {"plugins", "roles", "playbooks", "profiles", "suites", "workloads", "meta", "docs", "changelogs"}
    files = {"LICENSE", "README.md", "requirements.yml", "MANIFEST.json", "FILES.json"}
    assert tops <= known | files
