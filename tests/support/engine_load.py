# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A program for a host that asks its engine for more than it can run at once, and tells what came of it."""

from __future__ import annotations

from dataclasses import dataclass

CLIENTS = 32

LOAD = """
import json, re, sys, threading, time, urllib.request
url, model, seconds, clients = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
key = sys.stdin.readline().strip()
headers = {"Content-Type": "application/json", **({"Authorization": "Bearer " + key} if key else {})}
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
until, answers, failures = time.monotonic() + seconds, [], []
def ask(client):
    number = 0
    while time.monotonic() < until:
        number += 1
        prompt = f"{client} {number} tell me more " * 60
        body = {"model": model, "prompt": prompt, "max_tokens": 300, "ignore_eos": True}
        request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), headers)
        try:
            with opener.open(request, timeout=1800) as response:
                answers.append(json.load(response)["usage"]["completion_tokens"])
        except (OSError, ValueError) as error:
            failures.append(repr(error))
            time.sleep(1)
def figure(name):
    with opener.open(url + "/metrics", timeout=60) as response:
        return sum(map(float, re.findall(r"(?m)^vllm:" + name + r"\\{[^}]*\\} (\\S+)", response.read().decode())))
for client in range(clients):
    threading.Thread(target=ask, args=(client,), daemon=True).start()
waiting = []
time.sleep(min(30, seconds / 4))
while time.monotonic() < until:
    waiting.append(figure("num_requests_waiting"))
    time.sleep(max(0, min(10, until - time.monotonic())))
print(json.dumps({"answered": len(answers), "tokens": sum(answers), "failed": failures[:5], "waiting": waiting,
                  "generated": figure("generation_tokens_total")}))
"""


@dataclass(frozen=True)
class Load:
    """What came of it: requests that ended well, tokens of those, failures, and how many waited, looked at often."""

    answered: int
    tokens: int
    failed: list[str]
    waiting: list[float]
    generated: float
    """Tokens that the engine made since its start."""
