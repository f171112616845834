# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""After converge: three hosts hold both models, and one copy crossed the WAN."""

from __future__ import annotations

import pytest

from tests.support import models


@pytest.mark.parametrize("model", ["Small", "Sharded"])
def test_every_host_holds_what_the_hub_has(model: str) -> None:
    original = models.original(model)
    assert [models.content(host, model) for host in models.HOSTS] == [original] * 3
    assert len({models.current(host, model) for host in models.HOSTS}) == 1


def test_one_copy_crossed_the_wan() -> None:
    assert models.bytes_sent() == models.size_of("Small") + models.size_of("Sharded")


def test_nothing_of_the_jobs_is_left() -> None:
    for host in models.HOSTS:
        assert models.on(host, "systemctl list-units --all --no-legend 'socle-models-*'").strip() == ""
        assert models.on(host, "find /run/socle/models -name payload.zip -o -name spec.json").strip() == ""
        assert models.on(host, "find /var/lib/socle/models/.store -path '*/stage/*' -type f").strip() == ""


def test_without_work_the_hub_may_be_down() -> None:
    models.on(models.HUB, "systemctl stop models-hub")
    try:
        run = models.models().expect_success()
    finally:
        models.on(models.HUB, "systemctl start models-hub")
    assert run.changed == 0
    assert "cannot be reached" in run.output and "the lock" in run.output


def test_a_broken_connection_does_not_end_a_download() -> None:
    for host in models.HOSTS:
        models.on(host, f"rm -rf {models.STORE}")
    models.forget_requests()
    models.hub_control(reset=True, rules=[{"path": "/cdn/", "count": -1, "shared_bytes_per_s": 8_000_000}])
    try:
        # A shard has begun, and four come at once, so that 67 MB are still to come.
        models.kill_during(
            "model-1", f"find {models.STORE}/.store/modelscope/Org--Sharded/stage -size +100k | grep -q ."
        )
        models.on("model-1", "systemctl list-units --no-legend 'socle-models-*' | grep -q running")
        models.models().expect_success()
    finally:
        models.hub_control(reset=True)
    assert models.bytes_sent() == models.size_of("Small") + models.size_of("Sharded")
    for model in ("Small", "Sharded"):
        assert [models.content(host, model) for host in models.HOSTS] == [models.original(model)] * 3
