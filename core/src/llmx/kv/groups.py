"""Groups: how KV memory is split between them, and how far a prefix hit reaches in each."""

from __future__ import annotations

from collections.abc import Sequence

from llmx.errors import ConfigError
from llmx.kv.block_hash import BlockHash
from llmx.kv.block_pool import BlockPool
from llmx.kv.spec import GroupNeed, GroupPlan, KVPlan

__all__ = ["blocks_for", "first_needed_block", "hit_blocks", "plan_kv"]


def blocks_for(need: GroupNeed, num_tokens: int, max_chunk: int) -> int:
    """Blocks that one request of `num_tokens` tokens holds at most at one time, computed in chunks of at most `max_chunk` tokens."""
    if need.spec.kind == "state":
        return 1
    blocks = -(-num_tokens // need.block_tokens)
    if need.spec.kind == "sliding" and need.spec.window is not None:
        # A chunk is written before passed blocks are given back; one block more for the unaligned window start.
        return min(blocks, -(-(need.spec.window + max_chunk) // need.block_tokens) + 1)
    return blocks


def plan_kv(needs: Sequence[GroupNeed], *, kv_bytes: int, max_requests: int, max_model_len: int, max_chunk: int, num_blocks: int | None = None) -> KVPlan:
    """Split `kv_bytes` so that each group can hold about the same number of full-length requests.

    num_blocks fixes the number per group instead. Raises ConfigError when not even one request of max_model_len tokens fits.
    """
    if num_blocks is not None:
        plan = KVPlan(tuple(GroupPlan(need, num_blocks) for need in needs), max_requests, max_model_len)
    else:
        per_request = sum(blocks_for(need, max_model_len, max_chunk) * need.block_bytes for need in needs)
        share = kv_bytes / per_request if per_request else 0.0
        groups = tuple(GroupPlan(need, int(share * blocks_for(need, max_model_len, max_chunk)) + 1) for need in needs)
        plan = KVPlan(groups, max_requests, max_model_len)
    for group in plan.groups:
        wanted = blocks_for(group.need, max_model_len, max_chunk)
        if group.num_blocks - 1 < wanted:
            per_request = sum(blocks_for(need, max_model_len, max_chunk) * need.block_bytes for need in needs)
            fits = _longest(plan, max_chunk)
            shorten = f"set --max-model-len to {fits} or less, or " if fits else ""
            raise ConfigError(
                f"the KV cache of {plan.total_bytes / 2**20:.0f} MiB holds {group.num_blocks - 1} blocks of {group.need.block_tokens} tokens, "
                f"but one request of max_model_len = {max_model_len} needs {wanted} ({per_request / 2**20:.0f} MiB for all groups): "
                f"{shorten}give the cache more memory with --kv-cache-memory-bytes",
                field="max_model_len",
            )
    return plan


def _longest(plan: KVPlan, max_chunk: int) -> int:
    low, high = 0, plan.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        if all(blocks_for(group.need, middle, max_chunk) <= group.num_blocks - 1 for group in plan.groups):
            low = middle
        else:
            high = middle - 1
    return low


def hit_blocks(needs: Sequence[GroupNeed], pools: Sequence[BlockPool], hashes: Sequence[BlockHash], limit: int) -> int:
    """Longest prefix, in blocks and at most `limit`, at which every group has what it needs.

    full: all blocks; sliding: those that the next token's window still sees; state: none (no checkpoint is kept).
    All token groups have blocks of one size; hashes[i] names block i.
    """
    length = min(limit, len(hashes))
    for need, pool in zip(needs, pools, strict=True):
        if need.spec.kind == "state":
            return 0
        if need.spec.kind != "sliding":
            length = _full_run(pool, hashes, length)
    for blocks in range(length, 0, -1):
        if all(_window_hit(need, pool, hashes, blocks) for need, pool in zip(needs, pools, strict=True) if need.spec.kind == "sliding"):
            give_back = 1 if any(need.next_token for need in needs) else 0
            return max(blocks - give_back, 0)
    return 0


def first_needed_block(need: GroupNeed, num_tokens: int) -> int:
    """Index of the first block that a token at position `num_tokens` or later still reads."""
    if need.spec.kind != "sliding" or need.spec.window is None:
        return 0
    return max(num_tokens - need.spec.window + 1, 0) // need.block_tokens


def _full_run(pool: BlockPool, hashes: Sequence[BlockHash], limit: int) -> int:
    for index in range(limit):
        if pool.find(hashes[index]) is None:
            return index
    return limit


def _window_hit(need: GroupNeed, pool: BlockPool, hashes: Sequence[BlockHash], length: int) -> bool:
    first = first_needed_block(need, length * need.block_tokens)
    return all(pool.find(hashes[index]) is not None for index in range(first, length))
