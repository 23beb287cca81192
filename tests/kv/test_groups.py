"""The split of KV memory, and how far a prefix hit reaches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmx.errors import ConfigError
from llmx.kv.block_pool import BlockPool
from llmx.kv.groups import blocks_for, first_needed_block, hit_blocks, plan_kv
from llmx.kv.spec import GroupNeed, KVSpec

FULL = GroupNeed(KVSpec("full", 1, 8, 8), ("a",), 16, 1000, "bf16")
WINDOW = GroupNeed(KVSpec("sliding", 1, 8, 8, window=32), ("b",), 16, 1000, "bf16")
STATE = GroupNeed(KVSpec("state", state=((4,),)), ("c",), 1, 500, "f32")


def test_blocks_for_each_kind() -> None:
    assert [blocks_for(FULL, tokens, 64) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]
    assert blocks_for(WINDOW, 1000, 64) == 7  # (32 + 64) / 16 + 1
    assert blocks_for(WINDOW, 20, 64) == 2
    assert blocks_for(STATE, 1000, 64) == 1


def test_memory_is_split_by_need() -> None:
    plan = plan_kv([FULL, WINDOW], kv_bytes=2_000_000, max_requests=8, max_model_len=160, max_chunk=32)
    full, window = (group.num_blocks - 1 for group in plan.groups)
    assert abs(full - 2 * window) <= 1 and full > 1000  # 10 blocks against (32 + 32) / 16 + 1 = 5
    assert plan.total_bytes <= 2_000_000 + 2 * 1000  # the null blocks come on top


def test_too_little_memory_names_what_fits() -> None:
    with pytest.raises(ConfigError, match=r"--max-model-len to 144 or less"):
        plan_kv([FULL], kv_bytes=0, max_requests=8, max_model_len=160, max_chunk=32, num_blocks=10)


def test_hit_needs_every_group() -> None:
    pools = [BlockPool(10), BlockPool(10)]
    hashes = [b"%d" % index for index in range(5)]
    for pool in pools:
        for digest in hashes[:4]:
            pool.publish(pool.allocate(), digest)
    assert hit_blocks([FULL, WINDOW], pools, hashes, 5) == 4
    assert hit_blocks([FULL, WINDOW], pools, hashes, 3) == 3
    assert hit_blocks([FULL, WINDOW, STATE], [*pools, BlockPool(4)], hashes, 5) == 0
    assert hit_blocks([replace(FULL, next_token=True)], pools[:1], hashes, 5) == 3


def test_window_hit_needs_only_the_last_window() -> None:
    full, window = BlockPool(10), BlockPool(10)
    hashes = [b"%d" % index for index in range(6)]
    for digest in hashes:
        full.publish(full.allocate(), digest)
    for digest in hashes[2:5]:
        window.publish(window.allocate(), digest)
    # at 5 blocks = 80 tokens the next token sees positions 49..79: blocks 3 and 4
    assert first_needed_block(WINDOW, 80) == 3
    assert hit_blocks([FULL, WINDOW], [full, window], hashes, 6) == 5
    assert hit_blocks([FULL, WINDOW], [full, window], hashes, 3) == 0
