"""Options that other engines have and llmx has not: each is taken where it says what llmx does anyway, and refused with the reason otherwise.

So that a command line, a file or LLM(...) written for another engine either means here what it meant there, or says what to use.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from llmx.record import record

__all__ = ["FOREIGN", "REFUSED", "ForeignOption", "foreign_reason"]


@record
class ForeignOption:
    """One such option. accepts: the values, in lower case, that describe what llmx does. why: what is said of any other value.

    kind counts: a JSON object whose numbers must all be 0. short: its one-dash flag.
    """

    name: str
    kind: Literal["bool", "text", "counts"]
    accepts: tuple[str, ...]
    why: str
    short: str = ""
    aliases: tuple[str, ...] = ()
    server: bool = False  # of a server's command line only

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return "--" + self.name.replace("_", "-")

    def takes(self, raw: Any) -> bool:
        """True when `raw` says what llmx does anyway."""
        if self.kind == "counts":
            return _all_zero(raw)
        text = str(raw).strip().lower()
        if self.kind == "bool":
            text = {"1": "true", "yes": "true", "on": "true", "0": "false", "no": "false", "off": "false"}.get(text, text)
        return text in self.accepts


def _all_zero(raw: Any) -> bool:
    try:
        value = json.loads(raw) if isinstance(raw, str) else raw
    except ValueError:
        return False
    counts = list(value.values()) if isinstance(value, dict) else [value]
    return all((one.get("count") if isinstance(one, dict) else one) == 0 for one in counts) and isinstance(value, dict)


_ONE_HOST = (
    "of parallelism there is --tensor-parallel-size on one host (docs/distributed.md): "
    "for more, start one server per device (--device, --port) behind a load balancer, or leave it out"
)
_LORA = "adapters have no further settings (docs/lora.md): leave it out"
_DRAFTS = (
    """the drafter's model is a setting: --speculative-config '{"method": "draft_model", "model": "..."}', """
    "or eagle, eagle3, medusa, mlp_speculator, pard (docs/drafting.md)"
)
_TEXT_ONLY = "models take text only: leave it out"
_CODE = "no code of a model's repository is run: leave it out; a plugin can add an architecture (docs/hooks.md)"
_TRANSFER = "KV is not sent to other engines: leave it out; every server computes its own prompts"
_OFFLOAD = "weights and KV stay on the device: use a smaller model or quantisation, or a lower --max-model-len"
_REDUCE = "ranks add up in a fixed order, by the platform's own collectives: either value, or leave it out"
_COMPILE = (
    "graphs and compilation are the platform's settings, LLMX_<PLATFORM>_GRAPHS and _COMPILE where it has them: "
    "leave it out; `llmx explain MODEL` shows the kernels, --kernel chooses one"
)
_TLS = "client certificates are required where --ssl-ca-certs is given, ciphers are OpenSSL's, files are read at the start: a reverse proxy has more settings"
_CORS = "pages of --allowed-origins may use every method and header, and no cookies"
_POOLING = "pooling models take text and give rows: leave it out"
_RECURRENT = "there are no settings for recurrent layers: leave it out"
_LOGS = "requests are not logged: use --log-level debug for a line per request, /metrics for figures"
_TRACES = "traces are made by a package of their own: pip install llmx-otel (docs/observability.md)"
_METRICS = "the metrics are those of /metrics: leave it out"
_EXTEND = "code is added by plugins, not by class paths: write one (docs/hooks.md), then leave it out"
_PROFILE = "a server records profiles with --profile-dir and POST /start_profile; otherwise attach py-spy or perf to the process"

FOREIGN: tuple[ForeignOption, ...] = (
    ForeignOption("tokenizer_mode", "text", ("auto", "hf"), "tokenizers are read from tokenizer.json or the GGUF file: see --tokenizer"),
    ForeignOption("skip_tokenizer_init", "bool", ("false",), "text needs the tokenizer: leave it out; prompts may be token ids all the same"),
    ForeignOption("trust_remote_code", "bool", ("false",), _CODE),
    ForeignOption("model_impl", "text", ("auto",), "every model runs as a Program of typed operations: leave it out"),
    ForeignOption("config_format", "text", ("auto", "hf"), "config.json or a GGUF file is read: leave it out"),
    ForeignOption("enable_prompt_embeds", "bool", ("false",), "prompts are text or token ids: leave it out"),
    ForeignOption("disable_sliding_window", "bool", ("false",), "windows are the model's own: set --max-model-len to the window or less"),
    ForeignOption("logprobs_mode", "text", ("raw_logprobs",), "logprobs are those of the model, before penalties and temperature: leave it out"),
    ForeignOption("max_logprobs", "text", ("20",), "a request may ask for 20 logprobs at most: give 20, or leave it out"),
    ForeignOption("block_size", "text", ("16", "auto"), "KV blocks hold 16 tokens: leave it out"),
    ForeignOption("swap_space", "text", ("0", "0.0"), "preempted requests are computed again, nothing is swapped: leave it out"),
    ForeignOption("cpu_offload_gb", "text", ("0", "0.0"), _OFFLOAD),
    ForeignOption("enable_chunked_prefill", "bool", ("true",), "prompts are cut into chunks of --max-num-batched-tokens: raise that above the longest prompt"),
    ForeignOption("async_scheduling", "bool", ("false",), "steps are scheduled one after the other: leave it out"),
    ForeignOption("stream_interval", "text", ("1",), "every token is streamed as it comes: leave it out"),
    ForeignOption("pipeline_parallel_size", "text", ("1",), _ONE_HOST, "-pp"),
    ForeignOption("data_parallel_size", "text", ("1",), _ONE_HOST, "-dp"),
    ForeignOption("decode_context_parallel_size", "text", ("1",), _ONE_HOST, "-dcp"),
    ForeignOption("enable_expert_parallel", "bool", ("false",), _ONE_HOST, "-ep"),
    ForeignOption("nnodes", "text", ("1",), _ONE_HOST),
    ForeignOption("distributed_executor_backend", "text", ("mp", "uni"), "ranks are processes of this host: give mp or uni, or leave it out"),
    ForeignOption("disable_custom_all_reduce", "bool", ("true", "false"), _REDUCE),
    ForeignOption("limit_mm_per_prompt", "counts", (), _TEXT_ONLY + ', or set every count to 0, as in {"image": 0}'),
    ForeignOption("language_model_only", "bool", ("true",), _TEXT_ONLY),
    ForeignOption("lora_dtype", "text", ("auto",), "adapters are kept in the type of their files: leave it out"),
    ForeignOption("fully_sharded_loras", "bool", ("false",), "adapters are cut as their base matrices are, with --tensor-parallel-size: leave it out"),
    ForeignOption("attention_backend", "text", ("auto",), "`llmx explain MODEL` lists the providers: choose one with --kernel attention=PROVIDER"),
    ForeignOption("disable_log_stats", "bool", ("true",), "statistics are written to the log with --log-stats-interval SECONDS only; /metrics always has them"),
    ForeignOption("enable_auto_tool_choice", "bool", ("true",), "tool_choice auto is always open: leave it out, or send tool_choice none", server=True),
    ForeignOption("exclude_tools_when_tool_choice_none", "bool", ("true",), "tools that may not be called are not shown to the model", server=True),
    ForeignOption("enable_request_id_headers", "bool", ("true",), "X-Request-Id is always sent back: leave it out", server=True),
    ForeignOption("enable_prompt_tokens_details", "bool", ("true",), "usage always tells the cached tokens: leave it out", server=True),
    ForeignOption("response_role", "text", ("assistant",), "answers have the role assistant: leave it out", server=True),
    ForeignOption("allowed_methods", "text", ('["*"]', "*"), _CORS, server=True),
    ForeignOption("allowed_headers", "text", ('["*"]', "*"), _CORS, server=True),
    ForeignOption("allow_credentials", "bool", ("false",), _CORS + ": leave it out, keys are sent in headers", server=True),
    ForeignOption("api_server_count", "text", ("1",), "one process answers HTTP: leave it out", "-asc", server=True),
)

# name -> why no value of it is taken
REFUSED: dict[str, str] = {
    name: why
    for why, names in (
        ("an adapter's modules are those of its file: leave it out", "lora_target_modules"),
        (_LORA, "default_mm_loras lora_extra_vocab_size"),
        (_LORA, "enable_tower_connector_lora specialize_active_lora enable_mixed_moe_lora_format enable_moe_shared_loras max_lora_cls_labels"),
        ("formats are in docs/tool-calling.md: choose one with --tool-call-parser or --reasoning-parser", "tool_parser_plugin reasoning_parser_plugin"),
        ("strict is a field of each tool: leave it out", "tool_strict_level"),
        ("tools are run by the client: leave it out", "tool_server"),
        ("the markers are those of --reasoning-parser: leave it out; a request sets thinking_token_budget", "reasoning_config"),
        (_DRAFTS, "spec_model speculative_model"),
        (_ONE_HOST, "data_parallel_rank data_parallel_start_rank data_parallel_size_local data_parallel_address data_parallel_rpc_port"),
        (_ONE_HOST, "data_parallel_hybrid_lb data_parallel_external_lb data_parallel_multi_port_external_lb data_parallel_supervisor_port"),
        (_ONE_HOST, "prefill_context_parallel_size all2all_backend enable_eplb eplb_config expert_placement_strategy node_rank master_addr master_port"),
        (_ONE_HOST, "enable_dbo dbo_decode_token_threshold dbo_prefill_token_threshold ubatch_size device_ids numa_bind distributed_timeout_seconds"),
        (_ONE_HOST, "enable_batch_sharded_sampling enable_ep_weight_filter enable_fault_tolerance dp_sync_interval max_parallel_loading_workers headless"),
        (_ONE_HOST, "enable_elastic_ep data_parallel_backend"),
        (_TEXT_ONLY, "mm_encoder_only enable_mm_embeds media_io_kwargs mm_processor_kwargs mm_processor_cache_gb mm_processor_cache_type mm_hasher_algorithm"),
        (_TEXT_ONLY, "mm_encoder_tp_mode mm_encoder_attn_backend mm_encoder_attn_dtype skip_mm_profiling interleave_mm_strings mm_tensor_ipc"),
        (_TEXT_ONLY, "video_pruning_method mm_processor_device mm_ipc_gpu_memory_gb mm_device_do_normalize disable_chunked_mm_input trust_request_mm_kwargs"),
        (_TEXT_ONLY, "allowed_local_media_path allowed_media_domains video_pruning_rate"),
        (_TRANSFER, "kv_transfer_config kv_events_config ec_transfer_config ec_manager_config weight_transfer_config enable_scale_out"),
        (_OFFLOAD, "kv_offloading_size kv_offloading_backend offload_backend offload_group_size offload_num_in_group offload_prefetch_step cpu_offload_params"),
        (_OFFLOAD, "offload_params"),
        ("sleep needs no switch: POST /sleep and /wake_up, or LLM.sleep() (docs/several-models.md): leave it out", "enable_sleep_mode sleep_mode_backend"),
        (_COMPILE, "compilation_config optimization_level cudagraph_capture_sizes max_cudagraph_capture_size attention_config mamba_backend moe_backend"),
        (_COMPILE, "linear_backend kernel_config enable_flashinfer_autotune enable_cudagraph_metrics cudagraph_metrics"),
        (_RECURRENT, "mamba_cache_dtype mamba_ssm_cache_dtype mamba_block_size mamba_cache_mode use_replayssm"),
        ("KV pages have one element type for all layers and no tuning beyond it: see --kv-cache-dtype", "kv_cache_dtype_skip_layers kv_sharing_fast_prefill"),
        ("prefix hits are whole blocks, found by sha256: leave it out", "prefix_caching_hash_algo prefix_match_unit prefix_cache_retention_interval"),
        ("windows need no setting: leave it out", "swa_bounded_replay"),
        (_TLS, "ssl_cert_reqs ssl_ciphers enable_ssl_refresh"),
        (_POOLING, "io_processor_plugin enable_flash_late_interaction"),
        (_EXTEND, "middleware logits_processors scheduler_cls worker_cls worker_extension_cls model_class_overrides hf_config_path"),
        ("requests with stream_options.include_usage get usage: leave it out", "enable_force_include_usage enable_per_request_metrics"),
        ("tokens are texts in answers; POST /tokenize gives ids: leave it out", "return_tokens_as_token_ids enable_tokenizer_info_endpoint"),
        ("streams send events as tokens come, and nothing between: leave it out", "sse_keep_alive_interval"),
        ("system_fingerprint names the version and the platform: leave it out", "fingerprint_mode fingerprint_value"),
        ("one API of each kind, without variants: leave it out", "cohere_is_reasoning_model cohere_format anthropic_disabled_thinking_effort"),
        ("the HTTP parser has fixed limits: leave it out", "h11_max_incomplete_event_size h11_max_header_count renderer_num_workers"),
        ("the backend of schemas and grammars: see --structured-outputs-backend", "structured_outputs_config guided_decoding_backend"),
        ("requests that run at once: see --max-num-seqs", "max_num_active_seqs num_scheduler_steps"),
        ("there is no such kind of model or output here: leave it out", "task diffusion_config engram_config watermark_config"),
        ("for debugging another engine: leave it out", "enable_return_routed_experts return_sampling_mask use_fp64_gumbel enable_trace_replay"),
        (_LOGS, "enable_log_requests disable_log_requests enable_log_outputs enable_log_deltas max_log_len log_error_stack disable_access_log_for_endpoints"),
        (_LOGS, "disable_uvicorn_access_log logging_config log_config_file aggregate_engine_logging enable_logging_iteration_details"),
        (_METRICS, "show_hidden_metrics_for_version kv_cache_metrics kv_cache_metrics_sample custom_histogram_buckets enable_mfu_metrics"),
        (_METRICS, "enable_server_load_tracking"),
        (_TRACES, "otlp_traces_endpoint"),
        ("traces come from llmx-otel: --otel-steps adds a span for each step (docs/observability.md)", "collect_detailed_traces"),
        (_PROFILE, "profiler_config"),
        ("every step's budget is --max-num-batched-tokens, shared by all requests: leave it out", "max_num_scheduled_tokens max_num_partial_prefills"),
        ("admission follows the free KV blocks: leave it out", "scheduler_reserve_full_isl watermark prefill_schedule_interval"),
        ("every group of layers has its own blocks: leave it out", "disable_hybrid_kv_cache_manager"),
        ("the step budget bounds how long a prompt holds up others: see --interactive", "long_prefill_token_threshold performance_mode"),
        ("quantisation is the checkpoint's own, or --quantization int8 | int4 makes one of dense weights", "quantization_config allow_deprecated_quantization"),
        ("weight files are mapped, read once and never executed: leave it out", "safetensors_load_strategy model_loader_extra_config pt_load_map_location"),
        ("weight files are mapped, read once and never executed: leave it out", "ignore_patterns use_tqdm_on_load"),
        ("a hub model has one revision for its files and tokenizer: see --revision", "code_revision tokenizer_revision"),
        ("the template is the model's or the server's: see --chat-template", "chat_template_content_format default_chat_template_kwargs"),
        ("the page of the API is at /docs: leave it out", "disable_fastapi_docs enable_offline_docs"),
        ("gRPC has a port of its own beside HTTP: see --grpc-port", "grpc"),
        ("there is no token-only port: prompts may be token ids on every route, leave it out", "tokens_only"),
        ("platform settings are environment variables LLMX_<PLATFORM>_*: see `llmx platforms`", "additional_config"),
    )
    for name in names.split()
}


def foreign_reason(name: str) -> str | None:
    """Why llmx takes no option `name`, or no other value of it; None for a name that is not known from elsewhere."""
    for option in FOREIGN:
        if name in (option.name, *option.aliases):
            return option.why
    return REFUSED.get(name)
