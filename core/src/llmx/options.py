"""Every option of an engine and its server, declared once: name, where it goes, type, help.

The command line, the configuration file, the environment (LLMX_<NAME>) and LLM(...) all take these names. A new option names
its owner component by its path.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from llmx.record import record

__all__ = ["OPTIONS", "Option", "PluginOption"]

Kind = Literal["str", "int", "float", "bool", "bytes", "tokens", "list", "json"]


@record
class Option:
    """One option. path: field of EngineConfig. kind bytes takes 4G, tokens takes 8k, list may be given several times, json is an object.

    synonyms: (other spelling, value) pairs for values that other engines name otherwise.
    """

    name: str
    path: str
    kind: Kind
    help: str
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    server: bool = False  # concerns the HTTP server only
    secret: bool = False  # its value is shown nowhere
    synonyms: tuple[tuple[str, str], ...] = ()
    short: str = ""  # one-dash flag; of `llmx serve` only

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"LLMX_{self.name.upper()}"


@record
class PluginOption(Option):
    """An option that a plugin adds (the hook llmx_add_options). path is plugins.PLUGIN.NAME. minimum, maximum: of a number."""

    plugin: str = ""
    default: Any = field(default=None, compare=False)  # where nothing sets it
    minimum: float | None = None
    maximum: float | None = None

    @property
    def key(self) -> str:
        """Its name within the plugin's section."""
        return self.path.rpartition(".")[2]


OPTIONS: tuple[Option, ...] = (
    Option("model", "model.source", "str", "embedded name, .gguf file, directory with config.json and safetensors, or hub model: org/name, org/name:QUANT"),
    Option("served_model_name", "model.served_names", "list", "name of the model in the API; several are allowed"),
    Option("max_model_len", "model.max_model_len", "tokens", "longest prompt plus answer in tokens; the model's own limit by default"),
    Option(
        "dtype",
        "model.dtype",
        "str",
        "auto: weights as stored, bf16 pages; float32: everything in fp32",
        ("auto", "float32"),
        synonyms=(("float", "float32"),),
    ),
    Option("quantization", "model.quantization", "str", "int8, int4: quantise dense weights at load; else their storage (gguf, q4_k, none)", short="-q"),
    Option(
        "load_format",
        "model.load_format",
        "str",
        "file format that the weights must have",
        ("auto", "safetensors", "gguf"),
        synonyms=(("hf", "safetensors"),),
    ),
    Option("hf_overrides", "model.hf_overrides", "json", 'JSON object that changes config.json, e.g. {"rope_theta": 500000}'),
    Option(
        "generation_config",
        "model.generation_config",
        "str",
        "sampling defaults: auto takes the model's generation_config.json, none ignores it; or a folder or file to take instead",
        synonyms=(("vllm", "none"), ("llmx", "none")),
    ),
    Option("override_generation_config", "model.generation_overrides", "json", 'JSON object of sampling defaults, e.g. {"temperature": 0.6}'),
    Option("chat_template", "model.chat_template", "str", "file with a Jinja chat template, or the template itself"),
    Option("tokenizer", "model.tokenizer", "str", "directory, tokenizer.json or hub model whose tokenizer to use, when not the model's own"),
    Option("seed", "model.seed", "int", "seeds the seeds of requests that bring none"),
    Option("runner", "model.runner", "str", "generate: text; pooling: vectors, also from a decoder; auto: as its files say", ("auto", "generate", "pooling")),
    Option("convert", "model.convert", "str", "embed: take a decoder's head off, for vectors; auto: as the runner says", ("auto", "none", "embed", "classify")),
    Option("pooler_config", "model.pooler_config", "json", 'JSON object over the model\'s own pooling, e.g. {"pooling_type": "MEAN", "use_activation": false}'),
    Option("revision", "model.revision", "str", "branch, tag or commit of a hub model; main by default"),
    Option("hf_token", "model.hf_token", "str", "token for the Hugging Face hub; by default HF_TOKEN, or that of `hf auth login`", secret=True),
    Option("download_dir", "model.download_dir", "str", "folder for hub models; by default huggingface_hub's cache"),
    Option("offline", "model.offline", "bool", "never connect to the hub: use what is on this machine"),
    Option("cache_dir", "model.cache_dir", "str", "folder for tokenizers that take long to build; by default $XDG_CACHE_HOME/llmx or ~/.cache/llmx"),
    Option("kv_cache_memory_bytes", "cache.kv_bytes", "bytes", "size of the KV cache, e.g. 4G; by default a share of the free memory"),
    Option("num_blocks", "cache.num_blocks", "int", "KV blocks per group instead of a size", aliases=("num_gpu_blocks_override",)),
    Option(
        "kv_cache_dtype", "cache.kv_dtype", "str", "element type of the KV cache; int8 and fp8 halve its size", ("auto", "float32", "bfloat16", "int8", "fp8")
    ),
    Option("enable_prefix_caching", "cache.prefix_caching", "bool", "reuse the KV of equal prompt starts"),
    Option(
        "memory_fraction",
        "cache.memory_fraction",
        "float",
        "share of the free memory that the KV cache may take by default",
        aliases=("gpu_memory_utilization", "device_memory_utilization"),
    ),
    Option("max_num_batched_tokens", "scheduler.max_num_batched_tokens", "tokens", "tokens that one step computes at most"),
    Option("max_num_seqs", "scheduler.max_num_seqs", "int", "requests that run at the same time at most"),
    Option("scheduling_policy", "scheduler.policy", "str", "order of requests", ("fcfs", "priority")),
    Option("interactive", "scheduler.interactive", "bool", "keep the gaps between tokens short while prompts are computed; off favours throughput"),
    Option("max_num_queued_reqs", "scheduler.max_queued_requests", "int", "waiting requests; more are answered 503"),
    Option("max_num_queued_tokens", "scheduler.max_queued_tokens", "tokens", "tokens of waiting requests; more are answered 503; no limit by default"),
    Option(
        "queue_timeout",
        "scheduler.queue_timeout_s",
        "float",
        "seconds that a request may wait for its first step, then it is answered 503; no limit by default",
    ),
    Option("recovery_timeout", "scheduler.recovery_timeout_s", "float", "seconds that requests wait for an engine that is started again"),
    Option(
        "step_timeout",
        "scheduler.step_timeout_s",
        "float",
        "seconds without the end of a step after which the engine counts as hung and is started again; 0: never; by default 30, or 10 long steps",
    ),
    Option("platform", "platform.name", "str", "platform to use; found by itself when only one is present"),
    Option("device", "platform.device", "str", "device of the platform"),
    Option("threads", "platform.threads", "int", "compute threads; all usable processors by default"),
    Option(
        "tensor_parallel_size",
        "platform.tensor_parallel_size",
        "int",
        "ranks that share every layer, each a process with its part of the threads (docs/distributed.md)",
        short="-tp",
    ),
    Option("enforce_eager", "platform.enforce_eager", "bool", "no graph capture and no compilation of steps, on platforms that have them"),
    Option("kernel", "platform.kernels", "list", "KIND=PROVIDER[,PROVIDER]: providers of an op kind in the order wanted; one alone is forced"),
    Option("disable_kernel", "platform.disabled", "list", "provider that may not be used"),
    Option("allow_plugin", "platform.allow_plugins", "list", "GROUP:NAME that may be loaded; by default all"),
    Option("deny_plugin", "platform.deny_plugins", "list", "GROUP:NAME that may not be loaded"),
    Option("structured_outputs_backend", "structured.backend", "str", "backend for schemas and grammars that is asked first; auto: the best installed"),
    Option("grammar_timeout", "structured.timeout_s", "float", "seconds that compiling one schema or grammar may take"),
    Option(
        "speculative_config",
        "draft.settings",
        "json",
        'JSON object that switches drafting on, e.g. {"method": "ngram", "num_speculative_tokens": 4}; see docs/drafting.md',
        short="-sc",
    ),
    Option(
        "spec_method",
        "draft.method",
        "str",
        "drafter: ngram, suffix, draft_model, eagle or another of docs/drafting.md, or a plugin's; instead of a method in the speculative config",
    ),
    Option(
        "spec_tokens",
        "draft.num_tokens",
        "int",
        "tokens that a request may draft per step at most",
        aliases=("num_speculative_tokens",),
    ),
    Option("enable_lora", "lora.enabled", "bool", "serve LoRA adapters, loaded while the server runs; see docs/lora.md"),
    Option("lora_modules", "lora.modules", "list", "adapter that is there from the start, NAME=FOLDER; several are allowed; switches adapters on"),
    Option("lora_dir", "lora.folder", "str", "folder of adapters, each found by its name when a request gives one; switches adapters on"),
    Option("lora_hub", "lora.hub", "list", "repository of an adapter on the hub that requests may name, or ORG/*; several are allowed; switches adapters on"),
    Option("max_loras", "lora.max_loras", "int", "different adapters that run at the same time; more may be loaded"),
    Option("max_cpu_loras", "lora.max_host", "int", "adapters kept in host memory; one that was dropped is read again when a request names it"),
    Option("max_lora_rank", "lora.max_rank", "int", "greatest rank of an adapter"),
    Option("host", "server.host", "str", "address to listen on", server=True),
    Option("port", "server.port", "int", "port to listen on", server=True),
    Option(
        "tool_call_parser", "server.tool_parser", "str", "how the model writes tool calls: auto (told from its chat template), none, or a name", server=True
    ),
    Option("reasoning_parser", "server.reasoning_parser", "str", "how the model marks its reasoning: auto, none, or a name", server=True),
    Option("uds", "server.uds", "str", "path of a Unix socket to listen on, instead of host and port", server=True),
    Option("api_key", "server.api_keys", "list", "key that clients must send; several are allowed", server=True, secret=True),
    Option("api_key_file", "server.api_key_file", "str", "file of keys with scopes, as salted hashes; `llmx key` writes it", server=True),
    Option(
        "trust_request_chat_template",
        "server.trust_request_template",
        "bool",
        "take chat_template from requests: it is rendered in a sandbox, in a process of its own with a limit of time and memory; refused by default",
        server=True,
    ),
    Option(
        "cache_salt_per_key",
        "server.cache_salt_per_key",
        "bool",
        "no key finds prompt starts of another in the prefix cache, so that time tells nothing of others' prompts; needs keys",
        server=True,
    ),
    Option("ssl_certfile", "server.ssl_certfile", "str", "certificate chain in PEM: HTTP and gRPC are served with TLS", server=True),
    Option("ssl_keyfile", "server.ssl_keyfile", "str", "its private key in PEM, without a password; by default it is in the same file", server=True),
    Option("ssl_ca_certs", "server.ssl_ca_certs", "str", "certificates in PEM: clients must show one that comes from them", server=True),
    Option("allowed_origins", "server.allowed_origins", "list", "page that a browser lets ask (CORS), e.g. https://example.com; several; *: all", server=True),
    Option("grpc_port", "server.grpc_port", "int", "port for gRPC, on the same host; 0: a free one; off by default; needs llmx-server[grpc]", server=True),
    Option("grpc_max_message_bytes", "server.grpc_max_message_bytes", "bytes", "largest message that a gRPC client may send, up to 32Mi", server=True),
    Option("root_path", "server.root_path", "str", "path prefix behind a proxy", server=True),
    Option(
        "log_level",
        "server.log_level",
        "str",
        "how much the server logs",
        ("debug", "info", "warning", "error"),
        aliases=("uvicorn_log_level",),
        server=True,
        synonyms=(("trace", "debug"), ("critical", "error")),
    ),
    Option(
        "per_request_spec_decode_metrics",
        "server.draft_usage",
        "str",
        "summary: usage tells the accepted and rejected drafts of each request",
        ("none", "summary"),
        server=True,
    ),
    Option("log_format", "server.log_format", "str", "text, or json: one object per line", ("text", "json"), server=True),
    Option(
        "log_stats_interval",
        "server.stats_interval_s",
        "float",
        "seconds between lines in the log that say how many tokens and requests an engine handles; none by default",
        server=True,
    ),
    Option(
        "drain_timeout",
        "server.drain_timeout_s",
        "float",
        "seconds that running requests may finish in after SIGTERM",
        aliases=("shutdown_timeout",),
        server=True,
    ),
    Option(
        "request_timeout",
        "server.request_timeout_s",
        "float",
        "seconds from a request's arrival to its end, then it is answered 408; no limit by default",
        server=True,
    ),
    Option(
        "reader_timeout",
        "server.reader_timeout_s",
        "float",
        "seconds in which a client must take some of its answer, or it is cut off; 0: no limit",
        server=True,
    ),
    Option(
        "response_store_bytes",
        "server.response_store_bytes",
        "bytes",
        "memory for responses of /v1/responses that can be fetched and continued; 0: none is kept",
        server=True,
    ),
    Option("response_max_age", "server.response_max_age_s", "float", "seconds that a response is kept after its last use", server=True),
    Option(
        "idle_unload",
        "server.idle_unload_s",
        "float",
        "seconds without a request after which a model is unloaded; the next request for it loads it again; never by default",
        server=True,
    ),
    Option("profile_dir", "server.profile_dir", "str", "folder for the profiles of POST /start_profile and /stop_profile; off by default", server=True),
    Option("files_dir", "server.files_dir", "str", "folder for /v1/files and /v1/batches, of this server alone; off by default", server=True),
    Option("files_max_bytes", "server.files_max_bytes", "bytes", "bytes of files in its folder; uploads beyond are refused", server=True),
)
