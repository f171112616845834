# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An API key is in root-only places and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from testinfra.host import Host

from tests.support.key_places import SECRETS, assert_absent, places

PODMAN = "/var/lib/containers/storage"
LAYERS = f"{PODMAN}/overlay {PODMAN}/overlay-images {PODMAN}/overlay-layers"
PLACES = places(
    "keyed",
    {
        "container": "podman inspect vllm-keyed; podman secret inspect socle-keyed-api_key",
        "container layers": f"find {LAYERS} -xdev -type f ! -size +20M -exec cat {{}} +",
    },
)


def test_the_key_is_kept_for_root_alone(host: Host, api_key: str) -> None:
    assert host.file(f"{SECRETS}/keyed/env").content_string == f"VLLM_API_KEY={api_key}\n"
    modes = dict(line.split() for line in host.check_output(f"find {SECRETS} -printf '%p %m:%U:%y\n'").splitlines())
    assert {modes[f"{SECRETS}/keyed/env"], modes[f"{SECRETS}/hmac.key"]} == {"600:0:f"}
    assert {modes[SECRETS], modes[f"{SECRETS}/keyed"]} == {"700:0:d"}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_the_key_is_nowhere_else_on_the_host(host: Host, api_key: str, place: str) -> None:
    assert_absent(host, place, api_key)


def test_what_podman_keeps_of_the_running_container_is_for_root_alone(host: Host) -> None:
    # The configuration that it gives the runtime names the environment, as does /proc/PID/environ of the engine.
    assert host.check_output(f"stat -c '%a %u' {PODMAN}/overlay-containers") == "700 0"


def test_the_key_is_not_in_any_output(api_key: str, log: str) -> None:
    assert "Launch the instance" in log
    assert "--- before" in log  # check mode showed its diffs
    assert api_key not in log


def test_the_key_is_not_in_the_records_of_the_controller(api_key: str) -> None:
    folder = Path(__file__).resolve().parents[1] / "inventory" / ".socle" / "records" / "lab-cpu-1" / "keyed"
    texts = [path.read_text() for path in folder.glob("*.json")]
    assert len(texts) >= 3
    assert not [text for text in texts if api_key in text]
