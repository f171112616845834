# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The messages by which engines, container engines and systemd tell why a start failed. Private to socle.inference.

Each has an id that a person can look up in docs/diagnosis.md. How lines are told apart from what users send, and which
of many lines counts, is the reader's part (diagnosis.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ERROR = "error"
WARNING = "warning"


@dataclass(frozen=True)
class Cause:
    """Why an instance does not serve; sentence and remedy may hold "{1}" for what was found first."""

    id: str
    name: str
    severity: str
    """An error ends a start; a warning only explains one that hangs or is slow."""
    sentence: str
    """Goes on from "did not become ready,"."""
    remedy: str
    evidence: str = ""
    """Where it is known from: a log, a place in vLLM's source, an issue."""
    versions: str = ""
    """The versions of vLLM that write it; empty for all from 0.19.1 to 0.33.0, and for what vLLM does not write."""


@dataclass(frozen=True)
class Signature(Cause):
    """A cause that one line shows; "{1}" is the pattern's first group."""

    pattern: re.Pattern[str] = re.compile(r"(?!)")
    generic: bool = False
    """Says only that something failed: what is known otherwise, or else the first error, explains it."""
    certain: bool = True
    """Whether it ends the wait. Otherwise engines get over it at times: it counts when the engine has ended."""
    more: int = 0
    """How many lines without a level, from the same process, belong to it."""
    serves: bool = False
    """The engine starts and looks healthy all the same, and a part of what it is for does not work."""


def _signature(
    number: int,
    name: str,
    pattern: str,
    sentence: str,
    remedy: str,
    evidence: str = "",
    versions: str = "",
    *,
    severity: str = ERROR,
    generic: bool = False,
    certain: bool = True,
    more: int = 0,
    serves: bool = False,
) -> Signature:
    return Signature(
        id=f"SOC-D{number:02d}",
        name=name,
        severity=severity,
        sentence=sentence,
        remedy=remedy,
        evidence=evidence,
        versions=versions,
        pattern=re.compile(pattern),
        generic=generic,
        certain=certain,
        more=more,
        serves=serves,
    )


def _issue(number: int) -> str:
    return f"https://github.com/vllm-project/vllm/issues/{number}"


_CPU_LOG = "log of vLLM 0.32.0 (CPU)"
_H200_LOG = "log of vLLM 0.26.0 (H200)"
_PODMAN = "Podman's own words"
_DOCKER = "Docker's own words"
_CUDA = "the CUDA runtime's own words"

SIGNATURES: tuple[Signature, ...] = (
    # The command line
    _signature(
        1,
        "unknown_flag",
        r"error: unrecognized arguments: (.+)",
        "this vLLM does not know the arguments {1}",
        "Remove them from the instance's flags, or use an image whose vLLM has them.",
        _CPU_LOG,
    ),
    _signature(
        2,
        "bad_json_flag",
        r"error: argument ([^\s/]+)(?:/\S+)?: (?:Value )?(.*?) cannot be converted to <function loads",
        "the value of {1} is no JSON ({2})",
        "Write the flag as a map in the inventory; it is then passed as JSON.",
        _CPU_LOG,
    ),
    _signature(
        3,
        "bad_flag_value",
        r"error: argument ([^\s/]+)(?:/\S+)?: (invalid choice: .+|.*cannot be converted to .+|invalid .+ value: .+"
        r"|expected .+|ignored explicit argument .+)",
        "the value of {1} is not valid ({2})",
        "Correct the flag's value; JSON flags are written as maps in the inventory.",
        _CPU_LOG,
    ),
    _signature(
        4,
        "speculative_config",
        r"validation errors? for SpeculativeConfig",
        "the speculative configuration has a wrong key or method",
        "Correct the flag speculative-config; the key stands behind the message.",
        _CPU_LOG,
        more=2,
    ),
    _signature(
        5,
        "tool_parser",
        r"invalid tool call parser: (\S+)",
        "there is no tool call parser {1}",
        "Set tool-call-parser to one that this vLLM version has; the message lists them.",
        _CPU_LOG,
    ),
    _signature(
        6,
        "reasoning_parser",
        r"[Rr]easoning parser '?([^' ]+)'? not found|invalid reasoning parser: (\S+)",
        "there is no reasoning parser {1}{2}",
        "Set reasoning-parser to one that this vLLM version has.",
        _CPU_LOG,
    ),
    _signature(
        7,
        "tool_parser_missing",
        r"--enable-auto-tool-choice requires --tool-call-parser",
        "automatic tool choice is on and no tool call parser is named",
        "Set the flag tool-call-parser, or remove enable-auto-tool-choice.",
        "vllm/entrypoints/openai/cli_args.py",
    ),
    _signature(
        8,
        "chat_template",
        r"The supplied chat template string \((.+?)\) appears path-like, but doesn't exist",
        "the chat template {1} is not in the container",
        "Set chat_template of the instance in place of the flag chat-template, so that it is mounted.",
        _CPU_LOG,
    ),
    _signature(
        9,
        "chat_template_syntax",
        r"jinja2\.exceptions\.(?:TemplateSyntaxError|TemplateAssertionError): (.+)",
        "the chat template cannot be read as Jinja ({1}), so that every chat would be refused",
        "Correct the template; with chat_template of the instance it is a file of your data folder.",
        _CPU_LOG,
        serves=True,
    ),
    _signature(
        10,
        "environment_variable",
        r"ValueError: invalid literal for int\(\) with base 10: (.+)|Invalid value (.+?) for VLLM_\w+",
        "a number was expected and {1}{2} was found, most likely in a variable of vLLM",
        "Correct env of the instance; the traceback in 'journalctl -u' of the unit names the variable.",
        _CPU_LOG,
        certain=False,
    ),
    # Model and weights
    _signature(
        11,
        "model_path",
        r"Repo id must be in the form|does not appear to have a file named config\.json"
        r"|Invalid repository ID or local directory|no such file or directory: '?/models/[^/' ]+'?$",
        "the model is not at the path that the engine was given",
        "See whether the model store's mount is in the unit ('systemctl cat'), and fetch the model again with playbook"
        " models.yml.",
        _CPU_LOG,
    ),
    _signature(
        12,
        "weights_missing",
        r"Cannot find any model weights with",
        "the model's folder holds no weights",
        "Fetch the model again with playbook models.yml; its download is incomplete.",
        _CPU_LOG,
    ),
    _signature(
        13,
        "shard_missing",
        r"Weight files referenced in index but missing: (.+)"
        r"|No such file or directory: '?([^'\s]*\.safetensors)'?|Missing weight files? in index: (.+)",
        "files of weights that the model's index names are missing ({1}{2}{3})",
        "Fetch the model again with playbook models.yml; it takes only what is missing.",
        _CPU_LOG,
    ),
    _signature(
        14,
        "weights_pointer",
        r"SafetensorError: .*invalid UTF-8|git-lfs\.github\.com/spec",
        "a file of weights is no safetensors file, perhaps a pointer of Git LFS",
        "Fetch the model again with playbook models.yml instead of a Git checkout.",
        "the words of safetensors and Git LFS",
    ),
    _signature(
        15,
        "weights_damaged",
        r"SafetensorError: (.*(?:deserializing header|incomplete metadata|MetadataIncompleteBuffer|HeaderTooLarge"
        r"|HeaderTooSmall|InvalidHeader).*)",
        "a file of weights is cut off or damaged ({1})",
        "Fetch the model again with playbook models.yml; it checks every file by its hash.",
        _CPU_LOG,
    ),
    _signature(
        16,
        "config_damaged",
        r"config file at '?(\S+?)'? is not a valid JSON file",
        "the model's file {1} is no JSON",
        "Fetch the model again with playbook models.yml; its download is incomplete.",
        _CPU_LOG,
    ),
    _signature(
        17,
        "tokenizer",
        r"(?:Couldn't instantiate the backend tokenizer|Can't load tokenizer for|Unable to load vocabulary"
        r"|Error while loading tokenizer|Exception: EOF while parsing|Exception: data did not match any variant"
        r"|Exception: expected .+ at line \d+).*",
        "the model's tokenizer cannot be loaded",
        "Fetch the model again with playbook models.yml; if its files are whole, use an image with newer transformers.",
        "the words of transformers and tokenizers",
    ),
    _signature(
        18,
        "architecture",
        r"Model architectures (\[.+?\]) (?:failed to be inspected|are not supported for now)"
        r"|Cannot find model module\. (\S+) is not a registered model"
        r"|(\S+) has no vLLM implementation",
        "this image cannot serve the architecture {1}{2}{3}",
        "Use an image whose vLLM supports the model; an import error above this line names a missing package.",
        _CPU_LOG,
    ),
    _signature(
        19,
        "model_type",
        r"checkpoint you are trying to load has model type `?(\S+?)`? but Transformers does not recognize",
        "the image's transformers does not know the model type {1}",
        "Use an image with a newer vLLM.",
        "the words of transformers",
    ),
    _signature(
        20,
        "remote_code",
        r"(?:contains custom code which must be executed|Failed to load the (?:model config|tokenizer)\b.*"
        r"|requires you to execute the (?:configuration|tokenizer|modeling) file).*trust.?remote.?code"
        r"|Please pass the argument `trust_remote_code=True`",
        "the model brings its own code, which is not allowed to run",
        "Set the flag trust-remote-code if you trust the model's authors, or use an image that has the model built in.",
        "vllm/tokenizers/hf.py",
    ),
    _signature(
        21,
        "weights_do_not_fit_model",
        r"There is no module or parameter named (.+?) in (\w+)|Following weights were not initialized from checkpoint",
        "the weights do not belong to the model's configuration ({1})",
        "See whether repo and revision of the model are of one release; for a quantised copy, set or remove the flag"
        " quantization; or use an image whose vLLM knows this layout.",
        "vllm/model_executor/models/utils.py",
    ),
    _signature(
        22,
        "quantization_mismatch",
        r"Quantization method specified in the model config \(([^)]+)\) does not match"
        r" .*`quantization` argument \(([^)]+)\)",
        "the model is quantised by {1} and the flag quantization says {2}",
        "Remove the flag quantization: the model's own configuration says it.",
        "vllm/config/model.py",
    ),
    _signature(
        23,
        "quantization_unknown",
        r"Unknown quantization method: (\w+)|Invalid quantization method: (\w+)",
        "this vLLM does not know the quantisation {1}{2}",
        "Correct the flag quantization, or use an image whose vLLM has it.",
        "vllm/config/model.py",
    ),
    _signature(
        24,
        "quantization_config",
        r"Cannot find the config file for (\w+)",
        "the model has no configuration for the quantisation {1}",
        "Remove the flag quantization, or use a quantised copy of the model.",
        _CPU_LOG,
    ),
    _signature(
        25,
        "quantization",
        r"[Qq]uantization .*is not supported for the current GPU\. Minimum capability:",
        "this GPU is too old for the model's quantisation",
        "Use another quantisation of the model, or a newer GPU.",
        "vllm/config/vllm.py",
    ),
    _signature(
        26,
        "dtype_quantization",
        r"(\S+) is not supported for quantization method (\w+)\. Supported dtypes: (\[.+?\])",
        "the quantisation {2} does not work with dtype {1}, only with {3}",
        "Set the flag dtype to one of them, or remove it.",
        "vllm/config/vllm.py",
    ),
    _signature(
        27,
        "bfloat16",
        r"Bfloat16 is only supported on GPUs with compute capability of at least 8\.0",
        "this GPU has no bfloat16",
        "Set the flag dtype to half.",
        "vllm/platforms/cuda.py",
    ),
    _signature(
        85,
        "json_damaged",
        r"JSONDecodeError: (.+)",
        "a JSON file of the model, or a setting, is cut off or damaged ({1})",
        "The traceback in 'journalctl -u' of the unit tells which one is read (tokenizer, configuration, index of the"
        " weights); fetch the model again with playbook models.yml.",
        _CPU_LOG,
        certain=False,
    ),
    # Lengths and sizes
    _signature(
        28,
        "max_model_len",
        r"User-specified max_model_len \((\d+)\) is greater than the derived max_model_len"
        r"(?: \((?:max_position_embeddings|model_max_length|[\w.]+)=(\d+))?",
        "max-model-len {1} is more than the model's own context length ({2})",
        "Lower max-model-len, or set the model's RoPE scaling by the flag hf-overrides.",
        _CPU_LOG,
    ),
    _signature(
        29,
        "batched_tokens",
        r"max_num_batched_tokens \((\d+)\) (?:must be greater than or equal to max_num_seqs"
        r"|is smaller than max_model_len)",
        "max-num-batched-tokens {1} is less than max-num-seqs, or than the context where chunked prefill is off",
        "Raise max-num-batched-tokens, or lower max-num-seqs.",
        _CPU_LOG,
    ),
    _signature(
        30,
        "mamba_block",
        r"In Mamba cache align mode, block_size \((\d+)\) must be <= max_num_batched_tokens",
        "max-num-batched-tokens is smaller than the model's block of {1} tokens",
        "Raise max-num-batched-tokens to a multiple of {1}.",
        _issue(36697),
    ),
    _signature(
        31,
        "rope",
        r"(?:Unknown RoPE scaling type|rope_type|Unrecognized keys in `rope_\w+`).*",
        "the model's RoPE settings are not valid",
        "Correct hf-overrides: type, factor and original length of the RoPE scaling.",
        "the words of transformers",
        certain=False,
    ),
    _signature(
        32,
        "tensor_parallel",
        r"Total number of attention heads \((\d+)\) must be divisible by tensor parallel size \((\d+)\)",
        "{1} attention heads cannot be spread over {2} GPUs",
        "Set tensor-parallel-size (and gpus) to a number that divides {1}.",
        _CPU_LOG,
    ),
    _signature(
        33,
        "too_few_gpus",
        r"World size \((\d+)\) is larger than the number of available GPUs \((\d+)\)"
        r"|--device-ids provides (\d+) devices",
        "the flags spread the model over {1} GPUs and the container has {2}{3}",
        "Name as many GPUs in gpus as tensor-parallel-size x pipeline-parallel-size x data-parallel-size says.",
        "vllm/config/parallel.py",
    ),
    # GPU memory
    _signature(
        34,
        "free_memory",
        r"Free memory on device (?:\S+ )?\(([\d.]+)/([\d.]+) GiB\) on startup is less than desired"
        r" GPU memory utilization \(([\d.]+), ([\d.]+) GiB\)",
        "only {1} of {2} GiB of GPU memory are free and gpu-memory-utilization {3} needs {4} GiB",
        "Stop what else uses the GPU (nvidia-smi shows it), or lower gpu-memory-utilization.",
        _H200_LOG,
    ),
    _signature(
        35,
        "no_cache_memory",
        r"No available memory for the cache blocks",
        "weights and activations leave no memory for the KV cache",
        "Raise gpu-memory-utilization, use more GPUs, or lower max-num-batched-tokens.",
        "vllm/v1/core/kv_cache_utils.py",
    ),
    _signature(
        36,
        "cache_too_small",
        r"To serve at least one request with the models?'s max seq len \((\d+)\),? \(?([\d.]+) GiB KV cache is needed,"
        r" which is larger than the available KV cache memory \(([\d.]+) GiB\)"
        r"(?:.*estimated maximum model length is (\d+))?",
        "one request of {1} tokens needs {2} GiB of KV cache and {3} GiB are there",
        "Lower max-model-len to what the message estimates ({4}), or raise gpu-memory-utilization; on a processor,"
        " VLLM_CPU_KVCACHE_SPACE.",
        _CPU_LOG,
    ),
    _signature(
        37,
        "load_memory",
        r"Failed to load model - not enough GPU memory|CUDA out of memory occurred when warming up",
        "the GPU's memory ran out while loading or warming up",
        "Lower gpu-memory-utilization or max-num-seqs, or use more GPUs.",
        "vllm/v1/worker/gpu_model_runner.py",
    ),
    _signature(
        38,
        "memory_profiling",
        r"Error in memory profiling\. Initial free memory ([\d.]+) GiB, current free memory ([\d.]+) GiB",
        "another process gave GPU memory back while the engine measured it (free before {1} GiB, then {2} GiB)",
        "Start the instance again when no other engine on the GPU starts or stops.",
        "vllm/v1/worker/gpu_worker.py",
    ),
    _signature(
        39,
        "generic_out_of_memory",
        r"(?:torch\.(?:cuda\.)?OutOfMemoryError|AcceleratorError): .*?(CUDA (?:error: )?out of memory.*)"
        r"|torch\.(?:cuda\.)?OutOfMemoryError: (.+)",
        "the GPU's memory ran out",
        "Lower gpu-memory-utilization or max-num-seqs (graphs need memory beside the KV cache), or use more GPUs.",
        _issue(57475),
    ),
    # Attention and kernels
    _signature(
        40,
        "fp8_cache",
        r"FP8 KV cache is not supported by the Triton attention backend",
        "the attention backend cannot use an FP8 KV cache on this GPU",
        "Remove kv-cache-dtype, or use an image with FlashInfer for this GPU.",
        _issue(24577),
        ">=0.24.0",
    ),
    _signature(
        41,
        "attention_backend",
        r"No valid attention backend found for (.+?) with|Selected backend (\S+) is not valid for this configuration",
        "no attention backend can do what the flags ask of {1}{2}",
        "Remove attention-backend, or change what the message's reasons name (mostly kv-cache-dtype or block-size).",
        "vllm/platforms/cuda.py",
    ),
    _signature(
        42,
        "kernel_image",
        r"no kernel image is available for execution on the device"
        r"|is not compatible with the current PyTorch installation",
        "the image holds no kernels for this GPU",
        "Use an image that is built for the GPU's compute capability (image of the profile or of the instance).",
        _CUDA,
    ),
    _signature(
        43,
        "compiler_missing",
        r"Failed to find C compiler|No working C\+\+ compiler found|Could not find nvcc|Cannot find ptxas"
        r"|(?:^|[\s/:])(?:nvcc|gcc|[gc]\+\+|ninja): (?:command )?not found|cannot execute .?cc1"
        r"|No such file or directory: '?(?:[^'\s]*/)?(?:nvcc|gcc|[gc]\+\+|ninja|ptxas)\b"
        r"|Ninja is required to load C\+\+ extensions|CUDA_HOME environment variable is not set",
        "a kernel must be compiled and the image has no compiler for it",
        "Use the full image of vLLM, or compile nothing: the flag enforce-eager, or compilation-config with mode none,"
        " and another attention-backend where FlashInfer compiles.",
        _CPU_LOG,
    ),
    _signature(
        86,
        "header_missing",
        r"fatal error: (\S+): No such file or directory",
        "code is compiled at the start and the image lacks the header {1}",
        "Use an image that has it (libpython3-dev has Python.h, NVIDIA's devel images have those of CUDA), or compile"
        " nothing: the flag enforce-eager, or compilation-config with mode none.",
        _CPU_LOG,
    ),
    _signature(
        87,
        "compile_failed",
        r"CppCompileError|Ninja build failed|nvcc fatal\s*: (.+)|ninja: build stopped: (.+)",
        "code that is compiled at the start does not compile ({1}{2})",
        "Use vLLM's own image for this GPU, or compile nothing: the flag enforce-eager, or compilation-config with mode"
        " none, and another attention-backend where FlashInfer compiles.",
        "the words of PyTorch, FlashInfer and nvcc",
        certain=False,
    ),
    _signature(
        44,
        "gpu_fault",
        r"CUDA error: (an illegal memory access was encountered|unspecified launch failure|misaligned address"
        r"|uncorrectable (?:NVLink|ECC) error.*|device-side assert triggered|the launch timed out.*)",
        "a kernel failed on the GPU ({1})",
        "Look for Xid messages ('journalctl -k --grep Xid'; playbook check.yml explains them); with none, use another"
        " attention-backend or image.",
        _CUDA,
    ),
    _signature(
        45,
        "gpu_busy",
        r"CUDA-capable device\(s\) is/are busy or unavailable|all CUDA-capable devices are busy",
        "the GPU takes no further process",
        "Set its compute mode to default ('nvidia-smi -c 0'), and stop what else uses it.",
        _CUDA,
    ),
    _signature(
        46,
        "custom_allreduce",
        r"custom_all_reduce\.cuh:\d+ '(.+?)'",
        "the GPUs cannot reach each other's memory ({1})",
        "Set the flag disable-custom-all-reduce, or NCCL_P2P_DISABLE: '1' in env.",
        "https://github.com/voipmonitor/rtx6kpro/issues/15",
    ),
    _signature(
        47,
        "nccl",
        r"NCCL error(?: in)?: (.+)|NCCL (?:WARN|error) (.*Cuda failure.*)|Nccl failed.*: (.+)",
        "the GPUs cannot talk to each other (NCCL: {1}{2}{3})",
        "Raise shm_size_bytes if it names /dev/shm; on PCIe set NCCL_P2P_DISABLE: '1' in env; NCCL_DEBUG: INFO tells"
        " more.",
        _issue(51513),
        certain=False,
    ),
    _signature(
        48,
        "collective_timeout",
        r"Watchdog caught collective operation timeout"
        r"|(?:Timed out|timeout).*(?:init_process_group|rendezvous|TCPStore)",
        "the GPUs wait for each other for ever",
        "On PCIe set NCCL_P2P_DISABLE: '1' in env and the flag disable-custom-all-reduce, and start the kernel with"
        " iommu=pt.",
        _issue(51513),
    ),
    # The host's limits
    _signature(
        49,
        "shared_memory",
        r"Insufficient space in /dev/shm[^:]*: (\S+ MiB required, \S+ MiB free)"
        r"|(?:[Ii]nsufficient|[Nn]ot enough) shared memory|Bus error.*(?:shm|shared memory)"
        r"|No space left on device: '/dev/shm|[Ee]rror while creating shared memory segment /dev/shm"
        r"|Failed core proc\(s\): \{.*: -7\b|exit code: -7\b",
        "the container's shared memory is too small ({1})",
        "Raise shm_size_bytes in the serving profile.",
        _CPU_LOG,
    ),
    _signature(
        50,
        "killed_for_memory",
        r"A process of this unit has been killed by the OOM killer|Failed with result 'oom-kill'"
        r"|(?:Memory cgroup out|Out) of memory: Killed process (\d+ \([^)]*\))|OOMKilled",
        "the kernel killed it since the host's memory, or the limit of its unit, ran out ({1})",
        "Raise MemoryMax of the unit where it has one; else free memory on the host ('free -g'), or lower"
        " VLLM_CPU_KVCACHE_SPACE, cpu-offload-gb, mm-processor-cache-gb or shm_size_bytes.",
        "a log of Linux 6.18; the words of systemd",
    ),
    _signature(
        51,
        "engine_killed",
        r"Failed core proc\(s\): \{[^}]*: -9\b|died unexpectedly \(exit code: -9\)",
        "the engine's process was killed (SIGKILL), as the kernel does where memory runs out",
        "See 'journalctl -k --grep \"Killed process\"' on the host; free memory, or raise the unit's MemoryMax.",
        "vllm/v1/engine/utils.py and multiproc_executor.py",
    ),
    _signature(
        52,
        "disk_full",
        r"\[Errno 28\] No space left on device|no space left on device",
        "a disk of the host is full",
        "See 'df -h' on the host; the cache of compiled kernels is below socle_state_dir.",
        "the words of Linux",
    ),
    _signature(
        53,
        "open_files",
        r"\[Errno 24\] Too many open files",
        "the engine may not open as many files as it needs",
        "Raise container_engine_nofile and run playbook provision.yml.",
        "the words of Linux",
    ),
    _signature(
        54,
        "permission",
        r"PermissionError: \[Errno 13\] Permission denied: '([^']+)'",
        "the engine may not read or write {1}",
        "See owner, mode and SELinux label of what the unit mounts there ('systemctl cat' shows it).",
        "the words of Linux",
        certain=False,
    ),
    _signature(
        55,
        "port_taken",
        r"\[Errno 98\] (?:Address already in use|error while attempting to bind)"
        r"|cannot listen on the TCP port: .*address already in use|port is already allocated"
        r"|failed to bind (?:host )?port .*address already in use",
        "the port is in use by another process",
        "Stop that process ('ss -ltnp' shows it), or give the instance another port.",
        _CPU_LOG,
    ),
    # The GPU and the container engine
    _signature(
        56,
        "no_device",
        r"Failed to infer device type|libcuda\.so\.1: cannot open shared object file|No CUDA GPUs are available"
        r"|no CUDA-capable device is detected",
        "the engine sees no GPU",
        "See whether the CDI specification lists the GPUs ('nvidia-ctk cdi list') and the instance asks for them.",
        "vllm/config/device.py",
    ),
    _signature(
        57,
        "gpu_missing",  # from our own unit, before the container starts
        r"^\s*error: nvidia-smi does not list GPU (\S+), which \S+ needs, but says: (.+)",
        "the host's driver does not show GPU {1}",
        "Run playbook provision.yml; reboot the host where the versions of driver and libraries differ.",
        "the unit's own check",
    ),
    _signature(
        58,
        "cdi",
        r"unresolvable CDI devices? (.+?)\.?$",
        "the container engine does not know the GPUs {1}",
        "Write the CDI specification anew ('systemctl restart nvidia-cdi-refresh'), or correct the instance's gpus.",
        _PODMAN,
    ),
    _signature(
        59,
        "cdi_stale",
        r"(?:gathering device information|stat|lstat|failed to (?:stat|add) (?:CDI )?device)\b.*?"
        r"(/dev/nvidia\S*?|\S*libnvidia\S*?|\S*libcuda\S*?)[\"']?: no such file",
        "the CDI specification names {1}, which the host does not have any more",
        "Write it anew: 'systemctl restart nvidia-cdi-refresh', or 'nvidia-ctk cdi generate"
        " --output=/var/run/cdi/nvidia.yaml'; load nvidia-uvm if that is what is missing.",
        "https://github.com/NVIDIA/nvidia-container-toolkit/pull/1979",
    ),
    _signature(
        60,
        "cdi_off",
        r'could not select device driver "cdi"',
        "Docker's feature CDI is off",
        "Set features.cdi to true in /etc/docker/daemon.json and restart Docker, or run playbook provision.yml.",
        _DOCKER,
    ),
    _signature(
        61,
        "legacy_hook",
        r'could not select device driver "(?:nvidia)?" with capabilities|nvidia-container-cli: (.+)',
        "NVIDIA's old way into containers was used and fails ({1})",
        "Run playbook provision.yml: instances get their GPUs by CDI.",
        _DOCKER,
    ),
    _signature(
        62,
        "image_missing",
        r"Error: (\S+): (?:image not known|no such image)|Error: .*image not known"
        r"|Error response from daemon: No such image",
        "the image is not on the host any more",
        "Deploy again, so that the image is pulled.",
        "Podman 4.3 and 5.4, Docker 26",
    ),
    _signature(
        63,
        "image_entrypoint",
        r"exec:? \"?([^\":]+)\"?: (?:executable file not found|not found)|executable file `([^`]+)` not found",
        "the image has no program {1}{2}",
        "Correct image of the instance or of its profile: it must be one that starts 'vllm serve'.",
        _PODMAN,
    ),
    _signature(
        64,
        "secret_missing",
        r'Error: no secret with name or id "([^"]+)"',
        "Podman holds no secret {1}",
        "Deploy again, so that the API key is stored.",
        _PODMAN,
    ),
    _signature(
        65,
        "mount_missing",
        r"(?:Error: statfs |bind source path does not exist: )(\S+?)(?:: no such file or directory|\.?$)",
        "the folder {1}, which the unit mounts, does not exist",
        "Deploy again, so that the model is fetched and the folders are made.",
        "Podman 5.4, Docker 26",
    ),
    _signature(
        66,
        "container_name",
        r"[Tt]he container name \"?/?([^\" ]+)\"? is already in use",
        "a container named {1} is there already",
        "Remove it ('podman rm -f' or 'docker rm -f' with its name), and deploy again.",
        "Podman's and Docker's own words",
    ),
    _signature(
        67,
        "limits",
        r"error setting rlimit",
        "the host does not let the container engine raise a limit (ulimit)",
        "Take the limit out of the engine's settings (container_engine_nofile), or give the host CAP_SYS_RESOURCE.",
        "Docker 26",
    ),
    _signature(
        68,
        "shm_and_ipc",
        r"cannot set shmsize when running in the .*IPC|Conflicting options: --shm-size",
        "the container shares the host's IPC and yet has a size of shared memory of its own",
        "Remove ipc: host from the serving profile, or shm_size_bytes.",
        _PODMAN,
    ),
    _signature(
        69,
        "oci_runtime",
        r"OCI runtime (?:error|create failed|permission denied error|attempted to invoke.*): (.+)",
        "the container could not be created ({1})",
        "Look at the message; playbook check.yml shows what the host lacks.",
        "Podman's and Docker's own words",
        certain=False,
    ),
    _signature(
        70,
        "storage",
        r"(?:error creating|creating) (?:container )?storage: (.+)|layer not known|database is locked",
        "the container engine's storage is damaged or busy ({1})",
        "'podman system check' or a restart of Docker on the host; then deploy again, so that the image is pulled.",
        _PODMAN,
        certain=False,
    ),
    _signature(
        71,
        "docker_daemon",
        r"Cannot connect to the Docker daemon",
        "Docker's daemon does not answer",
        "See 'systemctl status docker' on the host.",
        "Docker 26",
    ),
    # The driver
    _signature(
        72,
        "driver_old",
        r"NVIDIA driver on your system is too old|unsatisfied condition: cuda>=|CUDA driver version is insufficient"
        r"|Error 803|system has unsupported display driver|forward compatibility was attempted on non supported HW",
        "the NVIDIA driver is too old for the image's CUDA",
        "Update the driver with playbook provision.yml, or use the image built for an older CUDA.",
        _CUDA,
    ),
    _signature(
        73,
        "driver_mismatch",
        r"Driver/library version mismatch",
        "the loaded NVIDIA module and the libraries are of different versions",
        "Reboot the host, best by playbook provision.yml.",
        "NVML's own words",
    ),
    _signature(
        74,
        "fabric_manager",
        r"Error 802: system not yet initialized",
        "the GPUs' fabric is not initialised",
        "See 'systemctl status nvidia-fabricmanager': it must run and match the driver's version.",
        _CUDA,
    ),
    _signature(
        75,
        "driver_unknown",
        r"CUDA (?:unknown error|error: unknown error)|Error 999|NVML_ERROR|Failed to initialize NVML: (.+)",
        "the driver does not answer as it should ({1})",
        "Load nvidia-uvm ('nvidia-modprobe -u -c 0'), write the CDI specification anew ('systemctl restart"
        " nvidia-cdi-refresh'), and see 'journalctl -k --grep NVRM'.",
        "https://github.com/NVIDIA/nvidia-container-toolkit/pull/1979",
        certain=False,
    ),
    # The image's software
    _signature(
        76,
        "python_package",
        r"(?:ModuleNotFoundError|ImportError): (.+)",
        "the image lacks a package or has one that does not fit ({1})",
        "Use vLLM's own image, or build the package into yours.",
        "the words of Python",
        certain=False,
    ),
    _signature(
        77,
        "config_invalid",
        r"validation errors? for (\w+)",
        "the settings in {1} contradict each other or the model",
        "The lines behind this one name the setting.",
        "the words of pydantic",
        certain=False,
        more=2,
    ),
    # Time
    _signature(
        78,
        "engine_timeout",
        r"Timed out waiting for engine core processes to start",
        "the engine took longer to start than vLLM allows",
        "Raise VLLM_ENGINE_READY_TIMEOUT_S in the instance's env, and start_timeout_s with it.",
        "vllm/v1/engine/core_client.py",
    ),
    _signature(
        79,
        "rpc_timeout",
        r"RPC call to (\w+) timed out",
        "a process of the engine did not answer ({1})",
        "With several GPUs set NCCL_P2P_DISABLE: '1' in env and the flag disable-custom-all-reduce; else read what it"
        " did last in the excerpt.",
        _issue(46611),
    ),
    _signature(
        80,
        "rank_stuck",
        r"^No available shared memory broadcast block found in (\d+) ?s",
        "one GPU's process has waited for another for {1} s and more",
        "Early in a start it compiles; if it never ends, set NCCL_P2P_DISABLE: '1' in env and the flag"
        " disable-custom-all-reduce.",
        _issue(46611),
        severity=WARNING,
    ),
    _signature(
        81,
        "fp8_emulated",
        r"^Your GPU does not have native support for FP8 computation",
        "this GPU has no FP8 arithmetic, so that FP8 weights are expanded while it computes",
        "Use BF16 weights where prefill is too slow.",
        "vllm/model_executor/layers/quantization",
        severity=WARNING,
    ),
    # Consequences
    _signature(
        82,
        "engine_crashed",
        r"Failed core proc\(s\): \{[^}]*: -(?:4|6|8|11)\b|died unexpectedly \(exit code: -(?:4|6|8|11)\)"
        r"|Fatal Python error: (.+)|Segfault encountered",
        "a process of the engine crashed in native code",
        "The first error is quoted; use another attention-backend or image if it comes again.",
        "the words of Python and vllm/v1/engine/utils.py",
        generic=True,
    ),
    _signature(
        83,
        "engine_failed",
        r"Engine core initialization failed\. See root cause above|EngineDeadError"
        r"|Frontend process failed during engine core initialization",
        "the engine failed",
        "The excerpt shows the first error; the whole text is in 'journalctl -u' of the unit.",
        _CPU_LOG,
        generic=True,
    ),
    _signature(
        84,
        "worker_died",
        r"Worker proc \S+ died unexpectedly(?: \(exit code: (?:None|(\S+))\))?",
        "a worker of the engine died without a word ({1})",
        "If it was killed, 'journalctl -k --grep \"Killed process\"' on the host says so; else use another"
        " attention-backend or image.",
        _CPU_LOG,
        generic=True,
    ),
)


def _cause(number: int, name: str, sentence: str, remedy: str, evidence: str = "systemd") -> Cause:
    return Cause(f"SOC-D{number}", name, ERROR, sentence, remedy, evidence)


OBSERVED: dict[str, Cause] = {
    cause.name: cause
    for cause in (
        _cause(
            90,
            "unit_stopped",
            "the unit was stopped, or the engine ended by itself",
            "See who stopped it ('journalctl -u' of the unit); deploy again.",
        ),
        _cause(
            91,
            "unit_failed",
            "it ended with status {1} ({2})",
            "The line is its first error; the whole text is in 'journalctl -u' of the unit.",
        ),
        _cause(
            92,
            "unit_timeout",
            "systemd gave up waiting for its health check (TimeoutStartSec)",
            "Raise start_timeout_s where it is only slow; else the excerpt shows where it hangs.",
        ),
        _cause(
            93,
            "start_limit",
            "it failed so often that systemd does not start it any more",
            "The line is its first error; deploy again after the cause is gone, which lifts the limit.",
        ),
        _cause(
            94,
            "restart_loop",
            "it ends soon after each start ({1} restarts while waiting)",
            "The line is its first error; the whole text is in 'journalctl -u' of the unit.",
        ),
        _cause(
            95,
            "timeout",
            "it does not serve after {1} s, last seen at '{2}'",
            "If it is only slow (cold disks, first compilation), raise start_timeout_s; else the excerpt shows where"
            " it hangs.",
            "the wait's own limit",
        ),
        _cause(
            96,
            "api_key",
            "it refuses the API key",
            "Set api_key of the instance to the key that the engine was started with, or deploy again.",
            "the engine's HTTP interface",
        ),
        _cause(
            97,
            "served_names",
            "it lists other models than the plan names",
            "Another process may hold the port: see 'ss -ltnp' on the host.",
            "the engine's HTTP interface",
        ),
        _cause(
            98,
            "killed",
            "it was killed (SIGKILL)",
            "The kernel kills where memory runs out: see 'journalctl -k --grep \"Killed process\"' on the host.",
        ),
        _cause(
            99,
            "unknown",
            "the engine failed",
            "The line is its first error, which is not known yet; the whole text is in 'journalctl -u' of the unit.",
            "",
        ),
    )
}
"""Causes that no single line shows, by name: what systemd says, what the engine answers, and how long it took."""

BY_NAME: dict[str, Cause] = {**{signature.name: signature for signature in SIGNATURES}, **OBSERVED}
