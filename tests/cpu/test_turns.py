"""Turns: engines of several processes that share a number of threads."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from tests.cpu.test_linear import Engine

from llmx_cpu.native import ISA_NAMES, best_isa, library

ISA = ISA_NAMES.index(best_isa())
ROOT = Path(__file__).parents[2]
HOLD_US = 3000
FOR_EVER_US = 10**9
HANG_S = 60.0


class Crowd:
    """Processes that compute phases, and the board on which they write what they see."""

    def __init__(self, folder: Path) -> None:
        self.turns, self._file = folder / "turns", folder / "board"
        self.turns.touch()
        self._file.write_bytes(bytes(64 * 1024))
        self.board = np.memmap(self._file, np.int64, "r+")
        self.processes: list[subprocess.Popen[bytes]] = []

    def join(self, threads: int, budget: int, *, chunks: int, us: int, hold_us: int = HOLD_US, pause_ms: int = 0, shares: bool = True) -> int:
        """Start one and wait until it counts; its place."""
        place, file = len(self.processes), str(self.turns) if shares else "-"
        numbers = map(str, (place, threads, budget, hold_us, chunks, us, pause_ms))
        command = [sys.executable, "-m", "tests.cpu.turn_worker", file, str(self._file), *numbers]
        self.processes.append(subprocess.Popen(command, cwd=ROOT))
        self.until(lambda: bool(self.own(place)[2]))
        return place

    def own(self, place: int) -> np.ndarray:
        return self.board[8 * (1 + place) :][:8]

    def phases(self, place: int) -> int:
        return int(self.own(place)[0])

    def until(self, true: Callable[[], bool]) -> float:
        """Seconds until it is true."""
        began = time.monotonic()
        while not true():
            assert time.monotonic() - began < HANG_S and all(one.poll() in (None, -signal.SIGKILL) for one in self.processes)
            time.sleep(0.002)
        return time.monotonic() - began

    def goes_on(self, place: int) -> float:
        """Seconds until one has ended two more phases."""
        before = self.phases(place)
        return self.until(lambda: self.phases(place) > before + 1)


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Crowd]:
    made = Crowd(tmp_path)
    yield made
    for one in made.processes:
        one.kill()
        one.wait()


def run(crowd: Crowd, seconds: float) -> list[int]:
    """Phases that each ended in that time, with the most threads counted anew."""
    places = range(len(crowd.processes))
    for place in places:
        crowd.goes_on(place)
        crowd.own(place)[1] = 0
    before = [crowd.phases(place) for place in places]
    time.sleep(seconds)
    return [crowd.phases(place) - was for place, was in zip(places, before, strict=True)]


def test_no_more_threads_compute_than_the_budget_and_each_gets_its_share(crowd: Crowd) -> None:
    for _ in range(2):
        crowd.join(2, 2, chunks=32, us=200)
    one, other = run(crowd, 3.0)
    assert max(crowd.own(0)[1], crowd.own(1)[1]) == 2
    assert abs(one - other) <= 0.2 * max(one, other) and min(one, other) > 50
    assert crowd.own(0)[2] == crowd.own(1)[2] == 1, "bits are those of an engine alone"


def test_without_a_budget_all_threads_compute_at_once(crowd: Crowd) -> None:
    for _ in range(2):
        crowd.join(2, 2, chunks=32, us=200, shares=False)
    run(crowd, 1.0)
    assert max(crowd.own(0)[1], crowd.own(1)[1]) == 4, "else the test above proves nothing"


def test_engines_that_fit_together_run_together(crowd: Crowd) -> None:
    for threads in (1, 1, 2):
        crowd.join(threads, 3, chunks=16, us=200)
    run(crowd, 1.5)
    assert max(crowd.own(place)[1] for place in range(3)) == 3


def test_more_threads_than_the_budget_run_alone(crowd: Crowd) -> None:
    crowd.join(4, 2, chunks=32, us=200)
    crowd.join(1, 2, chunks=32, us=200)
    wide, narrow = run(crowd, 1.5)
    assert wide and narrow and crowd.own(1)[1] == 1, "the other saw nobody beside itself"


def test_a_turn_ends_in_the_middle_of_a_long_phase(crowd: Crowd) -> None:
    crowd.join(2, 2, chunks=200, us=4000)  # 400 ms
    crowd.join(2, 2, chunks=4, us=500, pause_ms=2)  # 1 ms
    run(crowd, 4.0)
    times = crowd.board[1024 + 256 :][: min(256, crowd.phases(1))]
    assert len(times) > 30 and median(times) < 40_000 and np.quantile(times, 0.9) < 120_000


def test_a_holder_that_is_killed_frees_the_others(crowd: Crowd) -> None:
    crowd.join(2, 2, chunks=64, us=1000, hold_us=FOR_EVER_US)
    crowd.goes_on(0)
    crowd.processes[0].send_signal(signal.SIGSTOP)  # most likely within a phase
    crowd.join(2, 2, chunks=4, us=200)
    crowd.processes[0].kill()
    assert crowd.goes_on(1) < 0.8, "before it would be passed over as one that is stopped"


def test_a_holder_that_is_stopped_is_passed_over_and_comes_back(crowd: Crowd) -> None:
    stopped = crowd.join(2, 2, chunks=400, us=1000)
    other = crowd.join(2, 2, chunks=4, us=200, pause_ms=50)
    held: list[float] = []
    for _ in range(6):  # some of them while it holds its turn
        crowd.processes[stopped].send_signal(signal.SIGSTOP)
        held.append(crowd.goes_on(other))
        assert crowd.goes_on(other) < 1.0, "it is waited for once"
        crowd.processes[stopped].send_signal(signal.SIGCONT)
        time.sleep(0.2)
    assert 1.0 < max(held) < 3.0
    crowd.goes_on(other)
    crowd.own(other)[1] = 0
    before = crowd.phases(stopped)
    crowd.until(lambda: crowd.phases(stopped) > before)
    assert crowd.own(other)[1] <= 2


def test_who_waits_is_told_when_the_holder_progresses_slowly(crowd: Crowd) -> None:
    """Chunks longer than the patience: both compute at once for a while rather than wait for good."""
    crowd.join(2, 2, chunks=4, us=4_000_000)
    waiting = crowd.join(2, 2, chunks=4, us=200)
    assert crowd.goes_on(waiting) < 20


def waits_of(engine: Engine) -> list[int] | None:
    out = (ctypes.c_int64 * 2)()
    return list(out) if library().llmx_engine_turn_waits(engine.pointer, ctypes.addressof(out)) == 0 else None


def test_a_file_that_cannot_be_used_leaves_the_engine_without_turns(tmp_path: Path) -> None:
    engine = Engine(ISA, 1)
    assert library().llmx_engine_turns(engine.pointer, str(tmp_path / "none" / "file").encode(), 1, HOLD_US) == -1
    assert waits_of(engine) is None
    engine.close()


def test_places_are_limited_and_given_back(tmp_path: Path) -> None:
    file = str(tmp_path / "turns").encode()
    (tmp_path / "turns").touch()
    engines = [Engine(ISA, 1) for _ in range(33)]
    joined = [library().llmx_engine_turns(engine.pointer, file, 2, HOLD_US) for engine in engines]
    assert joined == [0] * 32 + [-1] and waits_of(engines[0]) == [0, 0]
    engines[5].close()
    assert library().llmx_engine_turns(engines[32].pointer, file, 2, HOLD_US) == 0
    for engine in engines[:5] + engines[6:]:
        engine.close()
    assert os.stat(file).st_size < 8192
