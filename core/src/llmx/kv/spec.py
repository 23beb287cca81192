"""What one layer stores per token, and how layers with equal needs form a group.

The attention backend owns geometry (bytes per block, layout); the core solves for sizes and treats pages as opaque.
This file holds the types only and imports nothing of the engine. Changing it needs an ADR.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["BLOCK_TOKENS", "GroupNeed", "GroupPlan", "KVKind", "KVPlan", "KVSpec"]

BLOCK_TOKENS = 16  # kv slots per block: one 512-bit register of 32-bit K lanes; waste is about half a block per request

KVKind = Literal["full", "sliding", "chunked", "cross", "latent", "state"]


@dataclass(frozen=True, slots=True)
class KVSpec:
    """What one State stores. Equal specs share a group.

    kind: full (all tokens), sliding (last `window`), chunked (own chunk of `window` tokens), cross (written once per
    request), latent (one compressed vector per token), state (recurrent, one place per request).
    kv_heads, head_dim, v_head_dim: elements per token = kv_heads * (head_dim + v_head_dim); latent: 1, c_kv + k_pe, 0.
    state: for kind "state" the float32 shapes that one place holds.
    """

    kind: KVKind
    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    window: int | None = None
    state: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class GroupNeed:
    """What an executor needs for one group. Written by `Executor.kv_needs`."""

    spec: KVSpec
    states: tuple[str, ...]  # names of the States in this group, in layer order
    block_tokens: int  # kv slots per block; 1 for kind "state"
    block_bytes: int  # bytes of one block, all layers of the group together
    dtype: str  # element type of a page, e.g. "bf16"
    layer_major: bool = False  # True: a copy moves one range per layer instead of one range per block
    next_token: bool = False  # kv slot t depends on token t + 1 (some drafters): a prefix hit gives back one block


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group and the number of its blocks, block 0 (the null page: zero, never written) included."""

    need: GroupNeed
    num_blocks: int


@dataclass(frozen=True, slots=True)
class KVPlan:
    """The split of KV memory between groups. Written by the core from all GroupNeeds and the memory budget."""

    groups: tuple[GroupPlan, ...]
    max_requests: int
    max_model_len: int  # tokens; sizes block-table rows

    @property
    def total_bytes(self) -> int:
        """Bytes of all pages."""
        return sum(g.need.block_bytes * g.num_blocks for g in self.groups)
