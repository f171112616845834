# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asking an image for its flags: once for each image, in a container of which nothing stays."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.docker import DockerBackend
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._engine.quadlet import QuadletBackend
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError, PlanError, SocleError
from ansible_collections.socle.inference.plugins.module_utils._flags.document import render
from ansible_collections.socle.inference.plugins.module_utils._flags.obtain import obtain_schema
from ansible_collections.socle.inference.plugins.module_utils._plan.flag_schema import read_schemas

from .conftest import FOLDER

IMAGE = "registry/vllm:v0.26.0"
DOCUMENT: dict[str, Any] = json.loads((FOLDER / "0.26.0.json").read_text(encoding="utf-8"))


class Engine:
    """Answers as Podman or Docker with one image would."""

    def __init__(self, answer: str = "", rc: int = 0, stderr: str = "") -> None:
        self.answer = answer or json.dumps(DOCUMENT)
        self.rc = rc
        self.stderr = stderr
        self.present = True
        self.hangs = False
        self.calls: list[list[str]] = []
        self.inputs: list[str | None] = []

    def __call__(
        self, argv: Sequence[str], *, input_text: str | None = None, timeout_s: float = 60.0, on_line: Any = None
    ) -> subprocess.CompletedProcess[str]:
        words = list(argv)
        self.calls.append(words)
        if "inspect" in words:
            if self.present:
                text = json.dumps([{"Id": "sha256:" + "ab" * 32, "RepoDigests": []}])
                return subprocess.CompletedProcess(words, 0, text, "")
            return subprocess.CompletedProcess(words, 1, "[]", "Error response from daemon: No such image: x")
        if words[1] == "image":
            return subprocess.CompletedProcess(words, 1, "", "")
        if words[1] == "rm":
            return subprocess.CompletedProcess(words, 0, "", "")
        self.inputs.append(input_text)
        if self.hangs:
            raise EngineError("Gave up.")
        return subprocess.CompletedProcess(words, self.rc, self.answer, self.stderr)

    def runs(self) -> list[list[str]]:
        return [call for call in self.calls if call[1] == "run"]


def ask(engine: Engine, state_dir: Path, *, script: str = "print()", tool: str = "podman", check: bool = False) -> Any:
    backend = QuadletBackend(engine) if tool == "podman" else DockerBackend(engine, docker="docker")
    return obtain_schema(
        backend,
        IMAGE,
        script=script,
        state_dir=state_dir,
        files=Files(),
        container="socle-flags-7",
        timeout_s=60,
        check=check,
    )


@pytest.mark.parametrize("tool", ["podman", "docker"])
def test_the_image_is_asked_without_a_network_and_by_its_id(tmp_path: Path, tool: str) -> None:
    engine = Engine()
    result = ask(engine, tmp_path, tool=tool)
    (words,) = engine.runs()
    assert words[:2] == [tool, "run"]
    assert {"--rm", "--network=none", "--pull=never", "--entrypoint=python3"} <= set(words)
    # A tag could have moved since it was looked up.
    assert words[-2:] == ["sha256:" + "ab" * 32, "-"]
    assert engine.inputs == ["print()"]
    assert result["vllm_version"] == "0.26.0" and result["changed"] and not result["cached"]
    assert result["schema"]["made_with"]["image"] == "sha256:" + "ab" * 32


def test_the_second_run_asks_nothing_and_says_the_same(tmp_path: Path) -> None:
    engine = Engine()
    first = ask(engine, tmp_path)
    second = ask(engine, tmp_path)
    assert len(engine.runs()) == 1
    assert second == {**first, "changed": False, "cached": True}


def test_a_newer_program_asks_again(tmp_path: Path) -> None:
    engine = Engine()
    ask(engine, tmp_path)
    assert ask(engine, tmp_path, script="print(1)")["changed"]
    assert len(engine.runs()) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"extractor": 1}'])
def test_a_damaged_note_is_made_again(tmp_path: Path, text: str) -> None:
    note = tmp_path / "cache/flags" / f"{'ab' * 32}.json"
    note.parent.mkdir(parents=True)
    note.write_text(text, encoding="utf-8")
    assert ask(Engine(), tmp_path)["vllm_version"] == "0.26.0"
    assert json.loads(note.read_text(encoding="utf-8"))["schema"]["vllm_version"] == "0.26.0"


def test_check_mode_asks_and_keeps_nothing(tmp_path: Path) -> None:
    assert ask(Engine(), tmp_path, check=True)["vllm_version"] == "0.26.0"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tool", ["podman", "docker"])
def test_an_image_that_is_not_there_is_named(tmp_path: Path, tool: str) -> None:
    engine = Engine()
    engine.present = False
    with pytest.raises(EngineError, match=r"registry/vllm:v0\.26\.0 is not in .* make it\s+present first"):
        ask(engine, tmp_path, tool=tool)
    assert not engine.runs()


def test_a_program_that_fails_gives_its_last_words_and_leaves_no_note(tmp_path: Path) -> None:
    engine = Engine(rc=1, stderr="Traceback\nModuleNotFoundError: No module named 'vllm'\n\n")
    with pytest.raises(EngineError, match="No module named 'vllm'") as caught:
        ask(engine, tmp_path)
    assert caught.value.fields["rc"] == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("answer", ["hello", "[]", "{}", '{"made_with": {}}', json.dumps({**DOCUMENT, "flags": 3})])
def test_an_answer_of_another_kind_is_refused_and_not_kept(tmp_path: Path, answer: str) -> None:
    with pytest.raises(SocleError):
        ask(Engine(answer=answer), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_giving_up_removes_the_container(tmp_path: Path) -> None:
    engine = Engine()
    engine.hangs = True
    with pytest.raises(EngineError, match=r"Gave up"):
        ask(engine, tmp_path)
    assert engine.calls[-1] == ["podman", "rm", "--force", "socle-flags-7"]


# The files


def test_the_shipped_files_are_as_the_tool_writes_them() -> None:
    for path in FOLDER.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert render(json.loads(text)) == text, path.name


def test_no_shipped_file_holds_text_of_others() -> None:
    for path in FOLDER.glob("*.json"):
        flags = json.loads(path.read_text(encoding="utf-8"))["flags"]
        assert not any({"help", "description"} & set(entry) for entry in flags.values())


def test_a_file_in_the_sites_data_wins(tmp_path: Path) -> None:
    own = {**DOCUMENT, "environment": ["VLLM_OWN"]}
    (tmp_path / "0.26.0.json").write_text(render(own), encoding="utf-8")
    schemas = read_schemas([tmp_path, FOLDER])
    assert schemas["0.26.0"].environment == {"VLLM_OWN"}
    assert "0.33.0" in schemas


def test_a_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "0.26.0.json"
    path.write_text(render(DOCUMENT), encoding="utf-8")
    first = read_schemas([tmp_path])["0.26.0"]
    assert read_schemas([tmp_path])["0.26.0"] is first
    path.write_text(render({**DOCUMENT, "environment": []}), encoding="utf-8")
    assert read_schemas([tmp_path])["0.26.0"].environment == frozenset()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("0.26.0", "{", "is no JSON"),
        ("0.26.0", "[]", "is no flag schema"),
        ("0.26.0", json.dumps({**DOCUMENT, "classes": None}), "missing or damaged"),
        ("0.26.0", json.dumps({**DOCUMENT, "flags": {"seed": {"type": "number"}}}), r"damaged \(.*'number' is no type"),
        (
            "0.26.0",
            json.dumps({**DOCUMENT, "classes": {"X": {"rest": "forbid", "keys": {"k": {"types": ["whole"]}}}}}),
            r"damaged \(.*'whole' is no type",
        ),
        ("0.27.1", json.dumps(DOCUMENT), r"rename it to 0\.26\.0\.json"),
    ],
)
def test_a_damaged_file_is_named_with_the_way_out(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    with pytest.raises(PlanError, match=rf"profiles/vllm/{name}\.json .*{words}"):
        read_schemas([tmp_path])


def test_defaults_are_those_of_the_version() -> None:
    schemas = read_schemas([FOLDER])
    assert schemas["0.19.1"].defaults()["gpu-memory-utilization"] == 0.9
    assert schemas["0.26.0"].defaults()["gpu-memory-utilization"] == 0.92
    assert schemas["0.26.0"].defaults()["enable-prefix-caching"] is None


@pytest.mark.parametrize("version", ["../../../home/me/.config/x", "0.26.0/../../x", "", "0.26.0\n", "latest", 5])
def test_an_image_cannot_choose_where_its_answer_is_written(tmp_path: Path, version: Any) -> None:
    # The file is named by it on the controller.
    engine = Engine(json.dumps({**DOCUMENT, "vllm_version": version}))
    with pytest.raises(SocleError, match="vllm_version is"):
        ask(engine, tmp_path)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("version", ["0.26.0", "0.27.1.dev12", "0.33.0rc1"])
def test_versions_of_builds_are_taken(tmp_path: Path, version: str) -> None:
    assert ask(Engine(json.dumps({**DOCUMENT, "vllm_version": version})), tmp_path)["vllm_version"] == version


def test_an_answer_that_nests_without_an_end_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="answered something else"):
        ask(Engine("[" * 100_000), tmp_path)
    with pytest.raises(EngineError) as caught:
        ask(Engine(rc=1, stderr="x" * 100_000), tmp_path)
    assert len(caught.value.message) < 600
