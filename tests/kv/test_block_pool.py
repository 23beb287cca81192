"""Blocks: who holds them, which is evicted first, and that a planted fault is noticed."""

from __future__ import annotations

import random
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmx.kv.block_hash import chain_hash, chain_start
from llmx.kv.block_pool import BlockPool, BlockState
from llmx.kv.manager import KVManager


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(4)
    assert sorted(pool.allocate() for _ in range(3)) == [1, 2, 3]
    with pytest.raises(IndexError):
        pool.allocate()


def test_a_pool_needs_two_blocks() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        BlockPool(1)


def test_cached_blocks_are_taken_last_and_oldest_first() -> None:
    pool = BlockPool(5)
    first, second, third = (pool.allocate() for _ in range(3))
    pool.publish(first, b"1")
    pool.publish(second, b"2")
    for block in (second, first, third):
        pool.release(block)
    assert pool.num_cached == 2 and pool.num_available == 4
    assert [pool.allocate() for _ in range(2)] == [third, 4]  # free ones first, the last given back before others
    assert pool.allocate() == second and pool.find(b"2") is None  # released before the other
    assert pool.find(b"1") == first


def test_a_hit_revives_a_cached_block() -> None:
    pool = BlockPool(3)
    block = pool.allocate()
    pool.publish(block, b"x")
    pool.release(block)
    pool.hold(block)
    assert pool.refs(block) == 1 and pool.num_cached == 0


def test_the_first_of_two_equal_blocks_wins() -> None:
    pool = BlockPool(4)
    first, second = pool.allocate(), pool.allocate()
    assert pool.publish(first, b"x") and not pool.publish(second, b"x")
    assert pool.find(b"x") == first
    pool.release(second)
    assert pool.num_cached == 0  # the private one is simply free


def test_releasing_too_often_is_a_bug() -> None:
    pool = BlockPool(3)
    block = pool.allocate()
    pool.release(block)
    with pytest.raises(ValueError, match="more often"):
        pool.release(block)


def test_reset_forgets_contents_and_keeps_holders() -> None:
    pool = BlockPool(4)
    held, cached = pool.allocate(), pool.allocate()
    pool.publish(held, b"h")
    pool.publish(cached, b"c")
    pool.release(cached)
    pool.reset_cache()
    assert pool.find(b"h") is None and pool.find(b"c") is None and pool.num_cached == 0
    pool.check_integrity([[held]])


def test_integrity_notices_a_leak_a_loss_and_a_double() -> None:
    pool = BlockPool(4)
    block = pool.allocate()
    pool.check_integrity([[block]])
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([])
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([[block], [block]])
    pool._free.pop()
    with pytest.raises(AssertionError, match="lost"):
        pool.check_integrity([[block]])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_order_keeps_integrity(seed: int) -> None:
    rng = random.Random(seed)
    pool, tables, count = BlockPool(rng.randrange(2, 20)), [[]], 0
    for _ in range(200):
        held = [block for table in tables for block in table]
        move = rng.random()
        if move < 0.45 and pool.num_available:
            tables[-1].append(pool.allocate())
        elif move < 0.7 and held:
            table = next(table for table in tables if table)
            pool.release(table.pop())
        elif move < 0.8 and held:
            count += 1
            pool.publish(rng.choice(held), b"%d" % rng.randrange(12))
        elif move < 0.9:
            found = pool.find(b"%d" % rng.randrange(12))
            if found is not None:
                pool.hold(found)
                tables.append([found])
        pool.check_integrity(tables)


def test_states_tell_of_every_block() -> None:
    pool = BlockPool(6)
    held, cached, freed = pool.allocate(), pool.allocate(), pool.allocate()
    pool.publish(cached, chain_hash(chain_start(""), [1]))
    pool.release(cached)
    pool.release(freed)
    states = list(pool.states())
    assert len(states) == 5 and states[held - 1] == BlockState.HELD and states[cached - 1] == BlockState.CACHED
    assert states.count(BlockState.FREE) == 3 and states[freed - 1] == BlockState.FREE


def test_the_map_is_runs_over_the_blocks_of_all_groups() -> None:
    rng, pools = random.Random(3), [BlockPool(40), BlockPool(2), BlockPool(25)]
    for pool in pools:
        for number, block in enumerate([pool.allocate() for _ in range(pool.num_available - 1)]):
            if rng.random() < 0.5:
                pool.publish(block, b"%d" % number)
            if rng.random() < 0.6:
                pool.release(block)
    runs = KVManager.block_map(SimpleNamespace(pools=pools))  # type: ignore[arg-type]
    assert [state for state, run in runs for _ in range(run)] == [*pools[0].states(), *pools[1].states(), *pools[2].states()]
    assert all(before[0] != after[0] for before, after in pairwise(runs)) and len(runs) > 10
    assert sum(run for state, run in runs if state == BlockState.HELD) == sum(pool.num_held for pool in pools)
    assert sum(run for state, run in runs if state == BlockState.CACHED) == sum(pool.num_cached for pool in pools) > 0


def test_hashes_chain_and_depend_on_everything_before() -> None:
    start = chain_start("numerics", b"salt")
    assert start != chain_start("numerics", b"other") != chain_start("else", b"salt")
    assert chain_start("a", b"bc", b"d") != chain_start("a", b"b", b"cd")
    tokens = list(range(16))
    assert chain_hash(start, tokens) != chain_hash(chain_hash(start, tokens), tokens)
    assert chain_hash(start, tokens) == chain_hash(start, tokens)
