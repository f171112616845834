# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host's own Quadlet generator and systemd read the units for every Podman, and for Docker, with GPUs."""

from __future__ import annotations

import base64

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine import docker, quadlet
from testinfra.host import Host

from tests.unit.engine.conftest import PLAN
from tests.unit.engine.test_quadlet import LIMITS, VERSIONS, WORDS, systemd_reads

GPUS = {**PLAN, "gpus": [0], "argv": [*PLAN["argv"], *WORDS], "requires": ["nvidia-fabricmanager.service"]}
FOLDER = "/run/socle-units"


def put(host: Host, name: str, text: str) -> None:
    encoded = base64.b64encode(text.encode()).decode()
    host.check_output(f"mkdir -p {FOLDER} && rm -f {FOLDER}/* && echo {encoded} | base64 -d >{FOLDER}/{name}")


@pytest.mark.parametrize("version", VERSIONS)
def test_quadlet_keeps_every_argument(host: Host, version: tuple[int, int, int]) -> None:
    put(host, "vllm-chat.container", quadlet.render(GPUS, version, LIMITS))
    made = host.check_output(f"QUADLET_UNIT_DIRS={FOLDER} /usr/libexec/podman/quadlet -dryrun")
    start = next(line for line in made.splitlines() if line.startswith("ExecStart="))
    words = systemd_reads(start)
    assert words[-len(GPUS["argv"]) :] == GPUS["argv"]
    said = " ".join(words).replace("=", " ")
    for option in (
        "--stop-timeout 120",
        "--ulimit memlock -1:-1",
        "--sdnotify healthy",
        "--security-opt no-new-privileges",
    ):
        assert option in said
    # The last one wins.
    assert said.rindex("--sdnotify healthy") >= said.rindex("--sdnotify ")


def test_systemd_hands_over_every_argument(host: Host) -> None:
    words = [*WORDS, "", ";", "@file", "\\;", "${A}"]
    quoted = " ".join(docker.quote(word) for word in words)
    unit = f'[Service]\nType=oneshot\nExecStart=/usr/bin/printf "%%s\\\\n" {quoted}\nStandardOutput=file:{FOLDER}/out\n'
    put(host, "socle-words.service", unit)
    host.check_output(
        f"mv {FOLDER}/socle-words.service /run/systemd/system/ && systemctl daemon-reload; systemctl start socle-words;"
        " rm /run/systemd/system/socle-words.service; systemctl daemon-reload"
    )
    assert host.file(f"{FOLDER}/out").content_string.splitlines() == words
