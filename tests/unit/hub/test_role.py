# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role model_store as Ansible runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.simulators.hub.server import HubSimulator

PROJECT = Path(__file__).resolve().parents[3]
PLAY = """
- name: Bring the models
  hosts: all
  gather_facts: false
  roles: [socle.inference.model_store]
"""


def test_models_of_one_name_and_two_owners_have_links_of_their_own(
    hub: HubSimulator, folder: Path, store: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, folder.parents[1] / "Other/Model")
    (folder.parents[1] / "Other/Model/config.json").write_text('{"architectures": ["Other"]}')
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "ansible.cfg").write_text("[defaults]\n")
    given = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "model_store_models": [{"repo": "Org/Model"}, {"repo": "Other/Model"}],
        "model_store_path": str(store),
        "model_store_endpoint": hub.url,
        "model_store_reserve_gib": 0,
    }
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("ansible-playbook")),
            *[str(tmp_path / "play.yml"), "-i", "gpu1,", "-e", json.dumps(given)],
        ],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "LC_ALL": "C.UTF-8",
            "NO_PROXY": "127.0.0.1",
            "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(PROJECT / "collections"),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    links = {path.name: (path / "config.json").read_text() for path in store.iterdir() if path.is_symlink()}
    assert links == {"Org--Model": '{"architectures": ["Some"]}', "Other--Model": '{"architectures": ["Other"]}'}
