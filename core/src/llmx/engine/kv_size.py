"""How large the KV cache becomes, and how many requests that is; the same rules for a start and for `llmx explain`."""

from __future__ import annotations

from collections.abc import Sequence

from llmx.config import CacheConfig
from llmx.errors import ConfigError
from llmx.executor.base import Executor
from llmx.kv.groups import blocks_for, plan_kv
from llmx.kv.spec import GroupNeed, KVPlan
from llmx.record import record

__all__ = ["MemoryEstimate", "estimate_memory", "request_bytes", "size_kv"]

_MAX_DEFAULT_KV = 8 << 30  # bytes; a larger cache is taken only when asked for


def request_bytes(needs: Sequence[GroupNeed], num_tokens: int, max_chunk: int) -> int:
    """Bytes of KV that one request of `num_tokens` tokens holds at most."""
    return sum(blocks_for(need, num_tokens, max_chunk) * need.block_bytes for need in needs)


def size_kv(cache: CacheConfig, executor: Executor, max_model_len: int, free: int) -> KVPlan:
    """The KV cache beside weights that are loaded, when `free` bytes are left. Raises ConfigError when not one full request fits."""
    needs, limits = executor.kv_needs(), executor.limits
    kv_bytes = cache.kv_bytes if cache.kv_bytes is not None else _default_bytes(cache, executor, max_model_len, free)
    return plan_kv(
        needs, kv_bytes=kv_bytes, max_requests=limits.max_requests, max_model_len=max_model_len, max_chunk=limits.max_tokens, num_blocks=cache.num_blocks
    )


def _default_bytes(cache: CacheConfig, executor: Executor, max_model_len: int, free: int) -> int:
    needs, limits = executor.kv_needs(), executor.limits
    one = request_bytes(needs, max_model_len, limits.max_tokens)
    useful = one * limits.max_requests + sum(need.block_bytes for need in needs)
    return min(int(free * cache.memory_fraction), useful, max(_MAX_DEFAULT_KV, one))


@record
class MemoryEstimate:
    """What a model takes of a device, in bytes. requests: of max_model_len tokens, that the KV cache holds; advice: what to set when that is 0."""

    device_bytes: int
    weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_request: int
    kv_bytes: int
    kv_tokens: int
    max_model_len: int
    requests: int
    advice: tuple[str, ...] = ()


def estimate_memory(cache: CacheConfig, executor: Executor, max_model_len: int, *, device_bytes: int, weight_bytes: int) -> MemoryEstimate:
    """What would happen on a device with `device_bytes` free before the weights are loaded."""
    needs, chunk = executor.kv_needs(), executor.limits.max_tokens
    one, free = request_bytes(needs, max_model_len, chunk), device_bytes - weight_bytes
    per_token = sum(need.block_bytes // need.block_tokens for need in needs if need.spec.kind != "state")

    def estimate(kv_bytes: int, tokens: int, requests: int, advice: tuple[str, ...] = ()) -> MemoryEstimate:
        return MemoryEstimate(device_bytes, weight_bytes, per_token, one, kv_bytes, tokens, max_model_len, requests, advice)

    if free <= 0:
        return estimate(0, 0, 0, (f"the weights alone need {_mib(weight_bytes)}: take a smaller model or quantisation",))
    try:
        plan = size_kv(cache, executor, max_model_len, free)
    except ConfigError as error:
        return estimate(_budget(cache, executor, max_model_len, free), 0, 0, (str(error), *_remedy(one, free, device_bytes)))
    if plan.total_bytes > free:
        left = f"{_mib(free)} are left beside the weights: lower --kv-cache-memory-bytes or --num-blocks"
        return estimate(plan.total_bytes, 0, 0, (f"the KV cache would take {_mib(plan.total_bytes)}, but {left}",))
    tokens = min((group.num_blocks - 1) * group.need.block_tokens for group in plan.groups)
    requests = min((group.num_blocks - 1) // max(blocks_for(group.need, max_model_len, chunk), 1) for group in plan.groups)
    return estimate(plan.total_bytes, tokens, requests)


def _budget(cache: CacheConfig, executor: Executor, max_model_len: int, free: int) -> int:
    return cache.kv_bytes if cache.kv_bytes is not None else _default_bytes(cache, executor, max_model_len, free)


def _remedy(one: int, free: int, device: int) -> tuple[str, ...]:
    """How a full request could fit after all."""
    needed = int(one * 1.02) + (1 << 20)  # blocks are whole, and every group has its null block
    if needed <= free:
        return (f"it fits with --kv-cache-memory-bytes {-(-needed >> 20)}Mi",)
    return (f"a full request needs a device with {_mib(device + needed - free)}",)


def _mib(size: int) -> str:
    return f"{-(-size >> 20)} MiB"
