# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What socle and vllm bench serve say of one engine under the same load, in turn.

Usage: python benchmarks/probe_agreement.py [--url http://127.0.0.1:18001] [--concurrency 1 4] [--rounds 3]
                                            [--input 128] [--output 64] [--tokenizer DIR]

Both send as many requests, at once as many, with as many tokens in and out: vllm bench serve goes first, the engine's
own counter tells how many prompt tokens its requests had, and socle's have exactly as many. The rounds alternate, so
that both meet the same machine. The figures agree where the medians differ by no more than the larger spread.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "collections")]

from ansible_collections.socle.inference.plugins.module_utils import _exposition as exposition  # noqa: E402
from ansible_collections.socle.inference.plugins.module_utils._probe.benchmark import (  # noqa: E402
    Bench,
    Params,
    Workload,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.client import EngineClient  # noqa: E402
from ansible_collections.socle.inference.plugins.module_utils._probe.measures import percentile  # noqa: E402
from machine import describe_machine  # noqa: E402
from probe_peers import VLLM, lab_tokenizer, prepare_vllm  # noqa: E402

FIGURES = {"output tok/s": 1, "TTFT ms": 1, "TPOT ms": 2, "E2E ms": 0}
"""Their decimals."""


def prompt_tokens(client: EngineClient) -> float:
    page = exposition.parse(client.get("/metrics").text)
    return exposition.total(page, "vllm:prompt_tokens_total") or 0.0


def by_vllm(asked: argparse.Namespace, model: str, concurrency: int, requests: int, seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        words = [
            *VLLM,
            *("bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
            *("--base-url", asked.url, "--model", model, "--tokenizer", str(asked.tokenizer)),
            *("--dataset-name", "random", "--random-input-len", str(asked.input)),
            *("--random-output-len", str(asked.output), "--num-prompts", str(requests)),
            *("--max-concurrency", str(concurrency), "--ignore-eos", "--temperature", "0", "--seed", str(seed)),
            *("--percentile-metrics", "ttft,tpot,e2el", "--metric-percentiles", "50", "--disable-tqdm"),
            *("--save-result", "--result-dir", folder, "--result-filename", "result.json"),
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        path = Path(folder) / "result.json"
        if done.returncode or not path.exists():
            sys.exit(f"vllm bench serve failed: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
        found = json.loads(path.read_text())
    return {
        "output tok/s": found["output_throughput"],
        "TTFT ms": found["p50_ttft_ms"],
        "TPOT ms": found["p50_tpot_ms"],
        "E2E ms": found["p50_e2el_ms"],
    }


def by_socle(client: EngineClient, model: str, params: Params) -> dict[str, float]:
    result = Bench(client, model).run(Workload("agreement", params, kind="load", repeats=1, warmups=0))
    if result["status"] != "passed":
        sys.exit(f"The load failed: {'; '.join(result['faults'])}")
    return {
        "output tok/s": result["output_tok_per_s"]["p50"],
        "TTFT ms": result["ttft_ms"]["p50"],
        "TPOT ms": result["tpot_ms"]["p50"],
        "E2E ms": result["e2e_ms"]["p50"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:18001", help="the lab's engine by default")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--input", type=int, default=128)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--tokenizer", type=Path)
    asked = parser.parse_args()
    asked.tokenizer = asked.tokenizer or lab_tokenizer()
    fault = prepare_vllm()
    if fault:
        sys.exit(f"vllm bench serve cannot be had: {fault}")
    print(f"{'streams':>7}  {'figure':<14}{'socle':>10}{'spread':>9}{'vllm':>10}{'spread':>9}{'differ by':>11}")
    with EngineClient(asked.url) as client:
        model = str(client.get("/v1/models").json()["data"][0]["id"])
        for concurrency in asked.concurrency:
            requests = 4 * concurrency
            found: dict[str, list[dict[str, Any]]] = {"vllm": [], "socle": []}
            for number in range(asked.rounds):
                before = prompt_tokens(client)
                found["vllm"].append(by_vllm(asked, model, concurrency, requests, number + 1))
                tokens = round((prompt_tokens(client) - before) / requests)
                params = Params(
                    prompt="Go on with these words.",
                    output_tokens=asked.output,
                    prompt_tokens=tokens,
                    thinking="unset",
                    requests=requests,
                    concurrency=concurrency,
                )
                found["socle"].append(by_socle(client, model, params))
            for figure, digits in FIGURES.items():
                values = {name: [each[figure] for each in rounds] for name, rounds in found.items()}
                middle = {name: percentile(each, 0.5) for name, each in values.items()}
                spread = {name: (max(each) - min(each)) / middle[name] * 100 for name, each in values.items()}
                apart = (middle["socle"] / middle["vllm"] - 1) * 100
                within = "agree" if abs(apart) <= max(spread.values()) else "differ"
                print(
                    f"{concurrency:>7}  {figure:<14}{middle['socle']:>10.{digits}f}{spread['socle']:>8.1f}%"
                    f"{middle['vllm']:>10.{digits}f}{spread['vllm']:>8.1f}%{apart:>+10.1f}%  {within}",
                    flush=True,
                )
    print(describe_machine(5))


if __name__ == "__main__":
    main()
