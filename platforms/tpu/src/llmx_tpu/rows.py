"""Rows: which rows a step has and whose they are, as kernels see them while they are traced; and the arrays that say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llmx.executor.slots import RequestRows
from llmx.program.ops import Dim, Sym
from llmx.record import record

__all__ = ["TILE", "Bucket", "Rows", "step_arrays"]

TILE = 8  # rows of one request that attention takes together


@record
class Bucket:
    """The sizes that a step is padded to: token rows, requests, and tiles of rows."""

    rows: int
    requests: int

    @property
    def tiles(self) -> int:
        """Tiles at most: each request may leave its last one half empty."""
        return min(self.rows, self.rows // TILE + self.requests)


@dataclass(slots=True)
class Rows:
    """All rows of a step, padded to a bucket. Letters: T rows, N requests, L tiles.

    owner i32 [T]: the request of each row, N for padding. first, q, start, end, prompt_len, drafts i32 [N]: of a request its first row, its rows,
    the position of its first one, its tokens once they are computed, its prompt, how many of its last rows are guesses; q is 0 for padding.
    tables i32 [N, blocks], per KV group: block ids. tile_request, tile_first, tile_rows i32 [L]: whose a tile is, its first row, its rows.
    total i32 [3]: rows, requests and tiles that are none of padding. A kernel sees pages by `arrays` and `table`, and writes them by `replace`.
    """

    owner: jax.Array
    first: jax.Array
    q: jax.Array
    start: jax.Array
    prompt_len: jax.Array
    drafts: jax.Array
    positions: jax.Array
    tables: Sequence[jax.Array]
    tile_request: jax.Array
    tile_first: jax.Array
    tile_rows: jax.Array
    total: jax.Array
    sizes: dict[str, int]
    pages: list[tuple[jax.Array, ...]]  # per KV group
    groups: Mapping[str, int]  # State -> KV group
    offsets: Mapping[str, Any]  # State -> where its blocks begin in the arrays of its group
    interpret: bool = True  # kernels written for the hardware run in an interpreter

    @property
    def end(self) -> jax.Array:
        """i32 [N]: tokens of each request once these rows are computed."""
        return self.start + self.q

    def arrays(self, state: str) -> tuple[jax.Array, ...]:
        """The pages that a State's lie among: [all blocks of its group, block tokens, ...] each; [all places, ...] of a recurrent one."""
        return self.pages[self.groups[state]]

    def table(self, state: str) -> jax.Array:
        """i32 [N, blocks]: the State's blocks of each request, as indexes of `arrays`; below 1 where it has none."""
        table = self.tables[self.groups[state]]
        return jnp.where(table > 0, table + self.offsets[state], 0)

    def replace(self, state: str, arrays: tuple[jax.Array, ...]) -> None:
        """What the pages are from now on."""
        self.pages[self.groups[state]] = arrays

    def size(self, dim: Dim) -> int:
        """A dimension as a number."""
        if isinstance(dim, int):
            return dim
        return self.sizes[dim.name] if isinstance(dim, Sym) else self.sizes[dim.sym.name] // dim.by


def step_arrays(requests: Sequence[RequestRows], bucket: Bucket, tables: Sequence[np.ndarray]) -> dict[str, Any]:
    """The arrays of `Rows` for the rows of a step. tables: per KV group i32 [slots, blocks]; -1, never given, becomes the null block 0."""
    count, rows = len(requests), sum(one.q for one in requests)
    per_request = np.zeros((5, bucket.requests), np.int32)
    for at, one in enumerate(requests):
        per_request[:, at] = one.first, one.q, one.start, one.prompt_len, one.drafts
    first, q, start = per_request[:3, :count]
    owner, positions = np.full(bucket.rows, bucket.requests, np.int32), np.zeros(bucket.rows, np.int32)
    owner[:rows] = np.repeat(np.arange(count, dtype=np.int32), q)
    positions[:rows] = np.arange(rows, dtype=np.int32) - np.repeat(first - start, q)
    tiles = -(-q // TILE)
    number = int(tiles.sum())
    request = np.repeat(np.arange(count, dtype=np.int32), tiles)
    offset = (np.arange(number, dtype=np.int32) - np.repeat(np.cumsum(tiles) - tiles, tiles)) * TILE
    of_tiles = np.zeros((3, bucket.tiles), np.int32)
    of_tiles[:, :number] = request, first[request] + offset, np.minimum(q[request] - offset, TILE)
    slots = [one.slot for one in requests]
    own = []
    for table in tables:
        padded = np.zeros((bucket.requests, table.shape[1]), np.int32)
        np.maximum(table[slots], 0, out=padded[:count])
        own.append(padded)
    return {
        "owner": owner, "positions": positions, "tables": tuple(own), "total": np.array([rows, count, number], np.int32),
        **dict(zip(("first", "q", "start", "prompt_len", "drafts"), per_request, strict=True)),
        **dict(zip(("tile_request", "tile_first", "tile_rows"), of_tiles, strict=True)),
    }  # fmt: skip
