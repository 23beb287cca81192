"""Times of the kernels on a loaded model's own weights, beside the least time that the machine's limits allow.

Products run one after the other through all layers, as in a step, so that weights come from where they come from in a step. A call costs
about two microseconds of Python, which small products feel. Attention is the difference between steps at two lengths of context; keys
and values that fit the caches come faster than from memory, so its share may be above 100%.
"""

from __future__ import annotations

import ctypes as C
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np

from llmx.errors import PlatformError
from llmx.executor import BLOCK_BYTES, BLOCK_TOKENS, Joined, KVSpec, SamplingRow, Step, StepOutput
from llmx_cpu.lower.builder import HEAD_ROWS, KINDS, BuiltTape
from llmx_cpu.native import ISA_NAMES, library
from llmx_cpu.roofline import Roofline, measure_roofline

__all__ = ["Loaded", "kernel_times"]

_BASE_CONTEXT = 16  # tokens: the step that attention is measured against
_NORMS, _ACTS = ("rms", "layer", "l2"), ("silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu", "tanh", "sigmoid")  # csrc/rowwise.h


@dataclass(frozen=True)
class Loaded:
    """A loaded executor, as much of it as is measured. matrices: handle -> (storage, rows, columns); submit: runs one Step."""

    engine: int
    isa: str
    threads: int
    activations: str
    tape: BuiltTape
    matrices: dict[int, tuple[str, int, int]]
    specs: Sequence[KVSpec]  # one per layer with pages
    kv_value_bytes: float
    max_tokens: int
    max_context: int
    submit: Callable[[Step], StepOutput]
    groups: int


@dataclass(frozen=True)
class _Product:
    """One product of the tape: parts [first, first + count), k input columns."""

    first: int
    count: int
    k: int
    label: str
    head: bool


def kernel_times(loaded: Loaded, rows: Sequence[int], contexts: Sequence[int], repeats: int) -> dict[str, Any]:
    """{"limits": the machine's, "kernels": [{"kernel", "shape", "rows", "us", "least_us", "share"}, ...]}; share = least_us / us.

    rows: of products and row kernels; contexts: tokens before the measured decode step. Raises PlatformError.
    """
    limits = measure_roofline(loaded.isa, loaded.threads)
    found = [*_products(loaded, limits, rows, repeats), *_row_kernels(loaded, limits, rows, repeats), *_attention(loaded, limits, contexts, repeats)]
    shown = {"isa": limits.isa, "threads": limits.threads, "read": limits.read, "f32": limits.f32, "bf16": limits.bf16, "int8": limits.int8}
    return {"limits": shown, "kernels": found}


def _entry(kernel: str, shape: str, rows: int, seconds: float, least: float) -> dict[str, Any]:
    return {"kernel": kernel, "shape": shape, "rows": rows, "us": seconds * 1e6, "least_us": least * 1e6, "share": least / seconds if seconds > 0 else 0.0}


# -- products ------------------------------------------------------------------------------------------------------------


def _tape_products(loaded: Loaded) -> Iterator[_Product]:
    for op in loaded.tape.ops:
        if op.kind == KINDS["linear"]:
            yield _product(loaded, op.i[0], op.i[1], op.i[2], head=bool(op.rows))
        elif op.kind == KINDS["mlp"]:
            yield _product(loaded, op.i[0], 2, op.i[2], head=False)
            yield _product(loaded, op.i[0] + 2, 1, op.i[6], head=False)


def _product(loaded: Loaded, first: int, count: int, k: int, *, head: bool) -> _Product:
    parts = [loaded.matrices[loaded.tape.parts[i].weight] for i in range(first, first + count)]
    kinds = "+".join(dict.fromkeys(storage for storage, _, _ in parts))
    return _Product(first, count, k, f"{kinds} {k} -> {sum(rows for _, rows, _ in parts)}", head)


def _products(loaded: Loaded, limits: Roofline, rows: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    found = []
    products = list(_tape_products(loaded))
    for m in rows:
        todo = [one for one in products if m <= (HEAD_ROWS if one.head else loaded.max_tokens)]
        best = _run_products(loaded, todo, m, repeats)
        times: dict[str, list[float]] = {}
        for one, seconds in zip(todo, best, strict=True):
            times.setdefault(one.label, []).append(seconds)
        for label, each in times.items():
            one = next(p for p in todo if p.label == label)
            found.append(_entry("linear", label, m, sum(each) / len(each), _least(loaded, limits, one, m)))
    return found


def _run_products(loaded: Loaded, products: Sequence[_Product], m: int, repeats: int) -> list[float]:
    """The best time of each product over the repeats, all of them in turn in every repeat."""
    lib, step = library(), C.sizeof(loaded.tape.parts._type_)
    begin = C.addressof(loaded.tape.parts)
    x = np.random.default_rng(0).standard_normal((m, max(p.k for p in products))).astype(np.float32)
    widths = [sum(loaded.matrices[loaded.tape.parts[i].weight][1] for i in range(p.first, p.first + p.count)) for p in products]
    y, fine = np.empty((m, max(widths)), np.float32), None if loaded.activations == "int16" else np.zeros(m, np.uint8)
    best = [float("inf")] * len(products)
    for _ in range(repeats):
        for at, (p, width) in enumerate(zip(products, widths, strict=True)):
            arguments = (loaded.engine, begin + p.first * step, p.count, x.ctypes.data, m, p.k, y.ctypes.data, width, None, 0)
            fine_rows = None if fine is None else fine.ctypes.data
            began = perf_counter_ns()
            failed = lib.llmx_test_linear(*arguments, fine_rows)
            best[at] = min(best[at], (perf_counter_ns() - began) / 1e9)
            if failed:
                raise PlatformError(f"product {p.label} with {m} rows: {lib.llmx_error().decode()}")
    return best


def _least(loaded: Loaded, limits: Roofline, product: _Product, m: int) -> float:
    """Seconds at the machine's limits: weights read once, operations of the type that the inputs have."""
    nbytes = ops8 = ops16 = ops32 = 0.0
    for i in range(product.first, product.first + product.count):
        storage, rows, cols = loaded.matrices[loaded.tape.parts[i].weight]
        elements, size = BLOCK_BYTES[storage]
        nbytes += rows * cols / elements * size
        ops = 2.0 * rows * cols * m
        if storage.startswith("q"):
            ops8 += ops * (2 if loaded.activations == "int16" else 1)  # two int8 planes
        elif storage == "bf16":
            ops16 += ops
        else:
            ops32 += ops
    return limits.seconds(nbytes=nbytes, int8_ops=ops8, bf16_ops=ops16, f32_ops=ops32)


# -- rows ----------------------------------------------------------------------------------------------------------------


def _row_kernels(loaded: Loaded, limits: Roofline, rows: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """Norm before a product and activation of an MLP, on one thread: their least time is that of reading and writing the rows."""
    lib, isa, found = library(), ISA_NAMES.index(loaded.isa), []
    norms = {(op.i[3] - 1, op.i[2]) for op in loaded.tape.ops if op.kind in (KINDS["linear"], KINDS["mlp"]) and op.i[3]}
    acts = {(op.i[5], op.i[6]) for op in loaded.tape.ops if op.kind == KINDS["mlp"]}
    for m in rows:
        for kind, width in sorted(norms):
            x, w = np.ones((m, width), np.float32), np.ones(width, np.float32)
            y, ones = np.empty_like(x), w.ctypes.data
            seconds = _best(partial(lib.llmx_test_norm, isa, kind, 1e-5, 0, ones, None, x.ctypes.data, None, 0, y.ctypes.data, m, width, 1), repeats)
            found.append(_entry("norm", f"{_NORMS[kind]} {width}", m, seconds, 8.0 * m * width / limits.read))
        for kind, width in sorted(acts):
            x, y = np.ones((m, 2 * width), np.float32), np.empty((m, width), np.float32)
            seconds = _best(partial(lib.llmx_test_act, isa, kind, 1, x.ctypes.data, y.ctypes.data, m, width), repeats)
            found.append(_entry("act_mul", f"{_ACTS[kind]} {width}", m, seconds, 12.0 * m * width / limits.read))
    return found


def _best(run: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(max(repeats, 5)):
        began = perf_counter_ns()
        run()
        times.append(perf_counter_ns() - began)
    return min(times) / 1e9


# -- attention -----------------------------------------------------------------------------------------------------------


def _attention(loaded: Loaded, limits: Roofline, contexts: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """Per layer: what a decode step of one request takes longer at a context than at a short one. The pages are what lies there."""
    fitting = [c for c in contexts if c + 2 <= loaded.max_context]
    if not fitting or not loaded.specs:
        return []
    seq = iter(range(1 << 30))
    base, found = _decode_seconds(loaded, _BASE_CONTEXT, repeats, seq), []
    for context in fitting:
        per_layer = max(_decode_seconds(loaded, context, repeats, seq) - base, 1e-9) / len(loaded.specs)
        nbytes = sum(_kv_bytes(loaded, spec, context) - _kv_bytes(loaded, spec, _BASE_CONTEXT) for spec in loaded.specs) / len(loaded.specs)
        found.append(_entry("attention", f"context {context}", 1, per_layer, nbytes / limits.read))
    return found


def _kv_bytes(loaded: Loaded, spec: KVSpec, context: int) -> float:
    return spec.kv_heads * (spec.head_dim + spec.v_head_dim) * loaded.kv_value_bytes * min(context, spec.window or context)


def _decode_seconds(loaded: Loaded, context: int, repeats: int, seq: Iterator[int]) -> float:
    """The shortest decode step of one request that has `context` tokens before it."""
    slot, empty = np.zeros(1, np.int32), np.empty((0, 3), np.int32)
    count = -(-(context + 1) // BLOCK_TOKENS)
    blocks = np.array([(0, i, 1 + i) for i in range(count)], np.int32)
    tokens = np.zeros(context + 1, np.int32)
    loaded.submit(Step(next(seq), joined=[Joined(0, tokens, context + 1, SamplingRow())], new_blocks=(blocks,) * loaded.groups))
    one, start, none = np.ones(1, np.int32), np.array([context], np.int32), (empty,) * loaded.groups
    times = [loaded.submit(Step(next(seq), slot=slot, q=one, start=start, tokens=tokens[-1:], new_blocks=none)).t_us[0] for _ in range(repeats)]
    loaded.submit(Step(next(seq), left=slot, new_blocks=none))
    return min(times) / 1e6

