"""Times of collectives: what each rank of a Meeting measures."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np

from llmx.engine.meeting import Arrays
from llmx.hooks.collectives import COLLECTIVES, Communicator

__all__ = ["run"]

_WARM = 3


def run(end: Communicator, arrays: Arrays, say: Callable[[dict[str, Any]], None], args: dict[str, Any]) -> None:
    """Every collective over float32 arrays of one row. args: sizes (bytes that each rank gives), repeats.

    Rank 0 says {"op", "bytes", "us", "least_us"}: the median and the shortest call there, until the result is there.
    """
    for op in COLLECTIVES:
        for size in args["sizes"]:
            x = arrays.put(np.ones((1, max(1, size // 4)), np.float32), "float32")
            given = (x, 0) if op == "broadcast" else (x,)
            times = []
            for _ in range(_WARM + args["repeats"]):
                arrays.wait()
                began = perf_counter_ns()
                getattr(end, op)(*given)
                arrays.wait()
                times.append((perf_counter_ns() - began) / 1e3)
            if end.rank == 0:
                say({"op": op, "bytes": 4 * max(1, size // 4), "us": median(times[_WARM:]), "least_us": min(times[_WARM:])})
