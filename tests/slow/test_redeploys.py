# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One instance is redeployed again and again beside the lab's own, and leaves nothing but what is said to stay.

What stays is one generation for each launch, and two records for each redeployment. SOCLE_REDEPLOYS is their number
(default 20), SOCLE_REDEPLOY_KINDS what they are in turn. Needs the lab, and takes a minute for each on two idle cores.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import lab, lab_instance

REDEPLOYS = int(os.environ.get("SOCLE_REDEPLOYS", "20"))
NAME = "again"
PORT = 8004
KEY = "slow-suite-5d1c7a9e2f604b83"
URL = f"http://127.0.0.1:{PORT}"
KINDS = tuple(os.environ.get("SOCLE_REDEPLOY_KINDS", "same flag busy killed").split())
ANSWER_TOKENS = 160
"""Of the request that a redeployment finds: some seconds of work, and far less than `drain_s`."""
SETTLE_S = 90.0
"""How long the host may take to end what is on its way, such as a health check."""

FOOTPRINT = r"""
title() { sed "s/^/$1: /"; }
# Connections of Ansible and of this test come and go, and so do helpers of systemd.
ps -e -o comm= | grep -vE '^(sshd|ps$|sed$|grep$|sort$|cut$|find$|bash$|sh$|systemd-)' | title process
systemctl list-units --all --plain --no-legend --type=service,timer,scope,socket,mount | cut -d' ' -f1 \
  | grep -vE '^(session-|user|run-user|systemd-|modprobe@|apt-|dpkg-|e2scrub|fstrim)' | title unit
systemctl list-units --failed --plain --no-legend | cut -d' ' -f1 | title failed
podman ps --all --format '{{.Names}}' | title container
podman images --all --no-trunc --format '{{.ID}}' | sort -u | title image
podman volume ls --quiet | title volume
podman secret ls --format '{{.Name}}' | title secret
podman network ls --format '{{.Name}}' | title network
find /var/lib/containers/storage/overlay* -mindepth 1 -maxdepth 1 | title layer
find /run/containers/storage /run/libpod /run/crun -mindepth 1 -maxdepth 2 | title runtime
find /run -mindepth 1 -maxdepth 1 | title runtime
ip -o link | cut -d: -f2 | cut -d@ -f1 | title link
find /run/netns -mindepth 1 2>/dev/null | title netns
cut -d' ' -f5 /proc/self/mountinfo | grep -v ^/run/user | title mount
find /sys/fs/cgroup -type d -name '*libpod*' | title cgroup
for folder in /tmp /var/tmp /dev/shm /run/socle /root/.ansible/tmp; do
  find $folder -mindepth 1 -maxdepth 1 -not -name 'systemd-private-*' 2>/dev/null | title temporary
done
find /etc/containers/systemd /etc/systemd/system /opt/socle -not -name '*.pyc' -not -name __pycache__ | title installed
find /var/lib/socle -path '/var/lib/socle/cache/*/*' -prune -o -path '*/socle/records' -prune -o -print | title state
true
"""

IDENTIFIER = re.compile(r"\b[0-9a-f]{64}\b(-[0-9a-f]{8,16}\b)?|\b[0-9a-f]{12}\b")
"""Of containers, of their layers, and of the timers of their health checks."""


def footprint() -> Counter[str]:
    """All that a redeployment could leave on the host, with a stand-in for identifiers that each container has anew."""
    return Counter(IDENTIFIER.sub("ID", line) for line in lab.on_host(FOOTPRINT).splitlines())


def settled_footprint() -> Counter[str]:
    """The same once nothing changes any more: a health check may be on its way."""
    deadline, before = time.monotonic() + SETTLE_S, footprint()
    while time.monotonic() < deadline:
        now = footprint()
        if now == before:
            break
        before = now
    return before


def left_behind(before: Counter[str], allowed: re.Pattern[str]) -> list[str]:
    """What the host has more or less than *before* but for what is *allowed*, once it had time to settle."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        now = footprint()
        changed = [f"+{count} {line}" for line, count in (now - before).items() if not allowed.fullmatch(line)]
        changed += [f"-{count} {line}" for line, count in (before - now).items()]
        if not changed or time.monotonic() > deadline:
            return sorted(changed)
        time.sleep(5)


@pytest.fixture
def inventory(tmp_path: Path) -> Iterator[Path]:
    """The lab host with an instance of this test's own, which goes with it."""
    lab_instance.remove(NAME)
    yield lab_instance.inventory_of(tmp_path / "inventory", NAME, PORT, api_key=KEY, drain_s=60)
    lab_instance.remove(NAME)


def _redeploy(inventory: Path, *arguments: str) -> lab.Run:
    return lab.play("playbooks/redeploy.yml", *arguments, inventory=inventory).expect_success()


def _flag(number: int) -> tuple[str, str]:
    return "-e", json.dumps({"socle_redeploy_flags": {"max-num-seqs": number}})


def _redeploy_while_it_answers(inventory: Path, folder: Path) -> None:
    """A request that the redeployment finds is answered to its end, although its engine goes away."""
    body = {"model": lab_instance.MODEL, "prompt": "Count:", "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
    headers = f"-H 'Authorization: Bearer {KEY}' -H 'Content-Type: application/json'"
    ask = f"curl -sSf -m 170 {headers} -d '{json.dumps(body)}' {URL}/v1/completions"
    # One request after the other until the engine takes no more, so that one of them is met for certain.
    script = f'while answer=$({ask} 2>/dev/null); do echo "$answer"; done'
    with (folder / "answers").open("w") as answers:
        client = subprocess.Popen([*lab.ssh_command(), f"bash -c {shlex.quote(script)}"], stdout=answers)
        try:
            _redeploy(inventory)
            client.wait(timeout=60)
        finally:
            client.kill()
            client.wait()
    found = [json.loads(line) for line in (folder / "answers").read_text().splitlines() if line]
    assert found, "no request was answered"
    for answer in found:
        assert answer["usage"]["completion_tokens"] == ANSWER_TOKENS, answer
    records = lab.collected("deploy", NAME, inventory)
    drain = json.loads(records[-1].read_text())["results"]["drain"]
    assert drain["requests"] == 1, drain


def _kill_half_way(inventory: Path, log: Path, task: str) -> None:
    """Start a redeployment, and kill all of it once *task* goes on, as when its machine goes away."""
    with log.open("w") as output:
        process = subprocess.Popen(
            lab.command("playbooks/redeploy.yml", inventory=inventory),
            cwd=lab.PROJECT,
            # Else a task is named only once it has a result.
            env=lab.environment(ANSIBLE_DISPLAY_SKIPPED_HOSTS="True"),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + 300
            while f"TASK [{task}]" not in log.read_text():
                assert process.poll() is None, f"it ended before it could be killed:\n{log.read_text()[-4000:]}"
                assert time.monotonic() < deadline, log.read_text()[-4000:]
                time.sleep(0.2)
            # Into the task, whose module goes on by itself on the host.
            time.sleep(5)
        finally:
            # Ansible's workers are sessions of their own.
            for pid in (process.pid, *_descendants(process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def _descendants(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = [tuple(map(int, line.split())) for line in listed.splitlines()]
    children = [child for child, parent in parents if parent == pid]
    return [*children, *(each for child in children for each in _descendants(child))]


KILLED_AT = (
    "socle.inference.vllm_service : Wait until the instance serves",
    "socle.inference.vllm_service : Launch the instance",
)


def test_redeployments_leave_nothing(inventory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab.play("playbooks/deploy.yml", "-e", "socle_accept_at_once=true", inventory=inventory).expect_success()
    neighbour = lab.unit()
    first, before = int(lab.generation(NAME)), settled_footprint()
    spooled = len(lab.spool(name=NAME))

    launches, killed = 0, 0
    flags, kill_at = itertools.cycle((4, 5, 6)), itertools.cycle(KILLED_AT)
    for number, kind in zip(range(1, REDEPLOYS + 1), itertools.cycle(KINDS), strict=False):
        invocation, began = lab.unit(NAME)["InvocationID"], time.monotonic()
        if kind == "flag":
            _redeploy(inventory, *_flag(next(flags)))
            launches += 1
        elif kind == "busy":
            _redeploy_while_it_answers(inventory, tmp_path)
        elif kind == "killed":
            _kill_half_way(inventory, tmp_path / f"killed-{number}.log", next(kill_at))
            _redeploy(inventory)
            killed += 1
        else:
            _redeploy(inventory)
        unit = lab.unit(NAME)
        assert unit["InvocationID"] != invocation, f"redeployment {number} ({kind}) restarted nothing"
        assert (unit["ActiveState"], unit["NRestarts"]) == ("active", "0")
        assert int(lab.generation(NAME)) == first + launches
        with capsys.disabled():
            print(f"{number} of {REDEPLOYS}, {kind}: {time.monotonic() - began:.0f} s", flush=True)

    generations = "|".join(str(first + number) for number in range(1, launches + 1)) or "none"
    kept = re.compile(rf"state: /var/lib/socle/instances/{NAME}/generations/({generations})(/[^/]+)?")
    assert left_behind(before, kept) == []
    # A deployment and an acceptance each; one that was killed may have recorded the former.
    assert 0 <= len(lab.spool(name=NAME)) - spooled - 2 * REDEPLOYS <= killed
    assert lab.unit() == neighbour
    assert "Paris" in lab.ask("What is the capital of France?")
    answer = lab.on_host(f"curl -sS -H 'Authorization: Bearer {KEY}' {URL}/v1/models")
    assert [model["id"] for model in json.loads(answer)["data"]] == [lab_instance.MODEL]
    # Where a way back would lead, there is a generation that was accepted.
    state = f"/var/lib/socle/instances/{NAME}"
    assert lab.on_host(f"readlink {state}/current") == lab.on_host(f"readlink {state}/accepted")
