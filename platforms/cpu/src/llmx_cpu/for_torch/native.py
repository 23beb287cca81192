"""The native kernels as kernels of core's torch executor: they read and write the memory of torch's tensors.

One native engine holds the packed weights and the pool of a model; it runs no Program. Between two calls its pool is parked, so that
torch's threads have the processors.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import partial
from typing import Any

import numpy as np
import torch

from llmx.errors import PlatformError
from llmx.executor import BLOCK_BYTES, Limits
from llmx.executor.op_weights import as_blocks
from llmx.executor.torch.kernel import Call, Spec, Tensor
from llmx.executor.torch.pages import StatePages
from llmx.executor.torch.rows import Rows
from llmx.executor.torch.weights import Weights
from llmx.program.attrs import AttentionAttrs
from llmx.program.positions import alibi_slopes
from llmx.record import record
from llmx_cpu.for_torch.pages import NativePages
from llmx_cpu.native import ISA_NAMES, WEIGHT_TYPES, AttentionArgs, PartRecord, best_isa, call, kernel_library

__all__ = ["auto", "avx2", "avx512", "neon", "portable"]


class _Engine:
    """Of one model. Raises PlatformError for a level that this CPU does not run."""

    def __init__(self, isa: str) -> None:
        lib, level = kernel_library(), best_isa() if isa == "auto" else isa
        self.pointer = lib.llmx_engine_new(ISA_NAMES.index(level), torch.get_num_threads()) if level in ISA_NAMES else None
        if not self.pointer:
            raise PlatformError(f"LLMX_CPU_ISA is {level!r}, but this CPU runs {best_isa()} at most: leave it out or give a lower level")
        weakref.finalize(self, lib.llmx_engine_free, self.pointer)
        self._room = (0, 0)

    def weight(self, weights: Weights, key: str, full: bool) -> tuple[int, int]:
        """(handle, rows) of a weight that is packed as it is stored, or as float32. Raises PlatformError."""
        tensor = as_blocks(weights[key])
        columns = tensor.shape[-1]
        data, stored = np.ascontiguousarray(tensor.data).reshape(tensor.rows, -1), WEIGHT_TYPES[tensor.dtype]
        elements, size = BLOCK_BYTES[tensor.dtype]
        to = WEIGHT_TYPES["f32"] if full else stored
        handle = call("llmx_engine_weight", self.pointer, stored, to, 0, tensor.rows, columns, data.ctypes.data, columns // elements * size)
        return handle, tensor.rows

    def vector(self, values: np.ndarray) -> int:
        """Handle of a float32 vector."""
        values = np.ascontiguousarray(values, np.float32)
        return call("llmx_engine_vector", self.pointer, values.ctypes.data, values.size)

    @property
    def nbytes(self) -> int:
        """Bytes of all packed weights."""
        return int(kernel_library().llmx_engine_weight_bytes(self.pointer))

    def widen(self, rows: int, columns: int) -> None:
        """Room for inputs of products. Raises PlatformError when there is no memory for it."""
        wanted = max(rows, self._room[0]), max(columns, self._room[1])
        if wanted != self._room:
            if error := kernel_library().llmx_kernel_room(self.pointer, *wanted):
                raise PlatformError(f"native kernels: {error.decode()}")
            self._room = wanted


@record
class _Parts:
    """A linear's weights in an engine. records: an array of PartRecord."""

    engine: _Engine
    records: Any
    count: int
    columns: int
    width: int


def _engine(weights: Weights, isa: str) -> _Engine:
    engine: _Engine = weights.shared(("native", isa), partial(_Engine, isa))
    return engine


class _Linear:
    """The op linear. Inputs of quantised weights are rounded to 16 bits; with --dtype float32 weights are packed as float32 and nothing is rounded."""

    isa = "auto"

    def __init__(self) -> None:
        self._nbytes = 0

    def pack(self, weights: Weights, spec: Spec, uses: tuple[str, ...]) -> _Parts:
        """Each weight packed once."""
        assert not isinstance(spec, tuple)
        engine, full = _engine(weights, self.isa), spec.dtype == "f32"
        before, records, width = engine.nbytes, [], 0
        for key in (key for key in weights if not key.endswith(".bias")):
            handle, rows = weights.shared(("native", self.isa, full, weights.refs[key]), partial(engine.weight, weights, key, full))
            bias = engine.vector(weights.dense(f"{key}.bias").numpy()) if f"{key}.bias" in weights else -1
            records.append(PartRecord(handle, bias, width, 0))
            width += rows
        self._nbytes = engine.nbytes - before
        return _Parts(engine, (PartRecord * len(records))(*records), len(records), spec.cols, width)

    def workspace(self, spec: Spec, limits: Limits) -> int:
        """Bytes of the weights packed here, which the executor does not see."""
        return self._nbytes

    def bind(self, spec: Spec, packed: _Parts, states: tuple[StatePages, ...]) -> Call:
        """The call with its weights."""
        run, engine, parts = kernel_library().llmx_kernel_linear, packed.engine, ctypes.addressof(packed.records)

        def call(rows: Rows, x: Tensor) -> Tensor:
            x = x.contiguous()
            flat = x.view(-1, packed.columns)
            y = x.new_empty((len(flat), packed.width))
            if len(flat):
                engine.widen(len(flat), packed.columns)
                run(engine.pointer, parts, packed.count, flat.data_ptr(), len(flat), packed.columns, y.data_ptr(), packed.width)
            return y.view(*x.shape[:-1], packed.width)

        return call


@record
class _Heads:
    """What attention has beside its rows: f32 [H] each, or None."""

    engine: _Engine
    sinks: Tensor | None
    alibi: Tensor | None


class _Attention:
    """The op attention over pages of float32 or bfloat16, brought into the native layout for the step."""

    def __init__(self, isa: str) -> None:
        self._isa = isa

    def pack(self, weights: Weights, spec: Spec, uses: tuple[str, ...]) -> _Heads:
        """Sinks and slopes."""
        assert not isinstance(spec, tuple)
        s = spec.attrs.spec
        slopes = weights.constant(("alibi", s.q_heads), lambda: alibi_slopes(s.q_heads)) if s.alibi else None
        return _Heads(_engine(weights, self._isa), weights.dense("sinks.0").contiguous() if s.sinks else None, slopes)

    def workspace(self, spec: Spec, limits: Limits) -> int:
        """Nothing that stays."""
        return 0

    def bind(self, spec: Spec, packed: _Heads, states: tuple[StatePages, ...]) -> Call:
        """The call with its pages."""
        assert not isinstance(spec, tuple)
        attrs: AttentionAttrs = spec.attrs
        s, run, (state,) = attrs.spec, kernel_library().llmx_kernel_attention, states
        window, both = s.window or 0, s.mask == "bidirectional"

        def call(rows: Rows, q: Tensor, *own: Tensor | None) -> Tensor:
            q = q.contiguous()
            out = q.new_empty((len(q), s.q_heads * s.v_head_dim))
            if not len(q):
                return out
            pages = NativePages.of(rows, state)
            memory = pages.gathered(state)
            arguments = AttentionArgs(
                kv_type=pages.kv_type, kv_heads=s.kv_heads, head_dim=s.head_dim, v_head_dim=s.v_head_dim, q_heads=s.q_heads, n=len(pages.slot),
                window=window, bidirectional=both, block_bytes=memory.stride(0) * memory.element_size(), stride=pages.table.shape[1],
                pages=memory.data_ptr(), table=pages.table.ctypes.data, slot=pages.slot.ctypes.data, q=pages.counts.ctypes.data,
                start=pages.starts.ctypes.data, query=q.data_ptr(), sinks=None if packed.sinks is None else packed.sinks.data_ptr(),
                alibi=None if packed.alibi is None else packed.alibi.data_ptr(), out=out.data_ptr(), ld_query=s.q_heads * s.head_dim,
                ld_out=s.q_heads * s.v_head_dim, scale=s.scale, soft_cap=s.soft_cap or 0.0,
            )  # fmt: skip
            if error := run(packed.engine.pointer, ctypes.addressof(arguments)):
                raise PlatformError(f"native attention: {error.decode()}")
            return out

        return call


class _Level:
    """The kernels of one instruction-set level. linear: a class, as each linear has weights of its own."""

    def __init__(self, isa: str) -> None:
        self.linear, self.attention = type("Linear", (_Linear,), {"isa": isa}), _Attention(isa)


auto, portable, avx2, avx512, neon = (_Level(isa) for isa in ("auto", "portable", "avx2", "avx512", "neon"))
