"""The thread pool: results do not depend on threads, sleeping workers wake, and a crowded machine only costs time."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
from tests.cpu.test_linear import Engine

from llmx.weights.quant import quantize
from llmx_cpu.native import ISA_NAMES, best_isa, library

ISA = ISA_NAMES.index(best_isa())


def product(engine: Engine, weight: int, x: np.ndarray) -> np.ndarray:
    return engine.linear([(weight, -1, 0)], x, 1040)


def test_many_threads_many_calls_same_bits() -> None:
    """More threads than CPUs, calls back to back and after pauses long enough for workers to sleep."""
    rng = np.random.default_rng(0)
    tensor = quantize(rng.standard_normal((1040, 256)).astype(np.float32), "q4_1")
    inputs = [rng.standard_normal((m, 256)).astype(np.float32) for m in (1, 3, 17, 64)]
    one = Engine(ISA, 1)
    want = [product(one, one.weight(tensor), x) for x in inputs]
    assert library().llmx_engine_phases(one.pointer) == 0, "one thread hands nothing over"
    one.close()
    for threads in (2, 3, 8):
        many = Engine(ISA, threads)
        weight = many.weight(tensor)
        for turn in range(60):
            if turn % 20 == 0:
                time.sleep(0.02)
            for x, y in zip(inputs, want, strict=True):
                assert np.array_equal(product(many, weight, x), y)
        assert library().llmx_engine_phases(many.pointer) > 60
        many.close()


def test_busy_neighbour_does_not_block_a_phase() -> None:
    """Workers that are not scheduled hold no chunk: with every CPU taken by others a call still ends. 30 s is a hang guard."""
    code = "import time\nend = time.time() + 3\nwhile time.time() < end: pass"
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    try:
        engine = Engine(ISA, 4)
        weight = engine.weight(quantize(np.ones((1040, 256), np.float32), "q8_0"))
        x, began = np.ones((4, 256), np.float32), time.monotonic()
        for _ in range(200):
            product(engine, weight, x)
        assert time.monotonic() - began < 30
        engine.close()
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_a_pool_ends_whatever_its_threads_are_doing() -> None:
    """Pools of more threads than processors, closed at once and after some work. Without an end the test's time limit says so."""
    tensor = quantize(np.ones((1040, 256), np.float32), "q8_0")
    for turn in range(400):
        engine = Engine(ISA, 8)
        if turn % 4 == 0:
            product(engine, engine.weight(tensor), np.ones((4, 256), np.float32))
        engine.close()
