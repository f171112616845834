# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the double until interrupted: python -m tests.simulators.engine --port 8000 --ttft-ms 50 --fault no_usage"""

from __future__ import annotations

import argparse
import contextlib
import threading

from tests.simulators.engine.server import FAULTS, STALLS, Behaviour, EngineDouble


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulators.engine")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", default="double")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--api-key")
    parser.add_argument("--ttft-ms", type=float, default=0)
    parser.add_argument("--itl-ms", type=float, default=0)
    parser.add_argument("--prefill-tokens-per-s", type=float)
    parser.add_argument("--fault", action="append", default=[], choices=sorted({**FAULTS, **STALLS}))
    asked = parser.parse_args()
    behaviour = Behaviour(
        model=asked.model,
        max_model_len=asked.max_model_len,
        api_key=asked.api_key,
        ttft_s=asked.ttft_ms / 1000,
        itl_s=asked.itl_ms / 1000,
        prefill_tokens_per_s=asked.prefill_tokens_per_s,
        faults=frozenset(asked.fault),
    )
    with EngineDouble(behaviour, port=asked.port) as double, contextlib.suppress(KeyboardInterrupt):
        print(double.base_url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
