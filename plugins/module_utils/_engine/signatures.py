# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What vLLM writes while it starts: fatal messages with their cures, and milestones. Private to socle.inference.

The first matching line is the cause; later ones are consequences, and the last ones are always generic. Only lines that
report an error can match: engines log what users send, at level INFO and in access logs, and that can be anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Signature:
    """A fatal message: what it means ("{1}" is the pattern's first group) and what to do."""

    id: str
    pattern: re.Pattern[str]
    sentence: str
    remedy: str
    generic: bool = False
    """Says only that something failed: the cause is an earlier error line."""


def _signature(id: str, pattern: str, sentence: str, remedy: str, generic: bool = False) -> Signature:
    return Signature(id, re.compile(pattern), sentence, remedy, generic)


SIGNATURES: tuple[Signature, ...] = (
    _signature(
        "unknown_flag",
        r"error: unrecognized arguments: (.+)",
        "this vLLM does not know the arguments {1}",
        "Remove them, or use an image whose vLLM has them.",
    ),
    _signature(
        "bad_flag_value",
        r"error: argument (\S+): (invalid choice: .+|.*cannot be converted to .+|invalid .+ value: .+|expected .+)",
        "the value of {1} is not valid ({2})",
        "Correct the flag's value; JSON flags are written as maps in the inventory.",
    ),
    _signature(
        "speculative_config",
        r"validation errors? for SpeculativeConfig",
        "the speculative configuration has a wrong key or method",
        "Correct the flag speculative-config; the lines after this one name the key.",
    ),
    _signature(
        "tool_parser",
        r"invalid tool call parser: (\S+)",
        "there is no tool call parser {1}",
        "Use a parser that this vLLM version has.",
    ),
    _signature(
        "reasoning_parser",
        r"[Rr]easoning parser '?([^' ]+)'? not found",
        "there is no reasoning parser {1}",
        "Use a parser that this vLLM version has.",
    ),
    _signature(
        "tool_parser_missing",
        r"--enable-auto-tool-choice requires --tool-call-parser",
        "automatic tool choice is on and no tool call parser is named",
        "Set the flag tool-call-parser.",
    ),
    _signature(
        "chat_template",
        r"The supplied chat template string \((.+?)\) appears path-like, but doesn't exist",
        "the chat template {1} is not in the container",
        "Set chat_template of the instance, so that it is mounted.",
    ),
    _signature(
        "model_path",
        r"Repo id must be in the form|does not appear to have a file named config\.json"
        r"|Invalid repository ID or local directory",
        "the model is not at the path that the engine was given",
        "See whether the model store's mount is in the unit and whether the model is complete.",
    ),
    _signature(
        "weights_missing",
        r"Cannot find any model weights with",
        "the model's folder holds no weights",
        "Fetch the model again; its download is incomplete.",
    ),
    _signature(
        "architecture",
        r"Model architectures (\[.+?\]) (?:failed to be inspected|are not supported for now)",
        "this image cannot serve the architecture {1}",
        "Use an image whose vLLM supports the model; an import error above this line names a missing package.",
    ),
    _signature(
        "max_model_len",
        r"User-specified max_model_len \((\d+)\) is greater than the derived max_model_len",
        "max-model-len {1} is more than the model's own context length",
        "Lower max-model-len, or set the model's RoPE scaling.",
    ),
    _signature(
        "free_memory",
        r"Free memory on device (?:\S+ )?\(([\d.]+)/([\d.]+) GiB\) on startup is less than desired"
        r" GPU memory utilization \(([\d.]+), ([\d.]+) GiB\)",
        "only {1} of {2} GiB of GPU memory are free and gpu-memory-utilization {3} needs {4} GiB",
        "Stop what else uses the GPU (nvidia-smi shows it), or lower gpu-memory-utilization.",
    ),
    _signature(
        "no_cache_memory",
        r"No available memory for the cache blocks",
        "weights and activations leave no memory for the KV cache",
        "Raise gpu-memory-utilization, use more GPUs, or lower max-num-batched-tokens.",
    ),
    _signature(
        "cache_too_small",
        r"To serve at least one request with the models?'s max seq len \((\d+)\),? \(?([\d.]+) GiB KV cache is needed,"
        r" which is larger than the available KV cache memory \(([\d.]+) GiB\)"
        r"(?:.*estimated maximum model length is (\d+))?",
        "one request of {1} tokens needs {2} GiB of KV cache and {3} GiB are there",
        "Lower max-model-len to what the message estimates, or raise gpu-memory-utilization.",
    ),
    _signature(
        "load_memory",
        r"Failed to load model - not enough GPU memory|CUDA out of memory occurred when warming up",
        "the GPU's memory ran out while loading or warming up",
        "Lower gpu-memory-utilization or max-num-seqs, or use more GPUs.",
    ),
    _signature(
        "mamba_block",
        r"In Mamba cache align mode, block_size \((\d+)\) must be <= max_num_batched_tokens",
        "max-num-batched-tokens is smaller than the model's block of {1} tokens",
        "Raise max-num-batched-tokens to a multiple of {1}.",
    ),
    _signature(
        "fp8_cache",
        r"FP8 KV cache is not supported by the Triton attention backend",
        "the attention backend cannot use an FP8 KV cache on this GPU",
        "Remove kv-cache-dtype, or use an image with FlashInfer for this GPU.",
    ),
    _signature(
        "bfloat16",
        r"Bfloat16 is only supported on GPUs with compute capability of at least 8\.0",
        "this GPU has no bfloat16",
        "Set dtype to half.",
    ),
    _signature(
        "quantization",
        r"[Qq]uantization .*is not supported for the current GPU\. Minimum capability:",
        "this GPU is too old for the model's quantisation",
        "Use another quantisation of the model, or a newer GPU.",
    ),
    _signature(
        "port_taken",
        r"\[Errno 98\] (?:Address already in use|error while attempting to bind)",
        "the port is in use by another process",
        "Stop that process ('ss -ltnp' shows it), or give the instance another port.",
    ),
    _signature(
        "shared_memory",
        r"(?:[Ii]nsufficient|[Nn]ot enough) shared memory|Bus error.*(?:shm|shared memory)"
        r"|No space left on device: '/dev/shm",
        "the container's shared memory is too small",
        "Raise shm_size_bytes in the serving profile.",
    ),
    _signature(
        "no_device",
        r"Failed to infer device type|libcuda\.so\.1: cannot open shared object file|No CUDA GPUs are available",
        "the engine sees no GPU",
        "See whether the CDI specification lists the GPUs ('nvidia-ctk cdi list') and the instance asks for them.",
    ),
    _signature(
        "gpu_missing",  # from our own unit, before the container starts
        r"^\s*error: nvidia-smi does not list GPU (\S+), which \S+ needs, but says: (.+)",
        "the host's driver does not show GPU {1}",
        "Run playbook provision.yml; reboot the host where the versions of driver and libraries differ.",
    ),
    _signature(
        "cdi",
        r"unresolvable CDI devices? (.+?)\.?$",
        "the container engine does not know the GPUs {1}",
        "Write the CDI specification anew ('systemctl restart nvidia-cdi-refresh'), or correct the instance's gpus.",
    ),
    _signature(
        "cdi_off",
        r'could not select device driver "cdi"',
        "Docker's feature CDI is off",
        "Set features.cdi to true in /etc/docker/daemon.json and restart Docker, or run playbook provision.yml.",
    ),
    _signature(
        "image_missing",
        r"Error: (\S+): (?:image not known|no such image)|Error: .*image not known"
        r"|Error response from daemon: No such image",
        "the image is not on the host any more",
        "Deploy again, so that the image is pulled.",
    ),
    _signature(
        "secret_missing",
        r'Error: no secret with name or id "([^"]+)"',
        "Podman holds no secret {1}",
        "Deploy again, so that the API key is stored.",
    ),
    _signature(
        "mount_missing",
        r"(?:Error: statfs |bind source path does not exist: )(\S+?)(?:: no such file or directory|\.?$)",
        "the folder {1}, which the unit mounts, does not exist",
        "Deploy again, so that the model is fetched and the folders are made.",
    ),
    _signature(
        "limits",
        r"error setting rlimit",
        "the host does not let the container engine raise a limit (ulimit)",
        "Take the limit out of the engine's settings (container_engine_nofile), or give the host CAP_SYS_RESOURCE.",
    ),
    _signature(
        "docker_daemon",
        r"Cannot connect to the Docker daemon",
        "Docker's daemon does not answer",
        "See 'systemctl status docker' on the host.",
    ),
    _signature(
        "driver_old",
        r"NVIDIA driver on your system is too old|unsatisfied condition: cuda>=|CUDA driver version is insufficient"
        r"|Error 803|system has unsupported display driver",
        "the NVIDIA driver is too old for the image's CUDA",
        "Update the driver, or use the image built for an older CUDA.",
    ),
    _signature(
        "fabric_manager",
        r"Error 802: system not yet initialized",
        "the GPUs' fabric is not initialised",
        "See 'systemctl status nvidia-fabricmanager': it must run and match the driver's version.",
    ),
    _signature(
        "engine_timeout",
        r"Timed out waiting for engine core processes to start",
        "the engine took longer to start than vLLM allows",
        "Raise VLLM_ENGINE_READY_TIMEOUT_S in the instance's env, and start_timeout_s with it.",
    ),
    _signature(
        "generic_out_of_memory",
        r"torch\.(?:cuda\.)?OutOfMemoryError: (.+)",
        "the GPU's memory ran out",
        "Lower gpu-memory-utilization or max-num-seqs, or use more GPUs.",
    ),
    _signature(
        "engine_failed",
        r"Engine core initialization failed\. See root cause above|EngineDeadError",
        "the engine failed",
        "The excerpt shows the first error; the whole text is in 'journalctl -u' of the unit.",
        generic=True,
    ),
)

_PREFIX = re.compile(
    r"^(?:\([\w-]+(?: pid=\d+)?\) )?(?:\[rank\d+\]: )?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)(?: \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] |:\s+))?"
)
_UNLEVELLED = re.compile(
    r"\s*(?:"
    r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit): "  # the last line of a traceback
    r"|(?:Value error|Assertion failed), "  # below the first line of pydantic's
    r"|what\(\): "  # C++
    r"|(?:[\w.-]+ ){0,2}[\w.-]+: error: "  # argparse: "vllm serve: error: "
    r'|time="[^"]*" level=(?:error|fatal) '  # Podman
    r"|docker: (?:Error response from daemon: |Cannot connect )"
    r"|\S+\.py:\d+: UserWarning: CUDA initialization: "  # all that PyTorch says of a driver that does not work
    r"|Error: |error: )"
)
"""How a message without a level begins when it reports an error."""

_ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt): \S")


@dataclass(frozen=True)
class Diagnosis:
    """Why an engine did not start."""

    id: str
    sentence: str
    remedy: str
    line: str | None = None

    def as_dict(self) -> dict[str, str | None]:
        """For a module's result."""
        return {"id": self.id, "sentence": self.sentence, "remedy": self.remedy, "line": self.line}


def reports_error(line: str) -> bool:
    """Whether the line is an error's, rather than something that was logged and may quote anybody."""
    prefix = _PREFIX.match(line)
    level = prefix["level"] if prefix else None
    if level:
        return level in ("ERROR", "CRITICAL")
    return bool(_UNLEVELLED.match(strip_prefix(line)))


def strip_prefix(line: str) -> str:
    """The message without vLLM's process, level, time and source."""
    return _PREFIX.sub("", line, count=1).rstrip()


def _fill(text: str, match: re.Match[str]) -> str:
    for index, value in enumerate(match.groups(), start=1):
        text = text.replace(f"{{{index}}}", (value or "").strip())
    return text


class Reader:
    """Takes an engine's lines in order; keeps the first cause, the first error and the milestones."""

    def __init__(self) -> None:
        self.fatal: Diagnosis | None = None
        self.first_error: str | None = None
        self.milestones: dict[str, dict[str, float | int | str]] = {}
        self.phase = "starting container"
        self.done: int | None = None
        self.total: int | None = None

    def feed(self, line: str, at_s: float | None = None) -> None:
        """One line of output, *at_s* seconds after the unit's start."""
        message = strip_prefix(line)
        if reports_error(line):
            if self.first_error is None and _ERROR.match(message):
                self.first_error = message
            if self.fatal is None:
                self.fatal = self._match(message)
        for milestone in MILESTONES:
            found = milestone.pattern.search(message)
            if found:
                if milestone.name not in self.milestones or milestone.last:
                    entry: dict[str, float | int | str] = {}
                    if at_s is not None:
                        entry["at_s"] = round(at_s, 1)
                    for key, value in zip(milestone.keys, found.groups()):
                        if value is not None:
                            entry[key] = _number(value)
                    self.milestones[milestone.name] = entry
                if milestone.phase:
                    self.phase, self.done, self.total = milestone.phase, None, None
                return
        shards = _SHARDS.search(message)
        if shards:
            self.phase, self.done, self.total = "loading weights", int(shards[1]), int(shards[2])

    def _match(self, message: str) -> Diagnosis | None:
        for signature in SIGNATURES:
            found = signature.pattern.search(message)
            if not found:
                continue
            if signature.generic and self.first_error:
                return Diagnosis(signature.id, signature.sentence, signature.remedy, self.first_error)
            return Diagnosis(signature.id, _fill(signature.sentence, found), _fill(signature.remedy, found), message)
        return None


def diagnose(lines: Iterable[str]) -> Diagnosis | None:
    """The cause that these lines tell, None where they tell no known one."""
    reader = Reader()
    for line in lines:
        reader.feed(line)
    return reader.fatal


@dataclass(frozen=True)
class Milestone:
    """A line that says how far the engine is; its groups become *keys* of the entry."""

    name: str
    pattern: re.Pattern[str]
    keys: tuple[str, ...] = ()
    phase: str | None = None
    last: bool = False
    """Several may come and the last one counts."""


_SHARDS = re.compile(r"Loading \S* ?checkpoint shards:\s+\d+% Completed \| (\d+)/(\d+)")

MILESTONES: tuple[Milestone, ...] = (
    Milestone("arguments", re.compile(r"^non-default args: "), phase="reading configuration"),
    Milestone("architecture", re.compile(r"^Resolved architecture: (\S+)"), ("name",)),
    Milestone("engine", re.compile(r"^Initializing a V1 LLM engine \(v([^)]+)\)"), ("version",), "starting engine"),
    Milestone("nccl", re.compile(r"vLLM is using nccl==(\S+)"), ("version",)),
    Milestone("load_started", re.compile(r"^Starting to load model"), phase="loading weights"),
    Milestone("attention", re.compile(r"Using (\S+) attention backend out of potential backends"), ("backend",)),
    Milestone("weights_read", re.compile(r"^Loading weights took ([\d.]+) seconds"), ("took_s",)),
    Milestone(
        "weights",
        re.compile(r"^Model loading took ([\d.]+) GiB(?: memory)? and ([\d.]+) seconds"),
        ("gib", "took_s"),
        "compiling and profiling",
    ),
    Milestone("attention_block", re.compile(r"^Setting attention block size to (\d+) tokens"), ("tokens",)),
    Milestone(
        "compile",
        re.compile(r"torch\.compile (?:and initial profiling/warmup run )?took ([\d.]+) s in total"),
        ("took_s",),
        last=True,
    ),
    Milestone("kv_memory", re.compile(r"Available KV cache memory: ([\d.]+) GiB"), ("gib",), "allocating KV cache"),
    Milestone(
        "kv_cache",
        re.compile(
            r"(?:GPU|CPU) KV cache size: ([\d,]+) tokens"
            r"(?:, Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x)?"
        ),
        ("tokens", "at_tokens", "concurrency"),
        "capturing graphs and warming up",
    ),
    Milestone(
        "kv_concurrency",
        re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x"),
        ("at_tokens", "concurrency"),
    ),
    Milestone("graphs", re.compile(r"Graph capturing finished in (\d+) secs, took ([\d.]+) GiB"), ("took_s", "gib")),
    Milestone(
        "engine_ready",
        re.compile(
            r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s(?:econds)?"
            r"(?:.*compilation: ([\d.]+) s)?"
        ),
        ("took_s", "compilation_s"),
        "starting server",
    ),
    Milestone("server", re.compile(r"Application startup complete"), phase="first answer"),
)


def _number(text: str) -> float | int | str:
    plain = text.replace(",", "")
    try:
        return int(plain)
    except ValueError:
        pass
    try:
        return float(plain)
    except ValueError:
        return text
