"""Counters and gauges of one engine at one moment, by the names that /metrics has: what LLM.get_metrics gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from llmx.engine.outputs import EngineStats
from llmx.record import record

__all__ = ["ACCEPTED_PER_POSITION", "COUNTERS", "GAUGES", "Counter", "Gauge", "Metric", "snapshot"]

Reader = Callable[[EngineStats], float]

GAUGES: tuple[tuple[str, str, Reader], ...] = (
    ("llmx:num_requests_running", "Requests in the running batch", lambda s: s.requests_running),
    ("llmx:num_requests_waiting", "Requests waiting for a place in the batch", lambda s: s.requests_waiting),
    ("llmx:kv_cache_usage_perc", "Share of the KV blocks held by running requests, 0 to 1", lambda s: s.kv_blocks_used / max(1, s.kv_blocks_total)),
    ("llmx:kv_blocks", "KV blocks there are", lambda s: s.kv_blocks_total),
    ("llmx:kv_blocks_held", "KV blocks that running requests hold", lambda s: s.kv_blocks_used),
    ("llmx:kv_blocks_cached", "KV blocks that nobody holds and a prefix hit may take", lambda s: s.kv_blocks_cached),
    ("llmx:step_budget_used_perc", "Share of the token budget that the last step used, 0 to 1", lambda s: s.step_budget_used),
    ("llmx:device_busy_perc", "Share of recent time in which the device worked, 0 to 1", lambda s: s.device_busy),
    ("llmx:lora_adapters", "LoRA adapters that are loaded", lambda s: s.lora_loaded),
    ("llmx:lora_slots", "LoRA adapters that can run at the same time", lambda s: s.lora_slots),
    ("llmx:lora_slots_used", "Device slots that hold a LoRA adapter", lambda s: s.lora_slots_used),
    ("llmx:queue_delay_seconds", "Age of the oldest waiting request", lambda s: s.queue_delay_s),
)
COUNTERS: tuple[tuple[str, str, Reader], ...] = (
    ("llmx:prefix_cache_queries", "Prompt tokens looked up in the prefix cache", lambda s: s.prefix_queries),
    ("llmx:prefix_cache_hits", "Prompt tokens found in the prefix cache", lambda s: s.prefix_hits),
    ("llmx:num_preemptions", "Requests that gave up their KV blocks to run again later", lambda s: s.preemptions),
    ("llmx:spec_decode_num_drafts", "Steps of requests in which drafts were verified", lambda s: s.drafts),
    ("llmx:spec_decode_num_draft_tokens", "Tokens guessed ahead and verified", lambda s: s.draft_tokens),
    ("llmx:spec_decode_num_accepted_tokens", "Tokens guessed ahead that the model drew", lambda s: s.accepted_tokens),
    ("llmx:lora_swaps", "Times a LoRA adapter was brought into a device slot", lambda s: s.lora_swaps),
    ("llmx:prompt_tokens", "Prompt tokens taken in", lambda s: s.prompt_tokens),
    ("llmx:generation_tokens", "Tokens generated", lambda s: s.generation_tokens),
    ("llmx:steps", "Engine steps", lambda s: s.steps),
    ("llmx:forward_seconds", "Time in the model", lambda s: s.forward_us / 1e6),
    ("llmx:sample_seconds", "Time in sampling", lambda s: s.sample_us / 1e6),
    ("llmx:jit_compiles", "Programs compiled while requests waited for them; the warm-up compiles what steps need, so it stays 0", lambda s: s.jit_compiles),
    ("llmx:engine_seconds", "Engine time outside the executor", lambda s: s.python_us / 1e6),
)
# has a label beside the model's: which draft of a step it was, 0 the first
ACCEPTED_PER_POSITION = ("llmx:spec_decode_num_accepted_tokens_per_pos", "Tokens guessed ahead that the model drew, by their place among the drafts")


@record
class Counter:
    """A value that only grows, since the engine's start."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


@record
class Gauge:
    """A value as of now."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


Metric = Counter | Gauge


def snapshot(stats: EngineStats, model_name: str) -> list[Metric]:
    """All counters and gauges. Finished answers are counted by reason under llmx:request_success."""
    labels = {"model_name": model_name}
    counters = [Counter(name, read(stats), labels) for name, _, read in COUNTERS]
    finished = [Counter("llmx:request_success", count, {**labels, "finished_reason": reason}) for reason, count in stats.requests_finished.items()]
    by_position = [(str(position), count) for position, count in enumerate(stats.accepted_per_position)]
    accepted = [Counter(ACCEPTED_PER_POSITION[0], count, {**labels, "position": position}) for position, count in by_position]
    return [*(Gauge(name, read(stats), labels) for name, _, read in GAUGES), *counters, *accepted, *finished]
