"""Buckets: steps of few rows are padded to one of a few sizes, for which runs of ops were recorded as graphs, or compiled, before serving.

A size has its own tensors for everything that enters or leaves a run; a step writes its inputs into them. Ops whose kernels look at requests
on the host (those without the tag graph_safe) run between the graphs, on the real rows. What a padded row computes is read by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from llmx.errors import PlatformError
from llmx.executor.base import Limits, Progress
from llmx.executor.bound import BoundOps, BoundProgram, Values
from llmx.executor.torch.graphs import PlainCalls
from llmx.executor.torch.layout import RowLayout
from llmx.executor.torch.rows import Rows
from llmx.hooks.devices import CompilerBackend, DeviceParts, GraphBackend, GraphLimits
from llmx.program.ops import Program, Sym, Value

__all__ = ["Buckets", "bucket_sizes", "make_buckets"]

_LARGEST = 512  # rows: above it the device is busy enough without graphs


def bucket_sizes(max_requests: int, max_tokens: int, limits: GraphLimits, runs: int) -> tuple[int, ...]:
    """Powers of two up to one step of all requests, aligned, at most as many as `limits` allows graphs for; the small ones go first."""
    sizes: list[int] = []
    top, size = min(max_requests, max_tokens, _LARGEST), 1
    while not sizes or sizes[-1] < top:
        aligned = -(-size // limits.alignment) * limits.alignment
        if aligned > max_tokens:
            break
        if aligned not in sizes:
            sizes.append(aligned)
        size *= 2
    keep = len(sizes) if limits.max_graphs is None else limits.max_graphs // max(runs, 1)
    return tuple(sizes[max(len(sizes) - keep, 0) :])


@dataclass(slots=True)
class _Run:
    """Consecutive ops, all captured in one graph or none of them. replay: of each size."""

    ops: list[BoundOps]
    captured: bool
    ins: tuple[int, ...] = ()
    outs: tuple[Value, ...] = ()


@dataclass(slots=True)
class _Bucket:
    """One size: its rows, its tensors by value id, and a replay for each captured run."""

    rows: Rows
    values: Values
    replays: list[Callable[[], None] | None] = field(default_factory=list)


class Buckets:
    """The body of a Program in a few sizes. Built when ops are bound; `capture` records, `run` runs.

    why_not: why this Program cannot be padded; empty when it can.
    """

    def __init__(self, program: Program, body: Sequence[BoundOps], needed: set[int], backend: GraphBackend, compiler: CompilerBackend | None = None) -> None:
        self._program, self._backend, self._needed, self._compiler = program, backend, needed, compiler
        self._runs = _runs(body, needed, backend.limits)
        self._buckets: dict[int, _Bucket] = {}
        whole = [value for run in self._runs for value in run.outs if not _padded(value)]
        self.why_not = f"value {whole[0].id} of shape {whole[0].shape} goes between ops and does not begin with the rows of the step" if whole else ""
        self.stats = {"graphs": 0, "replays": 0, "padded_rows": 0}
        self.runs = sum(run.captured for run in self._runs)

    def capture(
        self, sizes: Sequence[int], requests: int, blocks: Sequence[int], block_tokens: Sequence[int], device: torch.device, progress: Callable[[float], None]
    ) -> None:
        """Record every size, the largest first. Raises PlatformError when the device cannot record a run."""
        for done, size in enumerate(sorted(sizes, reverse=True)):
            layout = RowLayout.empty(size, min(size, requests), blocks, device)
            rows = Rows((), device, {"T": size, "N": len(layout.lengths), "R": 0}, tuple(block_tokens), layout)
            bucket = _Bucket(rows, {value.id: _room(value, rows) for name, value in self._program.inputs.items() if name != "head"})
            for run in self._runs:
                if not run.captured:
                    bucket.values |= {value.id: _room(value, rows) for value in run.outs}
                    bucket.replays.append(None)
                    continue
                bucket.replays.append(self._record(run, bucket))
            self._buckets[size] = bucket
            progress((done + 1) / len(sizes))
        if self._compiler is not None:
            self.stats |= self._compiler.finish()

    def _record(self, run: _Run, bucket: _Bucket) -> Callable[[], None]:
        pieces = [self._piece(ops, {value.id for value in run.outs}, run.ops, bucket) for ops in _pieces(run.ops, self._compiler is not None)]

        def call() -> None:
            values = {i: bucket.values[i] for i in run.ins}
            for piece in pieces:
                piece(values)
            bucket.values |= {value.id: values[value.id] for value in run.outs}

        try:
            call()  # compiles what is to be compiled
            replay = self._backend.capture(call)
        except Exception as error:  # noqa: BLE001 - torch's backends raise errors of their own
            what = f"{run.ops[0].name} to {run.ops[-1].name}" if len(run.ops) > 1 else run.ops[0].name
            raise PlatformError(f"capture of {what} at {bucket.rows.sizes['T']} rows failed: {error}; graph capture can be switched off") from error
        self.stats["graphs"] += 1
        return replay

    def _piece(self, ops: Sequence[BoundOps], outs: set[int], run: Sequence[BoundOps], bucket: _Bucket) -> Callable[[Values], None]:
        """Ops as one call on values by id; compiled at its first call, where there is a compiler and they touch no pages. outs: what leaves the run."""

        def plain(values: Values) -> None:
            for one in ops:
                one.run(bucket.rows, values)

        if self._compiler is None or any(one.paged for one in ops):
            return plain
        made = {value.id for one in ops for value in one.outs}
        read = {i for one in run if one not in ops for i in one.ins} | outs
        ins = tuple(dict.fromkeys(i for one in ops for i in one.ins if i is not None and i not in made))
        leaves = tuple(sorted(made & read))
        compiled: list[Callable[..., Any]] = []

        def functional(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            values = dict(zip(ins, given, strict=True))
            plain(values)
            return tuple(values[i] for i in leaves)

        def call(values: Values) -> None:
            given = tuple(values[i] for i in ins)
            if not compiled:
                assert self._compiler is not None
                compiled.append(self._compiler.compile(functional, given))
            values |= dict(zip(leaves, compiled[0](*given), strict=True))

        return call

    def size_for(self, rows: int, requests: int) -> int | None:
        """The least size that takes a step; None when it is too large."""
        return min((size for size, bucket in self._buckets.items() if size >= rows and bucket.rows.sizes["N"] >= requests), default=None)

    def run(self, size: int, rows: Rows, inputs: Mapping[str, torch.Tensor]) -> Values:
        """As BoundProgram.body: what head rows and results need, of the real rows. Valid until the next step."""
        bucket, count = self._buckets[size], rows.sizes["T"]
        for name, value in self._program.inputs.items():
            if name != "head":
                whole = bucket.values[value.id]
                whole.zero_()
                whole[..., :count].copy_(inputs[name])
        bucket.rows.layout.fill(rows.requests, rows.block_tokens)
        for run, replay in zip(self._runs, bucket.replays, strict=True):
            if replay is not None:
                replay()
                self.stats["replays"] += 1
                continue
            values = {i: self._real(i, bucket.values[i], count) for i in run.ins}
            for one in run.ops:
                one.run(rows, values)
            for value in run.outs:
                self._real(value.id, bucket.values[value.id], count).copy_(values[value.id])
        self.stats["padded_rows"] += size - count
        return {i: self._real(i, bucket.values[i], count) for i in self._needed if i in bucket.values}

    def _real(self, value: int, whole: torch.Tensor, count: int) -> torch.Tensor:
        """The real rows of a value: inputs have them last, everything else first."""
        inputs = {one.id for one in self._program.inputs.values()}
        return whole[..., :count] if value in inputs else whole[:count]

    def close(self) -> None:
        """Forget all graphs."""
        self._buckets = {}
        self._backend.close()


def make_buckets(
    program: Program,
    bound: BoundProgram,
    parts: DeviceParts,
    limits: Limits,
    blocks: Sequence[int],
    block_tokens: Sequence[int],
    device: torch.device,
    progress: Progress,
) -> tuple[Buckets | None, str]:
    """(captured buckets, ""), or (None, why there are none). blocks, block_tokens: per KV group the length of a block table, and tokens of a block."""
    backend = parts.graphs or PlainCalls()
    buckets = Buckets(program, bound.body_ops, bound.needed, backend, parts.compiler)
    sizes = bucket_sizes(limits.max_requests, limits.max_tokens, backend.limits, buckets.runs)
    if buckets.why_not or not buckets.runs or not sizes:
        return None, buckets.why_not or ("no kernel is graph_safe" if not buckets.runs else "the backend takes fewer graphs than one step needs")
    buckets.capture(sizes, limits.max_requests, blocks, block_tokens, device, lambda part: progress("graphs", part))
    return buckets, ""


def _room(value: Value, rows: Rows) -> torch.Tensor:
    """Zeros of a value's shape."""
    dtype = torch.int64 if value.dtype == "i32" else torch.float32
    return torch.zeros([rows.size(dim) for dim in value.shape], dtype=dtype, device=rows.device)


def _runs(body: Sequence[BoundOps], needed: set[int], limits: GraphLimits) -> list[_Run]:
    """The body cut where capture begins and ends. What leaves a run is what a later one, or the head, reads."""
    runs: list[_Run] = []
    for one in body:
        captured = one.graph_safe and not (limits.piecewise and one.paged)
        if not runs or runs[-1].captured != captured:
            runs.append(_Run([], captured))
        runs[-1].ops.append(one)
    later = set(needed)
    for run in reversed(runs):
        own = [value for one in run.ops for value in one.outs]
        ids = {value.id for value in own}
        run.outs = tuple(value for value in own if value.id in later)
        run.ins = tuple(dict.fromkeys(i for one in run.ops for i in one.ins if i is not None and i not in ids))
        later |= set(run.ins)
    return runs


def _pieces(ops: Sequence[BoundOps], cut: bool) -> list[list[BoundOps]]:
    """A run cut where ops with pages begin and end, if it is to be compiled."""
    return [list(group) for _, group in groupby(ops, key=lambda one: one.paged)] if cut else [list(ops)]


def _padded(value: Value) -> bool:
    """True for a value that begins with the step's rows, so that rows can be added."""
    return bool(value.shape) and isinstance(value.shape[0], Sym) and value.shape[0].name == "T"
