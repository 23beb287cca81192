"""Roofline: the machine's limits, measured with the instructions that the kernels use. What a kernel reaches of them tells what is left to win."""

from __future__ import annotations

import ctypes as C

from llmx.errors import PlatformError
from llmx.record import record
from llmx_cpu.native import ISA_NAMES, library

__all__ = ["Roofline", "measure_roofline"]

_READ_BYTES = 256 << 20  # more than caches hold


@record
class Roofline:
    """What all threads reach together, per second of processor time. read: bytes; f32, bf16, int8: operations (a multiply-add is two)."""

    isa: str
    threads: int
    read: float
    f32: float
    bf16: float
    int8: float

    def seconds(self, *, nbytes: float = 0.0, int8_ops: float = 0.0, bf16_ops: float = 0.0, f32_ops: float = 0.0) -> float:
        """Least time for this much work: that of reading or that of computing, whichever is longer."""
        return max(nbytes / self.read, int8_ops / self.int8 + bf16_ops / self.bf16 + f32_ops / self.f32)


def measure_roofline(isa: str, threads: int) -> Roofline:
    """Measures for about a second. Raises PlatformError when this CPU cannot run the level, or the library is of other sources."""
    lib = library()
    try:
        peak, read = lib.llmx_peak_ops, lib.llmx_read_rate
    except AttributeError as error:
        raise PlatformError(f"native library: {error}: it was built from other sources; reinstall llmx-platform-cpu") from error
    peak.restype, peak.argtypes = C.c_double, [C.c_int, C.c_int, C.c_int]
    read.restype, read.argtypes = C.c_double, [C.c_int, C.c_int64]
    f32, bf16, int8 = (peak(ISA_NAMES.index(isa), kind, threads) for kind in range(3))  # csrc/roofline.h
    rate = read(threads, _READ_BYTES)
    if not min(f32, bf16, int8, rate):
        raise PlatformError(f"the limits of level {isa!r} with {threads} threads cannot be measured here: the CPU lacks the level, or memory is short")
    return Roofline(isa, threads, rate, f32, bf16, int8)
