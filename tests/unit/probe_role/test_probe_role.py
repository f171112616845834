# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role probe on this machine, and its scripts, without a package index."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = ROOT / "roles/probe/files"

WHEEL = b"not really a wheel"
REQUIREMENTS = (
    f"# pins\nalpha==1.0 \\\n    --hash=sha256:{'0' * 64} \\\n    --hash=sha256:{hashlib.sha256(WHEEL).hexdigest()}\n"
)

# In the place of pip on the module path: "downloads" the wheel, and leaves a trace.
PIP = f"""
import pathlib, sys
pathlib.Path(sys.argv[sys.argv.index("--dest") + 1], "alpha-1.0-py3-none-any.whl").write_bytes({WHEEL!r})
print("Successfully downloaded")
"""


def fetch(folder: Path, requirements: str = REQUIREMENTS) -> subprocess.CompletedProcess[str]:
    """Runs fetch_wheels.py with the cache *folder*/cache."""
    (folder / "requirements.txt").write_text(requirements)
    (folder / "pip.py").write_text(PIP)
    command = [sys.executable, str(FILES / "fetch_wheels.py"), "requirements.txt", str(folder / "cache")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30, check=False)


def members(folder: Path) -> dict[str, bytes]:
    with tarfile.open(folder / "cache/wheels.tar") as tar:
        return {each.name: tar.extractfile(each).read() for each in tar if each.isreg()}  # type: ignore[union-attr]


def archive_with(wheel: bytes, requirements: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in (("wheels/alpha.whl", wheel), ("wheels/requirements.txt", requirements.encode())):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def test_the_wheels_are_fetched_once(tmp_path: Path) -> None:
    assert fetch(tmp_path).stdout == "fetched\n"
    expected = {"wheels/alpha-1.0-py3-none-any.whl": WHEEL, "wheels/requirements.txt": REQUIREMENTS.encode()}
    assert members(tmp_path) == expected
    assert fetch(tmp_path).stdout == "present\n"
    assert [each.name for each in (tmp_path / "cache").iterdir()] == ["wheels.tar"]


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"no archive",
        archive_with(WHEEL, REQUIREMENTS)[:700],
        archive_with(b"another wheel", REQUIREMENTS),
        archive_with(WHEEL, "alpha==2.0\n"),
    ],
    ids=["empty", "no-archive", "cut", "other-wheel", "other-pins"],
)
def test_a_damaged_archive_is_fetched_again(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/wheels.tar").write_bytes(damaged)
    assert fetch(tmp_path).stdout == "fetched\n"
    assert fetch(tmp_path).stdout == "present\n"


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    done = fetch(tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "set probe_wheel_cache" in done.stderr


def make_venv(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", (FILES / "make_venv.py").read_text(), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_an_environment_is_emptied_and_made_anew(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    folder = tmp_path / "env"
    (folder / "lib/left").mkdir(parents=True)
    (folder / "link").symlink_to(outside)
    (folder / ".requirements").touch()
    assert make_venv(folder).returncode != 0 and (folder / "lib/left").exists(), "no environment: nothing is removed"
    (folder / "pyvenv.cfg").touch()
    done = make_venv(folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "bin/python").exists() and "version" in (folder / "pyvenv.cfg").read_text()
    assert not any((folder / name).exists() for name in ("lib/left", "link", ".requirements"))
    assert (outside / "kept").exists()


def test_a_folder_that_holds_something_else_is_refused_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "probe"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    play = [{"name": "Probe", "hosts": "all", "gather_facts": False, "roles": ["socle.inference.probe"]}]
    (tmp_path / "play.yml").write_text(json.dumps(play))
    (tmp_path / "ansible.cfg").write_text("[defaults]\n")
    extra = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "probe_host_python": sys.executable,
        "probe_dir": str(folder),
        "probe_wheel_cache": str(tmp_path / "cache"),
    }
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1"}
    environment |= {"ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg")}
    environment |= {"ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections")}
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "play.yml", "-i", "gpu7,"]
    command += ["-e", json.dumps(extra)]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "is no virtual environment" in done.stdout
    assert (folder / "thesis.txt").read_text() == "mine" and not (tmp_path / "cache").exists()


def test_no_host_s_failure_is_that_of_all_hosts() -> None:
    # The role also runs while engines start, where each host rescues what fails on it; a task that runs once fails on
    # all of them, and the play would end before any engine is waited for.
    for path in sorted((FILES.parent / "tasks").glob("*.yml")):
        assert "run_once" not in path.read_text(encoding="utf-8")
