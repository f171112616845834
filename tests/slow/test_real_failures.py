# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Launches that the real engine refuses or that fail under it: each is named by its cause, and gives way.

An instance beside the lab's own is accepted once. Then one launch after the other fails, what was accepted comes back,
and the failed one is not tried again unless somebody asks for it. What a plan would refuse is passed over by
vllm_rules_ignored, and what it cannot know happens to the host right before the engine starts.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import lab
from tests.support.real_failures import (
    BROKEN_TEMPLATE,
    CLEAN,
    FAILURES,
    INSTANCE,
    OTHER_PORT,
    PORT,
    REASON,
    Failure,
    journal,
    places_of,
    prepare,
)

DIAGNOSED_S = 5.0
"""How soon after an engine gave up its diagnosis is due."""

BACK = re.compile(
    rf"{INSTANCE} runs generation (\d+), which is generation (\d+) anew, and is accepted by suite smoke\."
)
QUESTION = "What is the capital of France?"
PASSED_OVER = {finding: REASON for failure in FAILURES for finding in failure.refused}


def changed(instance: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """An instance with other settings; flags go on top of its own."""
    return {**instance, **changes, "flags": {**instance["flags"], **changes.get("flags", {})}}


@dataclass
class Site:
    """The lab's inventory with the instance of this test in place of the lab's own."""

    inventory: Path
    key: str
    outputs: list[str] = field(default_factory=list)

    @property
    def instance(self) -> dict[str, Any]:
        return {
            "model": "smollm2-135m-instruct",
            "port": PORT,
            "api_key": self.key,
            "flags": {"max-num-seqs": 4},
        }

    def play(
        self, playbook: str, instances: dict[str, Any], *arguments: str, passed_over: dict[str, str] | None = None
    ) -> lab.Run:
        """Run a playbook with these instances, by files alone: a command line is for everybody to see."""
        path = self.inventory / "host_vars" / f"{lab.HOST}.yml"
        variables = yaml.safe_load((lab.INVENTORY / "host_vars" / f"{lab.HOST}.yml").read_text())
        variables.update(vllm_instances=instances, vllm_rules_ignored=passed_over or {})
        path.write_text(yaml.safe_dump(variables))
        run = lab.play(playbook, "--diff", "-v", *arguments, inventory=self.inventory)
        self.outputs.append(run.output)
        return run

    def deploy(self, changes: dict[str, Any], *arguments: str, playbook: str = "playbooks/deploy.yml") -> lab.Run:
        return self.play(playbook, {INSTANCE: changed(self.instance, changes)}, *arguments, passed_over=PASSED_OVER)

    def ask(self, port: int = PORT) -> str:
        """The engine's answer by way of the host's SSH, since it listens there on loopback alone."""
        local = 10_000 + port
        forward = lab.ssh_command("-N", "-o", "ExitOnForwardFailure=yes", "-L", f"127.0.0.1:{local}:127.0.0.1:{port}")
        with subprocess.Popen(forward) as tunnel:
            try:
                deadline = time.monotonic() + 30
                while True:
                    try:
                        return lab.ask(QUESTION, f"http://127.0.0.1:{local}", self.key)
                    except OSError:
                        # Until the tunnel stands.
                        if time.monotonic() > deadline:
                            raise
                        time.sleep(0.2)
            finally:
                tunnel.terminate()

    def records(self, kind: str) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in lab.collected(kind, INSTANCE, self.inventory)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    lab.play("playbooks/lab.yml").expect_success()
    folder = tmp_path_factory.mktemp("site") / "inventories" / "lab"
    shutil.copytree(lab.INVENTORY, folder, ignore=shutil.ignore_patterns(".socle"))
    lab.copy_locks(folder)
    templates = folder.parents[1] / "site_data" / "chat_templates"
    templates.mkdir(parents=True)
    (templates / "broken.jinja").write_text(BROKEN_TEMPLATE)
    site = Site(folder, f"key-{secrets.token_hex(16)}")
    lab.on_host(CLEAN)
    try:
        run = site.play("playbooks/deploy.yml", {INSTANCE: site.instance}, "-e", "socle_accept_at_once=true")
        run.expect_success()
        yield site
    finally:
        unwatch = f"instance={INSTANCE} state=absent"
        words = [lab.HOST, "-i", str(folder), "-b", "-m", "socle.inference.vllm_watchdog", "-a", unwatch]
        subprocess.run([str(lab.BIN / "ansible"), *words], cwd=lab.PROJECT, env=lab.environment(), check=False)
        lab.on_host(CLEAN)


def test_a_plan_refuses_all_that_it_can_know_before_anything_is_touched(site: Site) -> None:
    known = [failure for failure in FAILURES if failure.refused]
    wrong = {
        f"{INSTANCE}-{number}": {**changed(site.instance, failure.instance), "port": 8100 + number}
        for number, failure in enumerate(known)
    }
    before = (lab.unit(INSTANCE), lab.on_host("ls /var/lib/socle/instances"), lab.spool(name=INSTANCE))
    run = site.play("playbooks/deploy.yml", {INSTANCE: site.instance, **wrong})
    assert run.rc != 0
    said = "\n".join(run.failures[lab.HOST]["errors"])
    for number, failure in enumerate(known):
        for finding in failure.refused:
            assert re.search(rf"vllm_instances\.{INSTANCE}-{number}: .*\({finding}\b", said), failure.name
    assert (lab.unit(INSTANCE), lab.on_host("ls /var/lib/socle/instances"), lab.spool(name=INSTANCE)) == before


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.name)
def test_a_launch_that_fails_is_explained_and_gives_way(
    failure: Failure, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    accepted = lab.on_host(f"cat /etc/containers/systemd/vllm-{INSTANCE}.container")
    before = lab.unit(INSTANCE)
    told = len(site.records("deploy"))
    prepare(failure)

    run = site.deploy(failure.instance)
    assert run.rc != 0
    message = run.failures[lab.HOST]["msg"]
    assert failure.words in message and f"({failure.diagnosis})" in message
    back = BACK.search(message)
    assert back, message

    failed, restored = site.records("deploy")[told:]
    assert (failed["verdict"], failed["results"]["diagnosis"]["id"]) == ("failed", failure.diagnosis)
    assert failure.words in failed["results"]["message"]
    assert (restored["verdict"], restored["generation"]) == ("passed", int(back[1]))
    assert restored["results"]["restores"] == int(back[2])

    unit = lab.unit(INSTANCE)
    assert unit["ActiveState"] == "active"
    assert lab.on_host(f"cat /etc/containers/systemd/vllm-{INSTANCE}.container") == accepted
    assert "Paris" in site.ask()

    after_s = failed["results"]["diagnosed_after_s"]
    with capsys.disabled():
        print(f"\n{failure.diagnosis} {failure.name:24}{_figures(failed, before, unit)}")
    assert after_s is not None and after_s < DIAGNOSED_S

    # The cause of an accident is gone by now, and nobody said so.
    playbook = "site.yml" if failure is FAILURES[0] else "playbooks/deploy.yml"
    again = site.deploy(failure.instance, playbook=playbook)
    assert again.rc != 0
    said = again.failures[lab.HOST]["msg"]
    assert (
        f"Will not start {INSTANCE} again with the same launch: generation {failed['generation']} of it failed" in said
    )
    assert "-e retry=true" in said and failure.diagnosis in said
    assert lab.unit(INSTANCE)["InvocationID"] == unit["InvocationID"]
    assert len(site.records("deploy")) == told + 2


def _figures(failed: dict[str, Any], before: dict[str, str], unit: dict[str, str]) -> str:
    """How soon the diagnosis was there and on record, and what was accepted was back, after the engine gave up."""
    entries = journal(int(before["ActiveEnterTimestampMonotonic"]))
    line = (failed["results"]["diagnosis"]["line"] or "").partition(";")[0][:200]
    signs = [entry for entry in entries if (line and line in entry.text) or "Main process exited" in entry.text]
    recorded = float(
        lab.on_host(f"stat --format %.6Y /var/lib/socle/records/*-{INSTANCE}-deploy*.json | sort | tail -2 | head -1")
    )
    sign = signs[0]
    back_s = (int(unit["ActiveEnterTimestampMonotonic"]) - sign.monotonic_us) / 1e6
    return (
        f"diagnosed after {failed['results']['diagnosed_after_s']} s, on record after"
        f" {recorded - sign.realtime_us / 1e6:.1f} s, the accepted one healthy again after {back_s:.1f} s"
    )


def test_what_failed_is_tried_again_when_somebody_asks_for_it(site: Site) -> None:
    failure = FAILURES[0]
    told = len(site.records("deploy"))
    run = site.deploy(failure.instance, "-e", "retry=true")
    assert run.rc != 0 and failure.words in run.failures[lab.HOST]["msg"] and BACK.search(run.failures[lab.HOST]["msg"])
    assert [record["verdict"] for record in site.records("deploy")[told:]] == ["failed", "passed"]
    assert "Paris" in site.ask()


def test_what_failed_by_a_cause_that_is_gone_comes_up_when_somebody_asks_for_it(site: Site) -> None:
    run = site.deploy(FAILURES[-1].instance, "-e", "retry=true", "-e", "socle_accept_at_once=true")
    run.expect_success()
    assert "Paris" in site.ask(OTHER_PORT)


def test_the_key_is_nowhere_but_where_root_alone_reads_it(site: Site) -> None:
    encoded = base64.b64encode(site.key.encode()).decode().rstrip("=")
    # Where it is kept (docs/inventory.md).
    kept = f"/var/lib/socle/secrets/{INSTANCE}/env"
    assert lab.on_host(f"stat -c '%U %a' {kept}").strip() == "root 600"
    for secret, places in ((site.key, [kept]), (encoded[:-2], [])):
        assert places_of(secret) == places
        records = [path for path in (site.inventory / ".socle").rglob("*") if path.is_file()]
        assert [path for path in records if secret.encode() in path.read_bytes()] == []
        assert [output for output in site.outputs if secret in output] == []
    # The search finds what is there.
    lab.on_host("cat > /tmp/socle-accident-key", input_text=site.key)
    assert places_of(site.key) == [kept, "/tmp/socle-accident-key"]
    lab.on_host("rm /tmp/socle-accident-key")
