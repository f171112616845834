# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters stay cheap to load: Ansible imports all filter files of a collection in each worker that uses one of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
HEAVY = ("_plan.draft", "_plan.checks", "_plan.client_card", "_stack.catalogue", "_engine.launch")
"""Planner, catalogue of host checks, client cards and launches, each of which brings dozens of others."""

LOAD = """
import importlib, json, sys
sys.path.insert(0, "collections")
for name in sys.argv[1:]:
    importlib.import_module("ansible_collections.socle.inference.plugins.filter." + name)
print(json.dumps(sorted(sys.modules)))
"""


def test_no_filter_file_brings_the_planner_or_the_host_checks_with_it() -> None:
    files = [path.stem for path in (ROOT / "plugins/filter").glob("*.py")]
    done = subprocess.run([sys.executable, "-c", LOAD, *files], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert [name for name in loaded if name.endswith("filter.stack")]
    assert [name for name in loaded if name.endswith(HEAVY)] == []
