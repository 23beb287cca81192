"""Frozen configuration: one dataclass per component, made only by llmx.resolve.

Each field says its unit. None means: derived from the model or the machine when the engine starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from llmx.record import record

__all__ = ["CacheConfig", "Change", "DraftConfig", "EngineConfig", "LoraConfig", "ModelConfig", "PlatformConfig", "SchedulerConfig", "ServerConfig"]


@record
class ModelConfig:
    """Which model. source: an embedded name, a .gguf file, a directory with config.json and safetensors, or org/name[@revision][:QUANT]."""

    source: str = "smollm2-135m-instruct"
    served_names: tuple[str, ...] = ()  # names in the API; empty: derived from source
    max_model_len: int | None = None  # tokens, prompt and generated
    dtype: str = "auto"  # auto: weights as stored, bf16 pages; float32: everything in fp32
    quantization: str | None = None  # int8, int4: made while loading; else what the checkpoint must have; None: whatever it has
    load_format: str = "auto"  # auto, safetensors, gguf: what the files must be
    hf_overrides: Mapping[str, Any] = field(default_factory=dict)  # merged over config.json (or its equivalent of a GGUF file)
    generation_config: str = "auto"  # auto: the model's own; none; a folder or a file
    generation_overrides: Mapping[str, Any] = field(default_factory=dict)  # merged over generation_config.json
    chat_template: str | None = None  # a file, or the template itself
    tokenizer: str | None = None  # directory, tokenizer.json, .gguf file or hub name; None: from the model
    seed: int = 0  # seeds the seeds of requests that bring none
    revision: str | None = None  # branch, tag or commit of a hub model; None: what source says, else main
    hf_token: str | None = None  # for the hub; None: huggingface_hub's own
    download_dir: str | None = None  # where hub models are kept; None: huggingface_hub's cache
    offline: bool = False  # never connect to the hub
    cache_dir: str | None = None  # for what takes long to build (tokenizers); None: nothing is kept
    runner: str = "auto"  # auto, generate, pooling: text, or vectors and scores
    convert: str = "auto"  # auto, none, embed, classify: what a model whose head is taken off gives
    pooler_config: Mapping[str, Any] = field(default_factory=dict)  # pooling_type, use_activation: over what the model's files say


@record
class CacheConfig:
    """The KV cache. kv_bytes or num_blocks fixes its size; otherwise it follows free memory."""

    kv_bytes: int | None = None
    num_blocks: int | None = None  # per group, the null block included
    kv_dtype: str = "auto"  # auto, float32, bfloat16, int8
    prefix_caching: bool = True
    memory_fraction: float = 0.5  # share of the available memory that the KV cache may take by default


@record
class SchedulerConfig:
    """Continuous batching. max_num_batched_tokens: the token budget of one step."""

    max_num_batched_tokens: int | None = None
    max_num_seqs: int = 256  # slots
    policy: str = "fcfs"  # fcfs or priority
    interactive: bool = True  # bound the time of steps that mix decode and prefill; False favours throughput
    max_queued_requests: int | None = 1024  # more are refused with 503
    max_queued_tokens: int | None = None  # tokens of waiting requests; a request beyond is refused with 503 unless none waits
    queue_timeout_s: float | None = None  # a request that has waited longer for its first step is refused with 503
    recovery_timeout_s: float = 10.0  # requests wait so long for an engine that died and is started again
    step_timeout_s: float | None = None  # an engine that ends no step for so long hangs; 0: never; None: see engine.watchdog


@record
class PlatformConfig:
    """Which platform and kernels. kernels: op kind -> providers in the order wanted; one alone is forced."""

    name: str | None = None
    device: str | None = None
    threads: int | None = None  # of all ranks together
    shared_threads: tuple[str, int] | None = None  # (file, threads) of all engines of this server; 0 threads: what the platform has
    tensor_parallel_size: int = 1  # ranks that share every layer of the model, each a process
    rank: int = 0  # which of them this process is; what starts it says so
    enforce_eager: bool = False  # no graphs, no compilation: every op is called in every step
    kernels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    disabled: tuple[str, ...] = ()  # providers that may not be used
    allow_plugins: tuple[str, ...] = ()  # empty: all
    deny_plugins: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()  # platform variables (LLMX_<PLATFORM>_*), as read by resolve

    def rank_threads(self, usable: int) -> int:
        """Threads of one rank: its part of `threads`, or of the usable processors where that is not set; at least 1."""
        return max(1, (self.threads or usable) // self.tensor_parallel_size)


@record
class StructuredConfig:
    """Structured output. backend: asked first; auto: the one of highest priority."""

    backend: str = "auto"
    timeout_s: float = 10.0  # for compiling one grammar


@record
class DraftConfig:
    """Drafting: what was written; llmx.draft.start reads it. No method anywhere: no drafting."""

    settings: Mapping[str, Any] = field(default_factory=dict)  # method, num_speculative_tokens and the method's own
    method: str | None = None
    num_tokens: int | None = None  # per request and step at most


@record
class LoraConfig:
    """Adapters. Modules, a folder or repositories of the hub alone turn them on."""

    enabled: bool = False
    max_loras: int = 8  # device slots: different adapters that run at the same time
    max_rank: int = 64
    max_host: int = 64  # adapters kept in host memory, beside those in use; others are read again when they are next named
    modules: tuple[tuple[str, str], ...] = ()  # (name, folder) of those that are there from the start
    folder: str = ""  # its subfolders are adapters, found by name when a request asks for one
    hub: tuple[str, ...] = ()  # repositories of the hub that requests may name; * stands for any text

    @property
    def on(self) -> bool:
        """True where requests may use adapters."""
        return self.enabled or bool(self.modules or self.folder or self.hub)


@record
class ServerConfig:
    """The HTTP server."""

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str = ""  # path of a Unix socket to listen on instead of host and port
    grpc_port: int | None = None  # of the gRPC interface, on the same host; 0: a free one; None: off
    grpc_max_message_bytes: int = 4 * 2**20  # that a gRPC client may send: a message is read before its key is looked at
    ssl_certfile: str = ""  # PEM; HTTP and gRPC speak TLS with it
    ssl_keyfile: str = ""  # its key; none: the certificate's file has it
    ssl_ca_certs: str = ""  # clients must show a certificate that comes from one of these; none: clients need none
    allowed_origins: tuple[str, ...] = ()  # pages that browsers let ask; "*": every page
    api_keys: tuple[str, ...] = ()  # each may do everything
    api_key_file: str = ""  # names, scopes and salted hashes of keys
    trust_request_template: bool = False  # chat_template in a request's body is rendered
    cache_salt_per_key: bool = False  # no key finds prompt starts of another in the prefix cache
    root_path: str = ""
    tool_parser: str = "auto"  # how the model writes tool calls: a name of llmx.answers, auto (told from the chat template) or none
    reasoning_parser: str = "auto"
    draft_usage: str = "none"  # summary: accepted and rejected drafts in usage
    log_level: str = "info"
    log_format: str = "text"  # text or json
    stats_interval_s: float | None = None  # between lines in the log that say what the engines do; None: none
    drain_timeout_s: float = 30.0  # SIGTERM: running requests may finish for this long
    request_timeout_s: float | None = None  # from arrival to the end of the answer; longer ones end with 408 or an error event
    reader_timeout_s: float = 60.0  # a client that takes nothing of its answer for so long is cut off; 0: never
    response_store_bytes: int = 64 * 2**20  # of /v1/responses, kept in memory; 0: none is kept
    response_max_age_s: float = 3600.0  # since a response was last used
    idle_unload_s: float | None = None  # a model without a request for so long is unloaded until the next one; None: never
    files_dir: str = ""  # folder of /v1/files and /v1/batches; none: they are off
    files_max_bytes: int = 8 * 2**30  # of uploaded files and of what batches wrote
    profile_dir: str = ""  # folder of what POST /stop_profile writes; none: nothing is profiled


@record
class EngineConfig:
    """Everything one engine needs."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    platform: PlatformConfig = field(default_factory=PlatformConfig)
    structured: StructuredConfig = field(default_factory=StructuredConfig)
    draft: DraftConfig = field(default_factory=DraftConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    plugins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # plugin -> option -> value (the hook llmx_add_options)

    @property
    def page_type(self) -> str:
        """Element type of KV pages: f32, bf16, i8 or f8 (e4m3)."""
        own = "f32" if self.model.dtype == "float32" else "bf16"
        return {"auto": own, "float32": "f32", "bfloat16": "bf16", "int8": "i8", "fp8": "f8"}[self.cache.kv_dtype]


@record
class Change:
    """One value that was not the plain default: where it came from and why."""

    path: str
    value: str
    source: str  # flag, file, env, model, platform, machine
    why: str = ""
