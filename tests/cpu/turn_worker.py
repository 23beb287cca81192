"""Phases one behind the other in a process that shares threads with others, written down on a board.

    python -m tests.cpu.turn_worker FILE BOARD PLACE THREADS BUDGET HOLD_US CHUNKS US PAUSE_MS

FILE "-": it shares none. BOARD: a file of 64-bit numbers that all processes map. [0]: threads that are within a chunk now. From 8 * (1 + PLACE)
on, of this process: phases so far, the most threads that were within a chunk meanwhile, whether products have the bits that they have alone.
From 1024 + 256 * PLACE on, a ring: microseconds of its last phases.
"""

from __future__ import annotations

import mmap
import sys
import time

import numpy as np
from tests.cpu.test_linear import Engine

from llmx.weights.quant import quantize
from llmx_cpu.native import ISA_NAMES, best_isa, library


def main() -> None:
    file, board_file, *numbers = sys.argv[1:]
    place, threads, budget, hold_us, chunks, us, pause_ms = map(int, numbers)
    with open(board_file, "r+b") as opened:
        board = np.frombuffer(mmap.mmap(opened.fileno(), 0), np.int64)
    own, times = board[8 * (1 + place) :][:8], board[1024 + 256 * place :][:256]
    engine = Engine(ISA_NAMES.index(best_isa()), threads)
    rng = np.random.default_rng(0)
    weight = engine.weight(quantize(rng.standard_normal((1040, 256)).astype(np.float32), "q4_1"))
    x = rng.standard_normal((5, 256)).astype(np.float32)
    alone = engine.linear([(weight, -1, 0)], x, 1040)
    own[2] = 1
    if file != "-":
        assert library().llmx_engine_turns(engine.pointer, file.encode(), budget, hold_us) == 0
    while True:
        began = time.monotonic_ns()
        most = library().llmx_test_phase(engine.pointer, board.ctypes.data, chunks, us)
        times[own[0] % 256] = (time.monotonic_ns() - began) // 1000
        own[0] += 1
        own[1] = max(own[1], most)
        own[2] &= np.array_equal(engine.linear([(weight, -1, 0)], x, 1040), alone)
        if pause_ms:
            time.sleep(pause_ms / 1000)


if __name__ == "__main__":
    main()
