"""BlockPool: who holds each block of one KV group.

A block is *held* (reference count > 0), *free* (nothing of worth in it) or *cached* (free, but its content is known by a
hash and may be taken again). Block 0 is the null page: never handed out, never written, its count is not kept.
Allocation takes the free block that was given back last (its memory is in use and in cache), then the cached block that was
given back longest ago.
"""

from __future__ import annotations

from enum import IntEnum

from llmx.kv.block_hash import BlockHash

__all__ = ["BlockPool", "BlockState"]


class BlockState(IntEnum):
    """What a block is: see the module."""

    FREE = 0
    CACHED = 1
    HELD = 2


class BlockPool:
    """Reference counts, the free list and the hash index of one group. All operations are O(1) per block."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a KV group needs at least 2 blocks (the null block and one more), got {num_blocks}")
        self.num_blocks = num_blocks
        self._refs = [0] * num_blocks
        self._hashes: list[BlockHash | None] = [None] * num_blocks
        self._free = list(range(num_blocks - 1, 0, -1))
        self._cached: dict[int, None] = {}  # insertion order = order of release: the first is evicted first
        self._by_hash: dict[BlockHash, int] = {}

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated now, cached ones included."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds but a prefix hit may take."""
        return len(self._cached)

    @property
    def num_held(self) -> int:
        """Blocks with a reference."""
        return self.num_blocks - 1 - self.num_available

    def allocate(self) -> int:
        """A block with one reference; its content is stale. Raises IndexError when none is left: the caller asks first."""
        if self._free:
            block = self._free.pop()
        else:
            if not self._cached:
                raise IndexError("no block left")
            block = next(iter(self._cached))
            del self._cached[block]
            self._forget(block)
        self._refs[block] = 1
        return block

    def hold(self, block: int) -> None:
        """One more reference to a held or cached block."""
        if self._refs[block] == 0:
            del self._cached[block]
        self._refs[block] += 1

    def release(self, block: int) -> None:
        """One reference less; at none the block is cached if it has a hash, free otherwise."""
        refs = self._refs[block] - 1
        if refs < 0:
            raise ValueError(f"block {block} released more often than held")
        self._refs[block] = refs
        if refs == 0:
            if self._hashes[block] is None:
                self._free.append(block)
            else:
                self._cached[block] = None

    def refs(self, block: int) -> int:
        """References to a block."""
        return self._refs[block]

    def publish(self, block: int, digest: BlockHash) -> bool:
        """Make a held, full block findable. False when an equal block is known already: the first wins, this one stays private."""
        if digest in self._by_hash or self._hashes[block] is not None:
            return False
        self._by_hash[digest] = block
        self._hashes[block] = digest
        return True

    def find(self, digest: BlockHash) -> int | None:
        """The block with this content, held or cached."""
        return self._by_hash.get(digest)

    def is_held(self, block: int) -> bool:
        """True when somebody holds the block."""
        return self._refs[block] > 0

    def states(self) -> bytes:
        """One BlockState per block, in their order, without the null block. O(blocks)."""
        free, cached, held = map(int, BlockState)
        states = bytearray([held]) * self.num_blocks
        for block in self._free:
            states[block] = free
        for block in self._cached:
            states[block] = cached
        return bytes(states[1:])

    def reset_cache(self) -> None:
        """Forget all content hashes; cached blocks become free."""
        for block in list(self._cached):
            del self._cached[block]
            self._free.append(block)
        for digest, block in list(self._by_hash.items()):
            self._hashes[block] = None
            del self._by_hash[digest]

    def _forget(self, block: int) -> None:
        digest = self._hashes[block]
        if digest is not None:
            del self._by_hash[digest]
            self._hashes[block] = None

    def check_integrity(self, tables: list[list[int]]) -> None:
        """Raise AssertionError unless counts equal the references in `tables` and every block is in exactly one place."""
        counts = [0] * self.num_blocks
        for table in tables:
            for block in table:
                counts[block] += 1
        counts[0] = 0
        assert counts == self._refs, f"reference counts differ: {[(b, c, r) for b, (c, r) in enumerate(zip(counts, self._refs, strict=True)) if c != r][:8]}"
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is in the free list twice"
        assert not free & cached, f"blocks both free and cached: {sorted(free & cached)[:8]}"
        assert 0 not in free | cached, "the null block is in a free list"
        idle = {block for block in range(1, self.num_blocks) if self._refs[block] == 0}
        assert idle == free | cached, f"blocks lost: {sorted(idle ^ (free | cached))[:8]}"
        assert all(self._hashes[block] is None for block in free), "a free block has a hash"
        assert all(self._hashes[block] is not None for block in cached), "a cached block has no hash"
        assert {digest: block for block, digest in enumerate(self._hashes) if digest is not None} == self._by_hash, "the hash index is wrong"
