# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Launches that the lab's real engine cannot make, and accidents that befall a host between plan and start."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.support import lab

INSTANCE = "frail"
PORT = 8010
OTHER_PORT = 8011
FOLDER = f"/var/lib/socle/instances/{INSTANCE}"
PLACE = "/run/socle-accident"
COPY = "/var/tmp/socle-accident-model"
IMAGE = "localhost/socle-accident/vllm-cpu:0.32.0"
BASE_IMAGE = "localhost/socle/vllm-cpu:0.32.0"
REASON = "the engine itself shall say it"
BROKEN_TEMPLATE = "{% for message in messages %}{{ message.content }{% endfor %}\n"

DROP_IN = f"/run/systemd/system/vllm-{INSTANCE}.service.d"
STARTS = f"""
cd {PLACE}
if [ -e accident ]; then mv accident happened; exec bash -eux happened
elif [ -e repair ]; then mv repair repaired; exec bash -eux repaired; fi
"""
"""Before each start of the unit: the first one meets the accident, the next one finds it repaired."""

COPY_MODEL = f"""
rm -rf {COPY}
cp -rL /var/lib/socle/models/HuggingFaceTB--SmolLM2-135M-Instruct {COPY}
chmod -R u+w {COPY}
cd {COPY}
"""
MOUNT_COPY = f"mount --bind {COPY} $(readlink -f /var/lib/socle/models/HuggingFaceTB--SmolLM2-135M-Instruct)"
UNMOUNT_COPY = "umount $(readlink -f /var/lib/socle/models/HuggingFaceTB--SmolLM2-135M-Instruct)"
INDEX = {
    "weight_map": {
        "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
        "model.norm.weight": "model-00002-of-00002.safetensors",
    }
}

LIMIT_MEMORY = f"""
if grep -qw memory /sys/fs/cgroup/cgroup.controllers; then
  exec systemctl set-property --runtime vllm-{INSTANCE}.service MemoryMax=2G
fi
# A machine with a memory controller of version 1, which systemd leaves alone: processes are moved as they come. Not
# Podman's own, which would then look for another place for all of them.
mkdir -p {PLACE}/memory
mount -t cgroup -o memory none {PLACE}/memory
mkdir -p {PLACE}/memory/socle-accident
echo 2G > {PLACE}/memory/socle-accident/memory.limit_in_bytes
systemd-run --quiet --collect --unit socle-accident-memory bash -c '
  while sleep 0.1; do
    for process in $(cat /sys/fs/cgroup/system.slice/vllm-{INSTANCE}.service/libpod-payload-*/cgroup.procs); do
      echo $process > {PLACE}/memory/socle-accident/cgroup.procs
    done
  done 2>/dev/null'
"""
UNLIMIT_MEMORY = f"""
systemctl set-property --runtime vllm-{INSTANCE}.service MemoryMax=infinity 2>/dev/null || true
systemctl stop socle-accident-memory 2>/dev/null || true
if mountpoint -q {PLACE}/memory; then
  for process in $(cat {PLACE}/memory/socle-accident/cgroup.procs); do
    echo $process > {PLACE}/memory/cgroup.procs || true
  done
  rmdir {PLACE}/memory/socle-accident
  umount {PLACE}/memory
fi
"""

TAKE_PORT = (
    "systemd-run --quiet --collect --unit socle-accident-port"
    f" python3 -m http.server --bind 127.0.0.1 --directory {PLACE} {OTHER_PORT}"
)
BUILD_IMAGE = (
    f"printf 'FROM {BASE_IMAGE}\\nLABEL socle.accident=true\\n'"
    f" | podman build --quiet --timestamp 0 --tag {IMAGE} - >/dev/null"
)

CLEAN = f"""
systemctl stop vllm-{INSTANCE} socle-accident-port 2>/dev/null || true
{UNLIMIT_MEMORY}
while {UNMOUNT_COPY} 2>/dev/null; do :; done
rm -rf /run/systemd/system.control/vllm-{INSTANCE}.service.d {DROP_IN} {PLACE} {COPY}
rm -f /etc/containers/systemd/vllm-{INSTANCE}.container
systemctl daemon-reload
systemctl reset-failed 'vllm-{INSTANCE}*' 2>/dev/null || true
podman rm --force vllm-{INSTANCE} >/dev/null 2>&1 || true
podman secret rm socle-{INSTANCE}-api_key >/dev/null 2>&1 || true
podman rmi --force {IMAGE} >/dev/null 2>&1 || true
rm -rf {FOLDER} /var/lib/socle/secrets/{INSTANCE} /var/lib/socle/chat_templates/{INSTANCE}*
rm -f /var/lib/socle/records/*-{INSTANCE}-*.json
"""
"""Leaves of the instance nothing but the caches that all instances have."""


@dataclass(frozen=True)
class Failure:
    """One way in which a launch fails, and what it shall be taken for."""

    name: str
    diagnosis: str
    words: str
    """Of the message."""
    instance: dict[str, Any] = field(default_factory=dict)
    """What is changed of an instance that was accepted; flags come on top of its own."""
    refused: tuple[str, ...] = ()
    """Ids by which the plan refuses it, and which are passed over so that the engine meets it."""
    before: str = ""
    """Shell that the host runs before the failing launch is planned."""
    accident: str = ""
    """Shell that the host runs when the failing launch starts, after all checks."""
    repair: str = ""
    """Shell that the host runs when the next launch starts."""


FAILURES = (
    Failure(
        "unknown flag",
        "SOC-D01",
        "this vLLM does not know the arguments --no-such-flag",
        {"flags": {"no-such-flag": "x"}},
        ("SOC-F01",),
    ),
    Failure(
        "bad JSON flag",
        "SOC-D02",
        "the value of --speculative-config is no JSON ({method: ngram)",
        {"flags": {"speculative-config": "{method: ngram"}},
        ("SOC-F10",),
    ),
    Failure(
        "wrong dtype",
        "SOC-D03",
        "the value of --dtype is not valid (invalid choice: 'float13'",
        {"flags": {"dtype": "float13"}},
        ("SOC-F05",),
    ),
    Failure(
        "length over the limit",
        "SOC-D28",
        "max-model-len 20000 is more than the model's own context length (8192)",
        {"flags": {"max-model-len": 20000}},
        ("SOC-R41",),
    ),
    Failure(
        "unknown parser",
        "SOC-D05",
        "there is no tool call parser hermez",
        {"flags": {"enable-auto-tool-choice": True, "tool-call-parser": "hermez"}},
        ("SOC-F13",),
    ),
    Failure(
        "KV cache too small",
        "SOC-D36",
        "one request of 100000 tokens needs 2.15 GiB of KV cache and 1.0 GiB are there",
        {"flags": {"max-model-len": 100000, "hf-overrides": {"max_position_embeddings": 131072}}},
        ("SOC-C02", "SOC-R41"),
    ),
    Failure(
        "broken chat template",
        "SOC-D09",
        "the chat template cannot be read as Jinja (unexpected '}')",
        {"chat_template": "broken"},
    ),
    Failure(
        "missing shard",
        "SOC-D13",
        "files of weights that the model's index names are missing ({'",
        {"flags": {"max-num-seqs": 5}},
        before=f"{COPY_MODEL} mv model.safetensors model-00001-of-00002.safetensors\n"
        f"echo '{json.dumps(INDEX)}' > model.safetensors.index.json",
        accident=MOUNT_COPY,
        repair=UNMOUNT_COPY,
    ),
    Failure(
        "truncated safetensors",
        "SOC-D15",
        "a file of weights is cut off or damaged",
        {"flags": {"max-num-seqs": 6}},
        before=f"{COPY_MODEL} truncate --size=-1000 model.safetensors",
        accident=MOUNT_COPY,
        repair=UNMOUNT_COPY,
    ),
    Failure(
        "killed for memory",
        "SOC-D50",
        "the kernel killed it since the host's memory, or the limit of its unit, ran out",
        {"flags": {"max-num-seqs": 7}},
        accident=LIMIT_MEMORY,
        repair=UNLIMIT_MEMORY,
    ),
    Failure(
        "image missing",
        "SOC-D62",
        "the image is not on the host any more",
        {"image": IMAGE},
        before=BUILD_IMAGE,
        accident=f"podman rmi --force {IMAGE}",
        repair=BUILD_IMAGE,
    ),
    # Last, since it is the one whose cause goes away by itself.
    Failure(
        "port taken",
        "SOC-D55",
        "the port is in use by another process",
        {"port": OTHER_PORT},
        accident=TAKE_PORT,
        repair="systemctl stop socle-accident-port",
    ),
)


def prepare(failure: Failure) -> None:
    """Let the next launch of the instance on the lab host meet the accident, and the one after it the repair."""
    lab.on_host(f"{failure.before}\nrm -rf {DROP_IN} {PLACE}/* && mkdir -p {PLACE}")
    if failure.accident:
        texts = {"accident": failure.accident, "repair": failure.repair, "starts": STARTS}
        texts = {f"{PLACE}/{name}": text for name, text in texts.items() if text}
        texts[f"{DROP_IN}/accident.conf"] = f"[Service]\nExecStartPre=/bin/sh {PLACE}/starts\n"
        lab.on_host(f"mkdir -p {DROP_IN}")
        for path, text in texts.items():
            lab.on_host(f"cat > {path}", input_text=text)
    lab.on_host("systemctl daemon-reload")


@dataclass(frozen=True)
class Entry:
    """One entry of the host's journal that is about the instance's unit."""

    monotonic_us: int
    realtime_us: int
    text: str


def journal(after_us: int) -> list[Entry]:
    """What the unit wrote, and systemd of it, from a monotonic time on."""
    text = lab.on_host(f"journalctl --unit vllm-{INSTANCE}.service --boot --no-pager --quiet -o json")
    entries = []
    for line in text.splitlines():
        values = json.loads(line)
        at_us, message = int(values["__MONOTONIC_TIMESTAMP"]), values.get("MESSAGE")
        if isinstance(message, str) and at_us >= after_us:
            entries.append(Entry(at_us, int(values["__REALTIME_TIMESTAMP"]), message))
    return entries


def places_of(secret: str) -> list[str]:
    """Where on the lab host a secret is found in plain.

    The secret goes over by standard input, or this search would find itself.
    """
    script = f"""
pattern=$(mktemp -p /dev/shm)
trap 'rm -f "$pattern"' EXIT
cat > "$pattern"
found() {{ grep -aqF -f "$pattern"; }}
grep -rlF -f "$pattern" /etc /run/systemd {PLACE} /var/lib/socle /opt/socle /root /tmp --exclude-dir=models || true
cd /var/lib/containers/storage
grep -rlF -f "$pattern" /srv/engine-store overlay overlay-images overlay-layers --exclude-dir=merged || true
if journalctl --boot --no-pager -o export | found; then echo journal; fi
if ps -eo args | found; then echo processes; fi
if podman inspect vllm-{INSTANCE} | found; then echo container; fi
if podman secret inspect socle-{INSTANCE}-api_key | found; then echo "description of the secret"; fi
"""
    return lab.on_host(script, input_text=secret).splitlines()
