"""The part of docs/from-vllm.md about Python, written from the tables that the tests run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmx.engine.refused_methods import REFUSED_METHODS
from llmx.foreign_options import FOREIGN, REFUSED
from llmx.options import OPTIONS
from llmx.sampling_params import REFUSED_FIELDS
from tests.engine.llm_table import Refused

BEGIN, END = "<!-- python: written by tests/engine/test_llm_table.py -->", "<!-- end of python -->"

OPTIONS_ELSEWHERE = (  # every option of an engine, as an argument of LLM(...)
    "model runner convert tokenizer tokenizer_mode skip_tokenizer_init trust_remote_code allowed_local_media_path allowed_media_domains dtype quantization "
    "quantization_config allow_deprecated_quantization max_model_len seed enforce_eager revision code_revision tokenizer_revision hf_config_path hf_token "
    "hf_overrides config_format generation_config override_generation_config model_impl max_logprobs logprobs_mode logits_processors io_processor_plugin "
    "enable_prompt_embeds enable_sleep_mode renderer_num_workers pooler_config disable_sliding_window enable_return_routed_experts return_sampling_mask "
    "use_fp64_gumbel enable_trace_replay model_class_overrides served_model_name chat_template load_format download_dir safetensors_load_strategy "
    "model_loader_extra_config ignore_patterns use_tqdm_on_load pt_load_map_location gpu_memory_utilization kv_cache_memory_bytes kv_cache_dtype "
    "enable_prefix_caching prefix_caching_hash_algo prefix_match_unit prefix_cache_retention_interval block_size num_gpu_blocks_override "
    "kv_cache_dtype_skip_layers kv_sharing_fast_prefill swa_bounded_replay mamba_cache_dtype mamba_ssm_cache_dtype mamba_block_size mamba_cache_mode "
    "use_replayssm kv_offloading_size kv_offloading_backend cpu_offload_gb offload_backend offload_group_size offload_num_in_group offload_prefetch_step "
    "cpu_offload_params offload_params max_num_batched_tokens max_num_seqs max_num_active_seqs max_num_scheduled_tokens max_num_queued_reqs "
    "max_num_queued_tokens scheduling_policy enable_chunked_prefill long_prefill_token_threshold disable_chunked_mm_input scheduler_reserve_full_isl "
    "watermark prefill_schedule_interval disable_hybrid_kv_cache_manager async_scheduling stream_interval scheduler_cls tensor_parallel_size "
    "pipeline_parallel_size data_parallel_size data_parallel_rank data_parallel_backend enable_expert_parallel decode_context_parallel_size "
    "prefill_context_parallel_size all2all_backend enable_eplb eplb_config expert_placement_strategy enable_elastic_ep enable_dbo "
    "dbo_decode_token_threshold dbo_prefill_token_threshold ubatch_size distributed_executor_backend nnodes node_rank master_addr master_port "
    "disable_custom_all_reduce worker_cls worker_extension_cls numa_bind device_ids distributed_timeout_seconds enable_batch_sharded_sampling "
    "enable_ep_weight_filter enable_fault_tolerance dp_sync_interval limit_mm_per_prompt language_model_only mm_encoder_only enable_mm_embeds "
    "media_io_kwargs mm_processor_kwargs mm_processor_cache_gb mm_processor_cache_type mm_hasher_algorithm mm_encoder_tp_mode mm_encoder_attn_backend "
    "mm_encoder_attn_dtype skip_mm_profiling interleave_mm_strings video_pruning_rate video_pruning_method mm_tensor_ipc mm_processor_device "
    "mm_ipc_gpu_memory_gb mm_device_do_normalize enable_lora max_loras max_lora_rank max_cpu_loras lora_dtype fully_sharded_loras lora_target_modules "
    "default_mm_loras enable_tower_connector_lora specialize_active_lora enable_mixed_moe_lora_format enable_moe_shared_loras max_lora_cls_labels "
    "compilation_config optimization_level performance_mode cudagraph_capture_sizes max_cudagraph_capture_size attention_backend attention_config "
    "mamba_backend moe_backend linear_backend kernel_config enable_flashinfer_autotune speculative_config spec_method spec_model spec_tokens "
    "reasoning_parser reasoning_parser_plugin reasoning_config structured_outputs_config diffusion_config engram_config watermark_config "
    "kv_transfer_config kv_events_config ec_transfer_config ec_manager_config weight_transfer_config disable_log_stats aggregate_engine_logging "
    "otlp_traces_endpoint collect_detailed_traces show_hidden_metrics_for_version kv_cache_metrics kv_cache_metrics_sample custom_histogram_buckets "
    "cudagraph_metrics enable_mfu_metrics enable_logging_iteration_details per_request_spec_decode_metrics logging_config log_config_file "
    "profiler_config additional_config swap_space"
).split()

Table = Mapping[str, Any]
_BEAM_SAYS = {
    "beam_width": "live beams, and answers given",
    "max_tokens": "new tokens at most",
    "ignore_eos": "no answer ends before max_tokens",
    "temperature": "nothing is drawn: leave it at 0",
    "length_penalty": "scores are divided by new tokens ** length_penalty",
    "include_stop_str_in_output": "the EOS that ended an answer is in its tokens",
    "structured_outputs": "use generate with SamplingParams",
    "skip_special_tokens": "they are in the text with False",
    "watermarking": "watermarks are not supported",
}


def with_part(page: str, part: str) -> str:
    """The page with the part between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{part}\n{END}{after}"


def python_part(says: Mapping[str, str], arguments: Mapping[str, Table], beams: Table) -> str:
    """Markdown: options, methods and fields, each with what it does here or why it is refused."""
    return "\n".join([*_options(), "", *_methods(arguments), "", *_fields(says), "", *_beams(beams)]) + "\n"


def _options() -> list[str]:
    own = {name: option for option in OPTIONS for name in (option.name, *option.aliases)}
    foreign = {name: option for option in FOREIGN for name in (option.name, *option.aliases)}
    rows = []
    for name in OPTIONS_ELSEWHERE:
        if name == "max_logprobs":
            rows.append((name, "works", "the most logprobs that a request may ask for; by default there is no limit"))
        elif name == "disable_log_stats":
            rows.append((name, "works", "either value: nothing is logged, and get_metrics always counts"))
        elif name in own:
            same = "" if own[name].name == name else f"here `{own[name].name}`: "
            rows.append((name, "works", same + own[name].help))
        elif name in foreign:
            taken = " or ".join(f"`{value}`" for value in foreign[name].accepts if value)
            rows.append((name, f"only {taken}" if taken else "only its default", foreign[name].why))
        else:
            rows.append((name, "refused", REFUSED[name]))
    return ["### Arguments of `LLM`, `EngineArgs` and `AsyncEngineArgs`", "", *_table(("argument", "here", ""), rows)]


def _methods(arguments: Mapping[str, Table]) -> list[str]:
    rows = []
    for method, taken in arguments.items():
        refused = [name for name, check in taken.items() if isinstance(check, Refused)]
        works = ", ".join(f"`{name}`" for name in taken if name not in refused) or "none"
        rows.append((f"{method}()", "works", f"takes {works}" + (f"; refuses {', '.join(f'`{name}`' for name in refused)}" if refused else "")))
    rows += [(f"{name}()", "refused", why) for name, why in REFUSED_METHODS.items()]
    return ["### Methods of `LLM`", "", *_table(("method", "here", ""), rows)]


def _fields(says: Mapping[str, str]) -> list[str]:
    rows = [(name, "works", what) for name, what in says.items()]
    rows += [("structured_outputs", "works", "StructuredOutputsParams: see structured-output.md")]
    rows += [("logits_processors", "works", "names of processors that plugins bring, with their arguments, not functions: see hooks.md")]
    rows += [("priority", "works", 'llmx\'s own: lower runs earlier; with scheduling_policy="priority" only')]
    rows += [(name, "refused", why) for name, why in REFUSED_FIELDS.items()]
    return ["### Fields of `SamplingParams`", "", *_table(("field", "here", ""), rows)]


def _beams(beams: Table) -> list[str]:
    rows = [(name, "refused" if isinstance(check, Refused) else "works", _BEAM_SAYS[name]) for name, check in beams.items()]
    return ["### Fields of `BeamSearchParams`", "", *_table(("field", "here", ""), rows)]


def _table(head: tuple[str, ...], rows: list[tuple[str, str, str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|---|---|---|"]
    return lines + [f"| `{name}` | {state} | {_cell(what)} |" for name, state, what in rows]


def _cell(what: str) -> str:
    return what.replace("|", "\\|").replace("<", "&lt;")
