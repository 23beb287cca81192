"""KVManager: gives requests their blocks and says what the executor must be told.

Every change of a block table is recorded as (slot, index, block) per group, every page operation as (op, group, src, dst);
the scheduler moves both into the Step that it is building (`take_changes`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmx.batch import KvOp
from llmx.kv.block_hash import chain_hash, chain_start
from llmx.kv.block_pool import BlockPool
from llmx.kv.groups import blocks_for, first_needed_block, hit_blocks
from llmx.kv.spec import KVPlan
from llmx.request import Request

__all__ = ["KVManager"]


class KVManager:
    """Blocks of all groups, prefix hits, forks with copy-on-write, and window freeing."""

    def __init__(self, plan: KVPlan, *, max_chunk: int, numerics: str = "", prefix_caching: bool = True) -> None:
        self.plan = plan
        self.max_chunk = max_chunk  # tokens that one request brings to one step at most
        self.needs = [group.need for group in plan.groups]
        self.pools = [BlockPool(group.num_blocks) for group in plan.groups]
        self.prefix_caching = prefix_caching
        self._numerics = numerics
        self.block_tokens = max((need.block_tokens for need in self.needs if need.spec.kind != "state"), default=1)
        self._new_blocks: list[list[tuple[int, int, int]]] = [[] for _ in self.needs]
        self._ops: list[tuple[int, int, int, int]] = []
        self._unchanged = tuple(np.empty((0, 3), np.int32) for _ in self.needs), np.empty((0, 4), np.int32)
        self.prefix_queries = 0  # tokens looked up, since the start
        self.prefix_hits = 0  # tokens found

    def fits_ever(self, num_tokens: int) -> bool:
        """True when a request of this many tokens fits into the empty cache."""
        return all(blocks_for(need, num_tokens, self.max_chunk) <= pool.num_blocks - 1 for need, pool in zip(self.needs, self.pools, strict=True))

    def look_up(self, request: Request) -> int:
        """Tokens of the request whose pages are in the prefix cache; at least one token is left to compute. Takes nothing."""
        if not self.prefix_caching or request.whole_prompt or request.params.prompt_logprobs is not None or request.params.skip_reading_prefix_cache:
            return 0
        self._extend_hashes(request, len(request.tokens))
        limit = (len(request.tokens) - 1) // self.block_tokens
        return hit_blocks(self.needs, self.pools, request.hashes, limit) * self.block_tokens

    def blocks_promised(self, request: Request, num_tokens: int) -> list[int]:
        """Per group: blocks that the request still takes until `num_tokens` tokens are computed."""
        held = [sum(1 for block in table if block) for table in request.tables] or [0] * len(self.needs)
        return [max(blocks_for(need, num_tokens, self.max_chunk) - have, 0) for need, have in zip(self.needs, held, strict=True)]

    def room_for(self, request: Request, num_tokens: int, *, hit: int, reserved: Sequence[int]) -> bool:
        """True when the blocks for `num_tokens` tokens can be had now, `hit` tokens of them from the prefix cache.

        reserved: blocks per group promised to others.
        """
        for group, (need, pool) in enumerate(zip(self.needs, self.pools, strict=True)):
            found = self._hit_blocks(request, group, hit)
            idle_hits = sum(1 for block in found if not pool.is_held(block))
            wanted = max(blocks_for(need, num_tokens, self.max_chunk) - len(found), 0)
            if pool.num_available - idle_hits - reserved[group] < wanted:
                return False
        return True

    def admit(self, request: Request, hit: int) -> None:
        """Give a request its tables, with `hit` tokens (from look_up, just now) taken from the prefix cache."""
        request.tables = [[] for _ in self.needs]
        for group, pool in enumerate(self.pools):
            if self.needs[group].spec.kind == "state":
                continue
            blocks = hit // self.block_tokens
            first = first_needed_block(self.needs[group], hit)
            for index in range(blocks):
                found = pool.find(request.hashes[index]) if index >= first else 0
                if found is None:
                    raise LookupError(f"block {index} of request {request.id} left the prefix cache between look-up and admission")
                if found:
                    pool.hold(found)
                self._enter(request, group, found)
        request.num_computed = hit
        request.num_published = hit // self.block_tokens
        request.num_cached = min(hit, request.prompt_len)
        if self.prefix_caching:
            self.prefix_queries += len(request.tokens)
            self.prefix_hits += hit

    def extend(self, request: Request, num_tokens: int, *, drafts: int = 0) -> bool:
        """Make the tables cover `num_tokens` tokens, and private where the new tokens are written. False: no room, nothing changed.

        drafts: how many of the tokens, at the end, are guesses. A recurrent state has a place for each beside its own.
        """
        plans = [self._missing(request, group, num_tokens, drafts) for group in range(len(self.needs))]
        if any(count > pool.num_available for (count, _), pool in zip(plans, self.pools, strict=True)):
            return False
        for group, (count, shared) in enumerate(plans):
            if shared is not None:
                self._copy_on_write(request, group, shared)
                count -= 1
            for _ in range(count):
                self._append_new(request, group, num_tokens)
        return True

    def _missing(self, request: Request, group: int, num_tokens: int, drafts: int) -> tuple[int, int | None]:
        """Blocks to allocate, and the index of a shared block that is about to be written."""
        need, table = self.needs[group], request.tables[group]
        wanted = 1 + drafts if need.spec.kind == "state" else -(-num_tokens // need.block_tokens)
        count = max(wanted - len(table), 0)
        first_written = 0 if need.spec.kind == "state" else request.num_computed // need.block_tokens
        if first_written < len(table) and table[first_written] and self.pools[group].refs(table[first_written]) > 1:
            return count + 1, first_written
        return count, None

    def _copy_on_write(self, request: Request, group: int, index: int) -> None:
        pool, table = self.pools[group], request.tables[group]
        old, new = table[index], pool.allocate()
        state = self.needs[group].spec.kind == "state"
        self._ops.append((KvOp.STATE_COPY if state else KvOp.COPY, group, old, new))
        pool.release(old)
        table[index] = new
        self._new_blocks[group].append((request.slot, index, new))

    def _append_new(self, request: Request, group: int, num_tokens: int) -> None:
        need = self.needs[group]
        block = self.pools[group].allocate()
        first = len(request.tables[group]) * need.block_tokens
        written_whole = need.spec.kind != "state" and request.num_computed <= first and num_tokens >= first + need.block_tokens
        if not written_whole:
            self._ops.append((KvOp.ZERO, group, 0, block))
        self._enter(request, group, block)

    def _enter(self, request: Request, group: int, block: int) -> None:
        table = request.tables[group]
        self._new_blocks[group].append((request.slot, len(table), block))
        table.append(block)

    def settle_drafts(self, request: Request, accepted: int) -> None:
        """So many drafts of its last step were right: they count as computed. Publishes full blocks; gives back what the others took."""
        request.num_computed += accepted
        self.accept(request, request.num_computed)
        for group, need in enumerate(self.needs):
            table, changes = request.tables[group], self._new_blocks[group]
            kept = -(-request.num_computed // need.block_tokens)
            if need.spec.kind == "state":  # the state after the last accepted draft becomes the request's own
                kept = 1
                if accepted:
                    table[0], table[accepted] = table[accepted], table[0]
                    changes.append((request.slot, 0, table[0]))
            for index in range(len(table) - 1, kept - 1, -1):
                self.pools[group].release(table.pop())
                changes.append((request.slot, index, 0))

    def fork(self, parent: Request, child: Request) -> None:
        """Let the child share all of the parent's blocks; whoever writes a shared block first gets a copy."""
        child.tables = [list(table) for table in parent.tables]
        child.hashes = list(parent.hashes)
        child.num_cached, child.num_published = parent.num_cached, parent.num_published
        for pool, table in zip(self.pools, child.tables, strict=True):
            for block in table:
                if block:
                    pool.hold(block)

    def accept(self, request: Request, num_tokens: int) -> None:
        """The first `num_tokens` tokens are final and computed: publish their full blocks, give back passed window blocks."""
        if self.prefix_caching and not any(need.spec.kind == "state" for need in self.needs):
            self._publish(request, num_tokens)
        for group, need in enumerate(self.needs):
            passed = first_needed_block(need, num_tokens)
            table = request.tables[group]
            for index in range(min(passed, len(table)) - 1, -1, -1):
                if table[index] == 0:
                    break
                self.pools[group].release(table[index])
                table[index] = 0
                self._new_blocks[group].append((request.slot, index, 0))

    def _publish(self, request: Request, num_tokens: int) -> None:
        self._extend_hashes(request, num_tokens)
        full = num_tokens // self.block_tokens
        for index in range(request.num_published, full):
            for group, pool in enumerate(self.pools):
                block = request.tables[group][index] if self.needs[group].spec.kind != "state" else 0
                if block:
                    pool.publish(block, request.hashes[index])
        request.num_published = max(request.num_published, full)

    def free(self, request: Request) -> None:
        """Give back all blocks, last first, so that the start of a prompt stays cached longest.

        Table changes recorded for its slot are dropped: another request may join that slot in the Step being built.
        """
        if request.slot >= 0:
            self._new_blocks = [[row for row in rows if row[0] != request.slot] for rows in self._new_blocks]
        for pool, table in zip(self.pools, request.tables, strict=False):
            for block in reversed(table):
                if block:
                    pool.release(block)
        request.tables = []
        request.num_computed = 0

    def take_changes(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """(new_blocks per group i32 [n, 3], kv_ops i32 [m, 4]) recorded since the last call; for the Step being built."""
        if not self._ops and not any(self._new_blocks):  # most steps
            return self._unchanged
        tables = tuple(np.array(rows, dtype=np.int32).reshape(-1, 3) for rows in self._new_blocks)
        ops = np.array(self._ops, dtype=np.int32).reshape(-1, 4)
        self._new_blocks = [[] for _ in self.needs]
        self._ops = []
        return tables, ops

    def _hit_blocks(self, request: Request, group: int, hit: int) -> list[int]:
        need = self.needs[group]
        if not hit or need.spec.kind == "state":
            return []
        first = first_needed_block(need, hit)
        found = (self.pools[group].find(request.hashes[index]) for index in range(first, hit // need.block_tokens))
        return [block for block in found if block is not None]

    def _extend_hashes(self, request: Request, num_tokens: int) -> None:
        hashes, size = request.hashes, self.block_tokens
        before = hashes[-1] if hashes else chain_start(self._numerics, *request.cache_keys)
        for index in range(len(hashes), num_tokens // size):
            before = chain_hash(before, request.tokens[index * size : (index + 1) * size])
            hashes.append(before)

    @property
    def blocks_total(self) -> int:
        """Blocks of all groups without the null blocks."""
        return sum(pool.num_blocks - 1 for pool in self.pools)

    @property
    def blocks_held(self) -> int:
        """Blocks that requests hold."""
        return sum(pool.num_held for pool in self.pools)

    @property
    def blocks_cached(self) -> int:
        """Blocks that nobody holds but a prefix hit may take."""
        return sum(pool.num_cached for pool in self.pools)

    def block_map(self) -> list[tuple[int, int]]:
        """Runs (BlockState, how many) over the blocks of all groups, in their order, without the null blocks. O(blocks)."""
        states = np.frombuffer(b"".join(pool.states() for pool in self.pools), np.uint8)
        begins = np.concatenate(([0], np.flatnonzero(np.diff(states)) + 1))
        return list(zip(states[begins].tolist(), np.diff(begins, append=len(states)).tolist(), strict=True))

    def check_integrity(self, requests: list[Request]) -> None:
        """Raise AssertionError unless every block is accounted for by exactly these requests."""
        for group, pool in enumerate(self.pools):
            pool.check_integrity([request.tables[group] for request in requests if request.tables])
