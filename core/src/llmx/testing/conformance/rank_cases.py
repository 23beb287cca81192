"""What each rank does in the area of collectives, and what it must find: every rank knows what all give, so it checks its own results."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from time import sleep
from typing import Any

import numpy as np

from llmx.engine.meeting import Arrays
from llmx.errors import PlatformError
from llmx.hooks.collectives import COLLECTIVES, Communicator
from llmx.weights.quant.dense import dequantize, quantize

__all__ = ["CASES", "LOST", "run"]

# one value, primes, no rows, rows of nothing, and more than a megabyte whose size no buffer divides
SHAPES: tuple[tuple[int, ...], ...] = ((1,), (1, 1), (7,), (13, 17), (0, 5), (5, 0), (3, 1), (31, 257), (70001,), (257, 4099))
DTYPES = ("float32", "float16", "bfloat16", "int32", "int64", "uint8")
LOST = "a lost rank is an error"
_DENSE = {"float16": "f16", "bfloat16": "bf16"}
_TURNS = 150


@dataclass(slots=True)
class Rank:
    """One rank: its end of the group, the arrays of its executor, and what was wrong. A case goes on then, since the others make their calls too."""

    end: Communicator
    arrays: Arrays
    wrong: list[str] = field(default_factory=list)

    def must(self, ok: bool, otherwise: str) -> None:
        """Note what is wrong, if it is."""
        if not ok:
            self.wrong.append(otherwise)

    def values(self, rank: int, shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
        """What a rank gives: values that the type holds."""
        rng = np.random.default_rng([seed, rank, *shape])
        if not dtype.endswith(("16", "32", "64")) or dtype.startswith("int"):
            return rng.integers(0, 50, shape)  # sums of four fit 8 bits
        return rounded(rng.normal(scale=3.0, size=shape).astype(np.float32), dtype)

    def all_values(self, *args: Any) -> list[np.ndarray]:
        """Of every rank, in order."""
        return [self.values(rank, *args) for rank in range(self.end.size)]

    def given(self, *args: Any) -> Any:
        """What this rank gives, as an array of its executor."""
        return self.arrays.put(self.values(self.end.rank, *args), args[1])

    def takes(self, op: str, dtype: str) -> bool:
        """Whether the platform says so; numpy has no bfloat16."""
        try:
            self.arrays.put(np.zeros(1, np.float32), dtype)
        except (TypeError, AttributeError):
            return False
        return self.end.supports(op, dtype) is None

    def same(self, result: Any, wanted: np.ndarray, dtype: str, what: str) -> bytes:
        """The result's values as bytes. Notes what is wrong unless it has the type, the shape and the very values that are wanted."""
        found = self.arrays.get(result)
        self.must(self.arrays.name(result) == dtype, f"{what}: the result is of {self.arrays.name(result)}")
        if found.shape != wanted.shape:
            self.must(False, f"{what}: shape {found.shape}, wanted {wanted.shape}")
        elif not np.array_equal(found, wanted):
            at = tuple(int(i) for i in np.argwhere(found != wanted)[0])
            near = np.allclose(found, wanted, rtol=1e-2, atol=1e-2)
            hint = ": near, so it was added in another order or type than that of the ranks" if near else ""
            self.must(False, f"{what}: {found[at]:.9g} at {at}, wanted {wanted[at]:.9g}{hint}")
        return found.tobytes()


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Float values as a type holds them."""
    if dtype not in _DENSE or not values.size:
        return values
    return dequantize(_DENSE[dtype], quantize(_DENSE[dtype], values.reshape(1, -1))).reshape(values.shape)


def summed(parts: list[np.ndarray], dtype: str) -> np.ndarray:
    """Rank 0's, plus rank 1's, and so on, rounded to the type after each."""
    return reduce(lambda a, b: rounded(a + b, dtype), parts)


def _per_type(rank: Rank, op: str, required: tuple[str, ...]) -> Iterator[tuple[tuple[int, ...], str]]:
    for dtype in DTYPES:
        if rank.takes(op, dtype):
            yield from ((shape, dtype) for shape in (SHAPES if dtype == "float32" else SHAPES[3:8]))
        else:
            rank.must(dtype not in required, f"{op} of {dtype} is refused: {rank.end.supports(op, dtype)}")


def sums_in_the_order_of_the_ranks(rank: Rank) -> Iterator[bytes]:
    """Every shape and type; twice, with the same bits."""
    for shape, dtype in _per_type(rank, "all_reduce", ("float32",)):
        wanted, what = summed(rank.all_values(shape, dtype), dtype), f"sum of {dtype} {list(shape)}"
        yield rank.same(rank.end.all_reduce(rank.given(shape, dtype)), wanted, dtype, what)
        if np.prod(shape) < 1 << 16:
            rank.same(rank.end.all_reduce(rank.given(shape, dtype)), wanted, dtype, f"{what}, again")


def rows_side_by_side_in_the_order_of_the_ranks(rank: Rank) -> Iterator[bytes]:
    """Every shape and type."""
    for shape, dtype in _per_type(rank, "all_gather", ("float32",)):
        wanted = np.concatenate(rank.all_values(shape, dtype), -1)
        yield rank.same(rank.end.all_gather(rank.given(shape, dtype)), wanted, dtype, f"rows of {dtype} {list(shape)}")


def what_one_rank_has_on_every_rank(rank: Rank) -> Iterator[bytes]:
    """Every shape and type, from each rank in turn; of numpy as well, which is how logits go."""
    for at, (shape, dtype) in enumerate(_per_type(rank, "broadcast", ("float32",))):
        root = at % rank.end.size
        yield rank.same(rank.end.broadcast(rank.given(shape, dtype), root), rank.values(root, shape, dtype), dtype, f"{dtype} {list(shape)} of rank {root}")
    for root in range(rank.end.size):
        found = rank.end.broadcast(rank.values(rank.end.rank, (7, 11), "float32"), root)
        rank.must(isinstance(found, np.ndarray), f"broadcast of a numpy array gave {type(found).__name__}")
        rank.must(np.array_equal(found, rank.values(root, (7, 11), "float32")), f"numpy rows of rank {root} are others")


def results_belong_to_the_caller(rank: Rank) -> Iterator[bytes]:
    """Inputs are unchanged, also those that do not lie in one piece; results are unchanged by later calls."""
    shape, kept = (6, 10), []
    for seed in range(4):
        whole = rank.given(shape, "float32", seed)
        x = whole[:, ::2] if seed % 2 else whole[1::2]
        before, all_before = rank.arrays.get(x).copy(), [v[:, ::2] if seed % 2 else v[1::2] for v in rank.all_values(shape, "float32", seed)]
        kept.append((rank.end.all_reduce(x), summed(all_before, "float32"), "a sum"))
        kept.append((rank.end.all_gather(x), np.concatenate(all_before, -1), "gathered rows"))
        kept.append((rank.end.broadcast(x, 1), all_before[1], "rows of rank 1"))
        rank.must(np.array_equal(rank.arrays.get(x), before), "a call changed what it was given")
    for result, wanted, what in kept:
        yield rank.same(result, wanted, "float32", f"{what}, after other calls")


def many_calls_while_ranks_come_late(rank: Rank) -> Iterator[bytes]:
    """Calls of all kinds and sizes one after the other; each rank is late at times of its own."""
    late, order = np.random.default_rng(rank.end.rank), np.random.default_rng(99)
    for turn in range(_TURNS):
        shape, kind, root = (int(order.integers(1, 40)), int(order.integers(1, 40))), turn % 3, int(order.integers(rank.end.size))
        if late.random() < 0.2:
            sleep(late.random() * 0.002)
        x, parts, what = rank.given(shape, "float32", turn), rank.all_values(shape, "float32", turn), f"call {turn}"
        if kind == 0:
            yield rank.same(rank.end.all_reduce(x), summed(parts, "float32"), "float32", f"{what}, a sum")
        elif kind == 1:
            yield rank.same(rank.end.all_gather(x), np.concatenate(parts, -1), "float32", f"{what}, gathered rows")
        else:
            yield rank.same(rank.end.broadcast(x, root), parts[root], "float32", f"{what}, rows of rank {root}")


def what_is_not_supported_is_refused(rank: Rank) -> Iterator[bytes]:
    """supports() gives a reason for what is no collective, and calls of a refused type raise PlatformError at once."""
    rank.must(bool(rank.end.supports("all_to_none", "float32")), "supports() takes an op that is none")
    for dtype in DTYPES:
        why = rank.end.supports("all_reduce", dtype)
        rank.must(why is None or (isinstance(why, str) and bool(why)), f"supports() gives {why!r} for {dtype}")
        if why is not None and dtype != "bfloat16":
            try:
                rank.end.all_reduce(rank.arrays.put(np.ones(3), dtype))
            except PlatformError:
                continue
            rank.must(False, f"a sum of {dtype} is refused by supports(), and was made")
    yield b""


def _lost_rank(rank: Rank) -> Iterator[bytes]:
    """The last rank dies without a word; a call of every other rank raises PlatformError."""
    if rank.end.rank == rank.end.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    x = rank.given((64,), "float32")
    while True:
        try:
            rank.end.all_reduce(x)
        except PlatformError:
            return
        yield b""


CASES: dict[str, Callable[[Rank], Iterator[bytes]]] = {
    **{
        case.__name__.replace("_", " "): case
        for case in (
            sums_in_the_order_of_the_ranks, rows_side_by_side_in_the_order_of_the_ranks, what_one_rank_has_on_every_rank, results_belong_to_the_caller,
            many_calls_while_ranks_come_late, what_is_not_supported_is_refused,
        )
    },
    LOST: _lost_rank,
}  # fmt: skip


def run(end: Communicator, arrays: Arrays, say: Callable[[dict[str, Any]], None], args: dict[str, Any]) -> None:
    """Every case; says of each what is wrong, and the digest of all results, which must be that of the other ranks. args: {}."""
    assert set(COLLECTIVES) == {"all_reduce", "all_gather", "broadcast"}
    for name, case in CASES.items():
        rank, digest = Rank(end, arrays), hashlib.sha256()
        try:
            for data in case(rank):
                digest.update(data)
        except Exception as error:  # noqa: BLE001 - foreign code; the others must not wait for calls that will not come
            rank.wrong.append(f"{type(error).__name__}: {error}")
            end.abort()
        say({"case": name, "wrong": rank.wrong[0] if rank.wrong else "", "digest": "" if name == LOST else digest.hexdigest()})
