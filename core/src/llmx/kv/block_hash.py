"""Content hashes of KV blocks: chained, so that a hash names a block and everything before it.

The chain starts from what else decides the content: plan.numerics, the adapter's digest, media and the cache salt of the
request. Equal hashes mean equal pages.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

__all__ = ["BlockHash", "chain_hash", "chain_start"]

BlockHash = bytes  # 16 bytes: 2**64 blocks until a chance collision is likely


def chain_start(numerics: str, *extra: bytes) -> BlockHash:
    """First link of a chain. extra: adapter digest, media, cache salt."""
    digest = hashlib.blake2b(numerics.encode(), digest_size=16)
    for item in extra:
        digest.update(len(item).to_bytes(8, "little"))
        digest.update(item)
    return digest.digest()


def chain_hash(before: BlockHash, tokens: Sequence[int]) -> BlockHash:
    """The link after `before` for one full block of token ids."""
    return hashlib.blake2b(before + array("i", tokens).tobytes(), digest_size=16).digest()
