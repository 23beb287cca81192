"""Times of the kernels of a loaded model: every op as it runs in a step, beside the least time at rates that torch reaches on the device.

The least time is that of reading what goes in, the op's weights as the checkpoint stores them and the pages that it sees, and of writing what comes
out, or of the products in float32 by torch's own product, whichever is longer. A step computes no result that counts: tokens are zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
import torch

from llmx.batch import Joined, Step
from llmx.executor.bound import BoundOps
from llmx.executor.torch.pages import StatePages
from llmx.platform.plan import OpSpec
from llmx.record import record
from llmx.sample.params_rows import SamplingRow
from llmx.weights.host_tensor import BLOCK_BYTES

__all__ = ["Measured", "kernel_times", "profile_step"]

_READ_ELEMENTS, _SIDE = 1 << 23, 512  # of the tensor that is read, and of the square matrices that are multiplied
_PAGED = ("attention", "mla")


@record
class Measured:
    """One call of the model: its ops, who computes them, and what they touch. weights: (elements, how they are stored) of each matrix."""

    ops: BoundOps
    specs: tuple[OpSpec, ...]
    provider: str
    weights: tuple[tuple[int, str], ...]
    states: tuple[StatePages, ...]

    @property
    def kernel(self) -> str:
        """The kinds."""
        return "+".join(spec.kind for spec in self.specs)

    @property
    def shape(self) -> str:
        """Sizes, storage and provider."""
        known = [f"{'+'.join(s.quants)} {s.cols} -> {s.rows}" if s.cols else f"{s.rows or s.kind}" for s in self.specs]
        return f"{' + '.join(known)}, {self.provider}"

    def work(self, rows: int) -> tuple[float, float]:
        """(bytes of weights, operations) of products for so many rows; of experts as many as the rows can choose."""
        share, uses = 1.0, float(rows)
        for spec in self.specs:
            if spec.kind == "moe_experts":
                moe = spec.attrs.spec
                uses = rows * moe.top_k / moe.experts
                share = min(1.0, uses)
            elif spec.kind != "linear":
                return 0.0, 0.0
        sizes = [(elements, *BLOCK_BYTES.get(stored, (1, 4))) for elements, stored in self.weights]
        return sum(elements / block * size for elements, block, size in sizes) * share, 2.0 * uses * sum(elements for elements, _, _ in sizes)


@dataclass(slots=True)
class _Clock:
    """Seconds and bytes of each call in the steps since it was made."""

    device: torch.device
    seconds: list[list[float]] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)

    def around(self, call: Callable[..., Any], at: int) -> Callable[..., Any]:
        """The call, timed until the device is idle again."""

        def timed(rows: Any, *inputs: Any) -> Any:
            self.wait()
            began = perf_counter()
            made = call(rows, *inputs)
            self.wait()
            self.seconds[at].append(perf_counter() - began)
            tensors = [t for t in (*inputs, *(made if isinstance(made, tuple) else (made,))) if isinstance(t, torch.Tensor)]
            self.moved[at] = float(sum(t.numel() * t.element_size() for t in tensors))
            return made

        return timed

    def wait(self) -> None:
        """Until the device has done all that was asked of it."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize()


def _limits(device: torch.device, repeats: int) -> tuple[float, float]:
    """(bytes read per second, float32 operations per second), the best of the repeats."""
    clock, x, square = _Clock(device), torch.ones(_READ_ELEMENTS, device=device), torch.ones(_SIDE, _SIDE, device=device)

    def best(run: Callable[[], Any]) -> float:
        times = []
        for _ in range(repeats + 1):
            clock.wait()
            began = perf_counter()
            run()
            clock.wait()
            times.append(perf_counter() - began)
        return max(min(times), 1e-9)

    return _READ_ELEMENTS * 4 / best(x.sum), 2.0 * _SIDE**3 / best(lambda: square @ square)


Run = Callable[[Sequence[BoundOps], int, int, int], None]  # (ops, rows, context, adapter)


def kernel_times(calls: Sequence[Measured], run: Run, device: torch.device, steps: Sequence[tuple[int, int, int]], repeats: int) -> dict[str, Any]:
    """{"limits": ..., "kernels": [{"kernel", "shape", "rows", "us", "least_us", "share"}, ...]}; layers that are alike share a line, with their mean.

    run(ops, rows, context, adapter): one step of these ops with so many rows of one request behind `context` tokens, with the adapter in a slot or
    none (-1). steps: what is run; behind a context attention alone is shown, with an adapter the products.
    """
    read, f32 = _limits(device, repeats)
    kernels = [line for step in steps for line in _step_times(calls, run, device, step, repeats, (read, f32))]
    return {"limits": {"device": str(device), "threads": torch.get_num_threads(), "read": read, "f32": f32}, "kernels": kernels}


def _step_times(
    calls: Sequence[Measured], run: Run, device: torch.device, step: tuple[int, int, int], repeats: int, limits: tuple[float, float]
) -> Iterator[dict[str, Any]]:
    (m, context, adapter), clock = step, _Clock(device, [[] for _ in calls], [0.0] * len(calls))
    timed = [replace(one.ops, call=clock.around(one.ops.call, index)) for index, one in enumerate(calls)]
    for _ in range(repeats + 1):  # the first warms up
        run(timed, m, context, adapter)
    groups: dict[tuple[str, str], list[int]] = {}
    for index, one in enumerate(calls):
        shown = one.kernel in _PAGED if context else one.kernel == "linear" if adapter >= 0 else True
        if clock.seconds[index] and shown and one.kernel != "output":  # which only names a value
            groups.setdefault((one.kernel, one.shape), []).append(index)
    for (kernel, shape), members in groups.items():
        seconds = sum(min(clock.seconds[index]) for index in members) / len(members)
        weights, operations = calls[members[0]].work(m)
        pages = sum(_seen_bytes(state, m + context) for state in calls[members[0]].states) if kernel in _PAGED else 0.0
        least = max((clock.moved[members[0]] + weights + pages) / limits[0], operations / limits[1])
        about = f"{shape}, context {context}" if context else f"{shape}, with an adapter" if adapter >= 0 else shape
        yield {"kernel": kernel, "shape": about, "rows": m, "us": seconds * 1e6, "least_us": least * 1e6, "share": least / seconds if seconds else 0.0}


def _seen_bytes(state: StatePages, tokens: int) -> float:
    seen = min(tokens, state.spec.window or tokens)
    return float(sum(t[0, 0].numel() * t.element_size() * seen for t in state.tensors))


def profile_step(groups: Sequence[tuple[int, int]], rows: int, context: int, adapter: int) -> Step:
    """A request that joins slot 0 and brings `rows` rows behind `context` tokens, with the adapter in a slot or none (-1). groups: per KV group
    tokens of a block, 1 for places, and blocks."""
    tokens = np.zeros(rows + context, np.int32)
    counts = [1 if size == 1 else min(-(-len(tokens) // size), blocks - 1) for size, blocks in groups]
    new = tuple(np.array([(0, i, 1 + i) for i in range(count)], np.int32).reshape(-1, 3) for count in counts)
    one = np.zeros(1, np.int32)
    joined = [Joined(0, tokens, len(tokens) + 1, SamplingRow(), lora_slot=adapter)]
    return Step(0, slot=one, q=one + rows, start=one + context, tokens=tokens[:rows], joined=joined, new_blocks=new)
