# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A branch that moves, a damaged file, old revisions, and a host without a network."""

from __future__ import annotations

from tests.support import models

SHARD = "model-00002-of-00004.safetensors"


def test_a_branch_that_moved_is_refused_and_then_accepted() -> None:
    before = {host: models.current(host, "Sharded") for host in models.HOSTS}
    models.on(models.HUB, f'cd {models.MODELS}/Sharded && echo \'{{"architectures": ["Other"]}}\' >config.json')
    models.forget_requests()
    refused = models.models()
    assert refused.rc != 0
    said = " ".join(refused.output.split())
    assert "has moved" in said and "model_store_moved=accept" in said and before["model-1"] in said
    assert {host: models.current(host, "Sharded") for host in models.HOSTS} == before
    models.models(model_store_moved="accept").expect_success()
    for host in models.HOSTS:
        assert models.content(host, "Sharded") == models.original("Sharded")
        # Shards that did not change are the same inodes.
        old, new = (
            f"{models.STORE}/.store/modelscope/Org--Sharded/rev/{each}"
            for each in (before[host], models.current(host, "Sharded"))
        )
        assert models.on(host, f"[ {old}/{SHARD} -ef {new}/{SHARD} ] && echo same").strip() == "same"
    assert models.bytes_sent() < 1_000_000


def test_a_flipped_byte_is_found_and_alone_repaired() -> None:
    flip = "import sys; p = sys.argv[1]; d = bytearray(open(p, 'rb').read()); d[-1] ^= 1; open(p, 'wb').write(d)"
    models.on(
        "model-2",
        f"cd $(readlink -f {models.STORE}/Org--Sharded); touch -r {SHARD} /tmp/stamp;"
        f' python3 -c "{flip}" {SHARD}; touch -r /tmp/stamp {SHARD}',
    )
    # Both revisions share the inode, so that both are damaged; only the current one is looked at.
    found = models.models("verify")
    assert found.rc != 0 and found.recap["model-2"]["failed"] == 1
    assert found.recap["model-1"]["failed"] == found.recap["model-3"]["failed"] == 0
    said = " ".join(found.output.split())
    assert SHARD in said and "model_store_repair" in said
    models.forget_requests()
    models.models("verify", model_store_repair=True).expect_success()
    assert models.content("model-2", "Sharded") == models.original("Sharded")
    # A neighbour has the file.
    assert models.bytes_sent() == 0
    assert models.models("verify").expect_success().changed == 0


def test_old_revisions_are_freed_but_not_the_previous_one() -> None:
    first = models.on("model-1", f"ls {models.STORE}/.store/modelscope/Org--Sharded/rev").split()
    assert len(first) == 2
    models.on(models.HUB, f'cd {models.MODELS}/Sharded && echo \'{{"architectures": ["Third"]}}\' >config.json')
    previous = models.current("model-1", "Sharded")
    models.models(model_store_moved="accept").expect_success()
    current = models.current("model-1", "Sharded")
    models.models("gc", "--check").expect_success()
    assert len(models.on("model-1", f"ls {models.STORE}/.store/modelscope/Org--Sharded/rev").split()) == 3
    assert models.models("gc").expect_success().changed == 3
    kept = models.on("model-1", f"ls {models.STORE}/.store/modelscope/Org--Sharded/rev").split()
    assert sorted(kept) == sorted([previous, current])
    assert models.models("gc").expect_success().changed == 0


def test_models_travel_by_disk() -> None:
    disk = "/srv/usb"
    models.models("export", "--limit", "model-1", model_store_export_path=disk).expect_success()
    for host in models.HOSTS[1:]:
        models.on(host, f"rm -rf {models.STORE}")
    models.on("model-1", f"rm -rf {models.STORE}")
    models.on(models.HUB, "systemctl stop models-hub")
    try:
        models.models("import", model_store_import_path=disk).expect_success()
        assert models.models(model_store_offline=True).expect_success().changed == 0
    finally:
        models.on(models.HUB, "systemctl start models-hub")
    for model in ("Small", "Sharded"):
        assert [models.content(host, model) for host in models.HOSTS] == [models.original(model)] * 3


def test_the_table_has_every_host() -> None:
    listed = models.models("list").expect_success().output
    for host in models.HOSTS:
        assert any(host in line and "Org/Sharded" in line and "current" in line for line in listed.splitlines()), listed
