# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import datetime
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._plan.flags import (
    check_env,
    check_flags,
    parse_size,
    render_flag,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import Problems


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("enforce-eager", True, ["--enforce-eager"]),
        ("max-model-len", 131072, ["--max-model-len", "131072"]),
        ("max-model-len", "256K", ["--max-model-len", "256K"]),
        ("gpu-memory-utilization", 0.92, ["--gpu-memory-utilization", "0.92"]),
        ("max-num-seqs", 0, ["--max-num-seqs", "0"]),
        ("stream-interval", -1, ["--stream-interval", "-1"]),
        ("override", "-x y", ["--override=-x y"]),
        ("chat-template", "50% of $HOME 'x'", ["--chat-template", "50% of $HOME 'x'"]),
        (
            "speculative-config",
            {"num_speculative_tokens": 2, "method": "mtp"},
            ["--speculative-config", '{"method":"mtp","num_speculative_tokens":2}'],
        ),
        ("limit-mm-per-prompt", {"image": 32}, ["--limit-mm-per-prompt", '{"image":32}']),
        ("default-chat-template-kwargs", {"on": False, "text": "a\nü"}, None),
        ("cudagraph-capture-sizes", [1, 2, 4], ["--cudagraph-capture-sizes", "1", "2", "4"]),
        ("lora-modules", [{"name": "a", "path": "/b"}], ["--lora-modules", '{"name":"a","path":"/b"}']),
        ("allowed-origins", ["https://a.example", "b"], ["--allowed-origins", '["https://a.example","b"]']),
        ("middleware", ["a.b", "c.d"], ["--middleware", "a.b", "--middleware", "c.d"]),
    ],
)
def test_flags_become_words(name: str, value: Any, words: list[str] | None) -> None:
    problems = Problems()
    check_flags({name: value}, "flags", problems)
    assert problems.sentences == []
    if words is None:
        words = ["--default-chat-template-kwargs", '{"on":false,"text":"a\\n\\u00fc"}']
    assert render_flag(name, value) == words


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ({"max_num_seqs": 1}, ["'max_num_seqs'", "write 'max-num-seqs'"]),
        ({"--max-num-seqs": 1}, ["'--max-num-seqs'", "write 'max-num-seqs'"]),
        ({"maxNumSeqs": 1}, ["'maxNumSeqs'", "write 'max-num-seqs'"]),
        ({"speculative-config.method": "mtp"}, ["write 'speculative-config' with a map"]),
        ({"max num seqs": 1}, ["write 'max-num-seqs'"]),
        ({7: 1}, ["flag name 7"]),
        ({"enable-prefix-caching": False}, ["is false", "'no-enable-prefix-caching: true'"]),
        ({"no-enable-prefix-caching": False}, ["'enable-prefix-caching: true'"]),
        ({"enable-x": True, "no-enable-x": True}, ["both 'enable-x' and 'no-enable-x'"]),
        ({"x": ""}, ["empty string", "null"]),
        ({"x": []}, ["empty list", "null"]),
        ({"x": [True]}, ["x[0]", "but is true"]),
        ({"x": ["-a"]}, ["x[0]", "leading dash"]),
        ({"x": "a\nb"}, ["line break"]),
        ({"x": "a\0b"}, ["NUL"]),
        ({"x": ["a\rb"]}, ["carriage return"]),
        ({"x": "a\tb"}, ["a tab"]),
        ({"x": "a\x1bb"}, ["U+001B"]),
        ({"x": ["a", "b\x7f"]}, ["x[1]", "U+007F"]),
        ({"x": ";"}, ["';' alone", "another command"]),
        ({"x": ["a", ";"]}, ["x[1]", "another command"]),
        ({"ssl-keyfile": "/k"}, ["flags.ssl-keyfile", "TLS belongs to a proxy in front of it"]),
        ({"ssl-certfile": "/c"}, ["TLS belongs to a proxy"]),
        ({"ssl-ca-certs": "/a"}, ["TLS belongs to a proxy"]),
        ({"ssl-cert-reqs": 2}, ["TLS belongs to a proxy"]),
        ({"x": float("nan")}, ["finite"]),
        ({"x": {"a": [float("inf")]}}, ["x.a[0]", "finite"]),
        ({"x": {1: 2}}, ["key 1", "quote it"]),
        ({"x": datetime.date(2026, 1, 1)}, ["type date", "quote it"]),
        ({"x": {"a": datetime.date(2026, 1, 1)}}, ["x.a", "type date"]),
        ({"host": "0.0.0.0"}, ["flags.host", "expose"]),
        ({"port": 1}, ["set port"]),
        ({"served-model-name": "a"}, ["served_names"]),
        ({"api-key": "s3cret"}, ["api_key", "vault"]),
        ({"model": "a"}, ["set model"]),
        ("--max-num-seqs 8", ["map of flag names", "string '--max-num-seqs 8'"]),
        (["x"], ["but is a list"]),
    ],
)
def test_bad_flags_are_told_in_one_sentence(flags: Any, parts: list[str]) -> None:
    problems = Problems()
    check_flags(flags, "flags", problems)
    assert len(problems.sentences) == 1
    assert [part for part in parts if part not in problems.sentences[0]] == []
    assert "s3cret" not in problems.sentences[0]


@pytest.mark.parametrize(
    ("env", "part"),
    [
        ({"A-B": "1"}, "'A-B'"),
        ({"A": True}, "write '1' in quotes"),
        ({"A": ["x"]}, "but is a list"),
        ({"A": "x\ny"}, "line break"),
        ({"A": "x\x07y"}, "U+0007"),
        ({"VLLM_API_KEY": "s3cret"}, "api_key"),
        ({"HF_TOKEN": "s3cret"}, "looks like a secret"),
        ({"VLLM_PORT": 1}, "port"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "gpus"),
        ({"VLLM_CACHE_ROOT": "/x"}, "cache volume"),
        ({"MINIO_SECRET_KEY": "s3cret"}, "looks like a secret"),
        ({"DB_PASS": "s3cret"}, "looks like a secret"),
        ({"HTTPS_PROXY": "http://user:s3cret@proxy:3128"}, "env.HTTPS_PROXY holds a password or a token"),
        ({"A": "hf_s3cretabcdefghijklmnopqrst"}, "holds a password or a token"),
        ({"A": "\ud800"}, "half of a surrogate pair"),
        ({"A": "x" * 131_070}, "131071 bytes"),
        ("A=1", "must be a map"),
    ],
)
def test_bad_environment_is_told_in_one_sentence(env: Any, part: str) -> None:
    problems = Problems()
    check_env(env, "env", problems)
    assert len(problems.sentences) == 1
    assert part in problems.sentences[0]
    assert "s3cret" not in problems.sentences[0]


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("redis://:s3cret@cache:6379", "flags.x holds a password or a token"),
        ({"url": ["http://user:s3cret@cache/"]}, "flags.x.url[0] holds a password or a token"),
        (["ok", "sk-s3cretabcdefghijklmnop"], "flags.x[1] holds a password or a token"),
        ("\udfff", "half of a surrogate pair"),
        ("x" * 131_072, "flags.x is a word of more than 131071 bytes"),
        ({"a": "x" * 1_000_000}, "flags.x is a word of more than 131071 bytes"),
    ],
)
def test_what_no_unit_shall_or_can_hold_is_told_in_one_sentence(value: Any, part: str) -> None:
    problems = Problems()
    check_flags({"x": value}, "flags", problems)
    assert len(problems.sentences) == 1 and part in problems.sentences[0]
    assert "s3cret" not in problems.sentences[0] and len(problems.sentences[0]) < 300


def test_addresses_without_a_password_are_no_secrets() -> None:
    problems = Problems()
    check_env({"HTTP_PROXY": "http://proxy:3128/a@b", "B": "ssh://git@host/x", "C": "x" * 100_000}, "env", problems)
    check_flags({"kv-transfer-config": {"url": "http://[::1]:80/x@y:z@w"}, "task": "sk-learn"}, "flags", problems)
    assert problems.sentences == []


def test_odd_environment_values_are_data() -> None:
    problems = Problems()
    check_env(
        {"E": ";", "A": "50% of $HOME", "B": 2, "C": None, "D": "", "VLLM_MAX_TOKENS_PER_EXPERT": 1}, "env", problems
    )
    assert problems.sentences == []


@pytest.mark.parametrize(
    ("value", "tokens"),
    [(4096, 4096), ("256k", 256_000), ("256K", 262_144), ("25.6k", 25_600), ("1.5K", None), ("auto", None), (-1, None)],
)
def test_sizes_are_read_as_vllm_reads_them(value: Any, tokens: int | None) -> None:
    assert parse_size(value) == tokens


@pytest.mark.parametrize(("name", "whole"), [("api-ke", "api-key"), ("hf-tok", "hf-token"), ("por", "port")])
def test_the_beginning_of_a_flag_that_nobody_may_set_is_refused_without_its_value(name: str, whole: str) -> None:
    """The engine takes it for the whole flag, also where no schema of the version tells that it is none."""
    problems = Problems()
    check_flags({name: "value-of-it"}, "flags", problems)
    (told,) = problems.sentences
    assert f"flags.{name} is the beginning of {whole}, which cannot be set as a flag; " in told
    assert "value-of-it" not in told
