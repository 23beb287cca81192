"""DeviceStep: the compiled programs of one engine, its pages, and the calls of a step. Sizes are few, and all are compiled by `warm_up`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from llmx.executor import KVPlan, Limits, Progress, Status, Step
from llmx.executor.drawing import Drawing, Sampled, SampleRow
from llmx.executor.slots import RequestRows, Slots
from llmx_tpu import sampler
from llmx_tpu.mesh import Mesh
from llmx_tpu.pages import MOVES, empty_pages, move_pages
from llmx_tpu.programs import Compiled, buckets
from llmx_tpu.rows import Bucket, step_arrays
from llmx_tpu.traced import TracedProgram

__all__ = ["HEAD_ROWS", "DeviceStep", "Head", "block_size"]

SMALLEST = 4  # token rows of the smallest bucket
HEAD_ROWS = (4, 64)  # logits exist for so many rows at a time


class DeviceStep:
    """Calls programs by name and size. pages are given to them and taken back."""

    def __init__(self, traced: TracedProgram, packed: Mapping[str, Any], plan: KVPlan, mesh: Mesh, limits: Limits, vocab: int) -> None:
        self.traced, self.plan, self.vocab = traced, plan, vocab
        self._packed = packed
        self.compiled = Compiled()
        self.blocks = [group.num_blocks for group in plan.groups]
        self.pages = empty_pages(plan, mesh)
        self._buckets = [Bucket(rows, min(rows, limits.max_requests)) for rows in self.row_buckets(limits.max_tokens)]
        self._layout = [tuple(array.sharding for array in arrays) for arrays in self.pages]

    @staticmethod
    def row_buckets(max_tokens: int) -> tuple[int, ...]:
        """Token rows that steps are padded to."""
        return buckets(SMALLEST, max_tokens)

    # -- calls of a step -----------------------------------------------------------------------------------------------

    def move(self, moves: np.ndarray) -> None:
        """Carry out page operations [groups, MOVES, 2]."""
        self.pages = self.compiled.run(("move",), self._moved, self.pages, moves, donate=(0,))

    def body(self, requests: Sequence[RequestRows], slots: Slots, step: Step, ids: np.ndarray) -> dict[str, Any]:
        """All ops before the head. ids: of every row."""
        total = len(ids)
        bucket = next(one for one in self._buckets if one.rows >= total and one.requests >= len(requests))
        inputs = step_arrays(requests, bucket, slots.tables)
        types = step.token_types if step.token_types.size else np.zeros(total, np.int32)
        for name, values in (("ids", ids), ("token_types", types)):
            inputs[name] = np.zeros(bucket.rows, np.int32)
            inputs[name][:total] = values
        return self._run_body(bucket, inputs)

    def pick(self, values: Any, rows: np.ndarray) -> Any:
        """What the head reads of these rows, which are a block of HEAD_ROWS."""
        key = ("pick", tuple(value.shape[0] for value in values.values()), len(rows))
        return self.compiled.run(key, self.traced.pick, values, rows)

    def head(self, picked: Any) -> dict[str, jax.Array]:
        """The results of a block of picked rows."""
        return self.compiled.run(("head", picked[0].shape[0]), self.traced.head, self._packed, picked)

    def draw(self, rows: Sequence[SampleRow], logits: Any, index: np.ndarray) -> list[Sampled]:
        """A token for each sample row; index: its row in a block of logits [HEAD_ROWS, V]."""
        size, found = logits.shape[0], list[Sampled]()
        for first in range(0, len(rows), size):
            part = rows[first : first + size]
            places = np.zeros(size, np.int32)
            places[: len(part)] = index[first : first + size]
            token, status = self._drawn(logits, places, sampler.row_arrays(part, size), sampler.edited_arrays(part, size, self.vocab))
            pairs = zip(np.asarray(token).tolist(), np.asarray(status).tolist(), strict=True)
            found += [Sampled(one if state == Status.OK else -1, Status(state)) for (one, state), _ in zip(pairs, part, strict=False)]
        return found

    def _drawn(self, logits: Any, places: np.ndarray, options: dict[str, np.ndarray], edits: dict[str, np.ndarray] | None) -> Any:
        size = len(places)
        if edits is None:
            return self.compiled.run(("draw", size), sampler.draw, logits, places, options, wide=True)
        return self.compiled.run(("draw edited", size), sampler.draw_edited, logits, places, options, edits, wide=True)

    def wait(self, values: Any) -> None:
        """Until the device has computed them."""
        jax.block_until_ready(values)

    # -- compilation ---------------------------------------------------------------------------------------------------

    def warm_up(self, progress: Progress, *, pooling: bool) -> None:
        """Compile every program and run it once, over nothing but padding: pages stay as they are."""
        count = len(self._buckets) + 1
        self.move(np.full((len(self.plan.groups), MOVES, 2), -1, np.int32))
        picked: dict[int, Any] = {}
        tables = [np.zeros((1, self._table_length(index)), np.int32) for index in range(len(self.plan.groups))]
        for done, bucket in enumerate(self._buckets):
            inputs = step_arrays([], bucket, tables)
            ids = np.zeros(bucket.rows, np.int32)
            values = self._run_body(bucket, {**inputs, "ids": ids, "token_types": ids})
            for rows in self._head_sizes(bucket.rows):
                picked[rows] = self.pick(values["values"], np.zeros(rows, np.int32))
            progress("compile", (done + 1) / count)
        for rows, block in picked.items():
            results = self.head(block)
            if not pooling:
                nobody, options = np.zeros(rows, np.int32), sampler.row_arrays([], rows)
                for edits in (None, sampler.no_edits(rows, self.vocab)):
                    for logits in (results["logits"], np.zeros(results["logits"].shape, np.float32)):
                        jax.block_until_ready(self._drawn(logits, nobody, options, edits))
        progress("compile", 1.0)

    def _head_sizes(self, rows: int) -> tuple[int, ...]:
        """Blocks of head rows that a step of a bucket may have: at most one for each of its rows, and padding."""
        return tuple(size for size in HEAD_ROWS if size == HEAD_ROWS[0] or rows > HEAD_ROWS[0])

    def _table_length(self, group: int) -> int:
        return Slots(self.plan).tables[group].shape[1]

    def _run_body(self, bucket: Bucket, inputs: dict[str, Any]) -> dict[str, Any]:
        key = ("body", bucket.rows, bucket.requests)
        self.pages, values = self.compiled.run(key, partial(self._body, bucket), self._packed, self.pages, inputs, donate=(1,))
        return values

    def _body(self, bucket: Bucket, packed: Any, pages: Any, inputs: Any) -> Any:
        pages, values = self.traced.body(bucket, packed, pages, inputs)
        return jax.lax.with_sharding_constraint(pages, self._layout), values

    def _moved(self, pages: Any, moves: jax.Array) -> Any:
        return jax.lax.with_sharding_constraint(move_pages(self.plan, pages, moves), self._layout)


class Head:
    """The head of one step, block by block of its rows. hidden: the results that were wanted of them, by name."""

    def __init__(self, device: DeviceStep, values: dict[str, Any], rows: np.ndarray, wanted: set[str]) -> None:
        self._device, self._rows, self._wanted = device, rows, wanted
        self._values = values["values"]
        self.hidden: dict[str, np.ndarray] = {}

    def run(self, drawing: Drawing | None) -> None:
        """Draw what the samples ask for, on the device; the host sees the logits of those rows alone whose logprobs are wanted."""
        samples = drawing.rows() if drawing is not None else []
        raw = drawing.raw_rows() if drawing is not None else []
        drawn: dict[int, Sampled] = {}
        logits = [np.empty(0, np.float32)] * len(self._rows)
        for first, results in self._blocks():
            end = first + HEAD_ROWS[-1]
            mine = [i for i, row in enumerate(samples) if first <= row.head_row < end and not row.dropped]
            index = np.array([samples[i].head_row - first for i in mine], np.int32)
            if mine:
                drawn |= dict(zip(mine, self._device.draw([samples[i] for i in mine], results["logits"], index), strict=True))
            here = [row for row in raw if first <= row < end]
            if here:
                block = np.asarray(results["logits"])
                for row in here:
                    logits[row] = block[row - first]
        if drawing is not None:
            drawing.block(0, logits, None, _all(drawn, len(samples)))

    def run_on_host(self, drawing: Drawing, change: Callable[[np.ndarray], np.ndarray]) -> None:
        """Draw from what `change` makes of the logits of all sample rows; the one place where all of them exist at once."""
        raw = np.concatenate([np.asarray(results["logits"]) for _, results in self._blocks()])
        rows, drawn = drawing.rows(), dict[int, Sampled]()
        processed = np.asarray(change(raw[drawing.host_rows()]), dtype=np.float32)
        left = [i for i, row in enumerate(rows) if not row.dropped]
        for first in range(0, len(left), HEAD_ROWS[-1]):
            part = left[first : first + HEAD_ROWS[-1]]
            block = np.zeros((block_size(len(part)), self._device.vocab), np.float32)
            block[: len(part)] = processed[part]
            drawn |= dict(zip(part, self._device.draw([rows[i] for i in part], block, np.arange(len(part), dtype=np.int32)), strict=True))
        drawing.block(0, raw[: len(self._rows)], processed, _all(drawn, len(rows)))

    def _blocks(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(first row, results) of each block; the last one is padded."""
        parts: dict[str, list[np.ndarray]] = {}
        for first in range(0, len(self._rows), HEAD_ROWS[-1]):
            rows = self._rows[first : first + HEAD_ROWS[-1]]
            padded = np.zeros(block_size(len(rows)), np.int32)
            padded[: len(rows)] = rows
            results = self._device.head(self._device.pick(self._values, padded))
            for name in self._wanted & results.keys():
                parts.setdefault(name, []).append(np.asarray(results[name])[: len(rows)])
            yield first, results
        self.hidden = {name: np.concatenate(found) for name, found in parts.items()}


def _all(drawn: dict[int, Sampled], rows: int) -> list[Sampled]:
    """What was drawn for each sample row; rows that were dropped are not asked for."""
    return [drawn.get(i, Sampled(-1, Status.NAN)) for i in range(rows)]


def block_size(rows: int) -> int:
    """The size that a block of head rows is padded to."""
    return next(size for size in HEAD_ROWS if size >= rows)
