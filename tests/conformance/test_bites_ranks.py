"""The area of collectives bites: faults planted into communicators, between threads and in a vendor's package, each found by the case that should."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmx.hooks.loader import load_target
from llmx.testing.conformance import Suite, collectives
from llmx.testing.conformance.rank_cases import CASES, LOST
from llmx.testing.conformance.rank_cases import run as run_cases
from tests.distributed.ranks import ThreadCommunicator, communicators, in_threads
from tests.hooks.vendor import PROBE, install

Patch = pytest.MonkeyPatch
NumpyArrays: Any = load_target("llmx.engine.meeting:NumpyArrays")


class Faulty:
    """A right communicator for numpy arrays, whose results pass through one function: (op, result, what each rank gave, rank, turn)."""

    def __init__(self, end: ThreadCommunicator, fault: Callable[..., Any]) -> None:
        self.rank, self.size, self._end, self._fault, self._turn = end.rank, end.size, end, fault, 0

    def supports(self, op: str, dtype: str) -> str | None:
        return None if op in ("all_reduce", "all_gather", "broadcast") else "unknown"

    def _made(self, op: str, x: np.ndarray, make: Callable[[list[np.ndarray]], np.ndarray]) -> np.ndarray:
        self._turn += 1
        parts = [part.copy() for part in self._end._all(x)]
        self._end._all(None)  # nobody changes its array while others copy it
        return self._fault(op, make(parts), parts, x, self.rank, self._turn)

    def all_reduce(self, x: np.ndarray) -> np.ndarray:
        return self._made("sum", x, total)

    def all_gather(self, x: np.ndarray) -> np.ndarray:
        return self._made("gather", x, lambda parts: np.concatenate(parts, -1))

    def broadcast(self, x: np.ndarray, root: int) -> np.ndarray:
        return self._made("broadcast", x, lambda parts: parts[root])

    def abort(self) -> None:
        self._end.abort()

    def close(self) -> None:
        pass


def total(parts: list[np.ndarray]) -> np.ndarray:
    """In the order given, rounded to the type after each."""
    found = parts[0].copy()
    for part in parts[1:]:
        found = (found + part).astype(found.dtype)
    return found


def right(op: str, result: Any, parts: Any, x: Any, rank: int, turn: int) -> Any:
    return result


def reversed_rows(op: str, result: Any, parts: Any, x: Any, rank: int, turn: int) -> Any:
    return np.concatenate(parts[::-1], -1) if op == "gather" else result


def first_axis(op: str, result: Any, parts: Any, x: Any, rank: int, turn: int) -> Any:
    return np.concatenate(parts, 0) if op == "gather" else result


def lost_part(op: str, result: Any, parts: Any, x: Any, rank: int, turn: int) -> Any:
    return total(parts[:-1]) if op == "sum" else result


def own_part_first(op: str, result: Any, parts: Any, x: Any, rank: int, turn: int) -> Any:
    return total([parts[rank], *parts[:rank], *parts[rank + 1 :]]) if op == "sum" else result


def last_to_first(op: str, result: Any, parts: Any, x: Any, rank: int, turn: int) -> Any:
    return total(parts[::-1]) if op == "sum" else result


def half_precision(op: str, result: Any, parts: Any, x: Any, rank: int, turn: int) -> Any:
    return total([p.astype(np.float16) for p in parts]).astype(x.dtype) if op == "sum" and x.dtype == np.float32 else result


def rank_zero_always(op: str, result: Any, parts: Any, x: Any, rank: int, turn: int) -> Any:
    return parts[0] if op == "broadcast" else result


def short(op: str, result: Any, parts: Any, x: Any, rank: int, turn: int) -> Any:
    """What lies behind the first megabyte is not exchanged."""
    result.reshape(-1)[(1 << 20) // result.itemsize :] = 0
    return result


def in_place(op: str, result: Any, parts: Any, x: Any, rank: int, turn: int) -> Any:
    if op == "sum":
        x[...] = result
    return result


class Reused:
    """Results of one size share memory."""

    def __init__(self) -> None:
        self.kept: dict[Any, np.ndarray] = {}

    def __call__(self, op: str, result: Any, parts: Any, x: Any, rank: int, turn: int) -> Any:
        kept = self.kept.setdefault((op, rank, result.shape, result.dtype), result)
        kept[...] = result
        return kept


class Stale:
    """One call in forty gives what the call before gave, where the shapes are equal, and else zeros."""

    def __init__(self) -> None:
        self.before: dict[int, np.ndarray] = {}

    def __call__(self, op: str, result: Any, parts: Any, x: Any, rank: int, turn: int) -> Any:
        before, self.before[rank] = self.before.get(rank), result
        return result if turn % 40 else (before.copy() if before is not None and before.shape == result.shape else result * 0)


def other_type(op: str, result: Any, parts: Any, x: Any, rank: int, turn: int) -> Any:
    return result.astype(np.float64) if x.dtype == np.float32 else result


def one_rank_differs(op: str, result: Any, parts: Any, x: Any, rank: int, turn: int) -> Any:
    """A last bit, on one rank only, in what no rank can foresee: broadcasts of the others' rows."""
    return np.nextafter(result, np.inf) if op == "broadcast" and rank == 1 and x.dtype == np.float32 and x.size else result


SUMS, ROWS, ONE, OWN, MANY = tuple(CASES)[:5]
# fault -> (case that finds it, ranks, what is planted)
FAULTS: dict[str, tuple[str, int, Callable[..., Any]]] = {
    "rows in the wrong order of ranks": (ROWS, 2, reversed_rows),
    "rows below each other": (ROWS, 2, first_axis),
    "a rank's part is not in the sum": (SUMS, 4, lost_part),
    "each rank adds its own part first": (SUMS, 4, own_part_first),
    "sums from the last rank to the first": (SUMS, 4, last_to_first),
    "sums in reduced precision": (SUMS, 2, half_precision),
    "the root is ignored": (ONE, 2, rank_zero_always),
    "only the first megabyte is exchanged": (SUMS, 2, short),
    "the input is overwritten": (OWN, 2, in_place),
    "results share memory": (OWN, 2, Reused()),
    "a result of an earlier call": (MANY, 2, Stale()),
    "a result of another type": (SUMS, 2, other_type),
    "one rank has other bits": (ONE, 4, one_rank_differs),
}


class Threads:
    """llmx.engine.meeting.Meeting with threads of this process for processes."""

    fault: Callable[..., Any] = staticmethod(right)

    def __init__(self, options: dict[str, Any], size: int, task: str) -> None:
        assert load_target(task) is run_cases
        ends, self._said = communicators(size), list[dict[str, Any]]()

        def rank(at: int) -> None:
            run_cases(Faulty(ends[at], type(self).fault), NumpyArrays(), lambda message: self._said.append({"rank": at, **message}), {})

        in_threads(rank, ends)

    def said(self, silence_s: float) -> Iterator[dict[str, Any]]:
        yield from self._said

    def noise(self) -> str:
        return ""

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _result(monkeypatch: Patch, case: str, size: int, fault: Callable[..., Any]) -> Any:
    monkeypatch.setattr(Threads, "fault", staticmethod(fault))
    monkeypatch.setattr(collectives, "Meeting", Threads)
    suite = Suite("cpu", areas=["collectives"])
    (check,) = [check for check in suite.checks if check.name == f"{case}, {size} ranks"]
    for other in set(CASES) - {case}:
        monkeypatch.delitem(CASES, other)
    return suite.run_one(check)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: Patch) -> None:
    case, size, plant = FAULTS[fault]
    result = _result(monkeypatch, case, size, plant)
    assert result.outcome == "failed" and "rank" in result.why, f"{case} did not notice: {result}"


def test_the_same_communicator_without_a_fault_passes(monkeypatch: Patch) -> None:
    for case in (SUMS, ROWS, ONE, OWN, MANY):
        result = _result(monkeypatch, case, 4, right)
        assert result.outcome == "passed", result.why
        monkeypatch.undo()


VENDOR = """
from llmx.hooks import PlatformInfo, hookimpl
from llmx.platform.null import NullPlatform
from llmx_cpu.collectives import MemoryCommunicator, shared_memory

class Bad(MemoryCommunicator):
    {fault}

class Plugin(NullPlatform):
    @hookimpl
    def llmx_platform_info(self):
        return PlatformInfo("bad", "bad", (1, 1), "llmx-platform-bad")

    @hookimpl
    def llmx_process_group(self, size):
        return shared_memory(size)

    @hookimpl
    def llmx_communicator(self, group):
        return Bad(group)
"""
PROCESSES = {
    "nobody hears of a lost rank": (LOST, "def abort(self): pass", "rank 0 of 2 did not come back.*no rank said anything for 3 s"),
    "a rank ends before the others": (MANY, "def all_gather(self, x): __import__('os')._exit(3)", "did not come back"),
}


@pytest.mark.parametrize("fault", PROCESSES)
def test_a_fault_between_processes_is_found(fault: str, tmp_path: Path, monkeypatch: Patch) -> None:
    case, body, words = PROCESSES[fault]
    entry = "[llmx.probes]\nbad = bad_llmx.probe:detect\n[llmx.platforms]\nbad = bad_llmx.plugin:Plugin\n"
    files = {"bad_llmx/__init__.py": "", "bad_llmx/probe.py": PROBE.format(present=True, score=1, why="1 bad"), "bad_llmx/plugin.py": VENDOR.format(fault=body)}
    install(tmp_path, monkeypatch, "llmx-platform-bad", files, entry)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setattr(collectives, "SILENCE_S", 3.0)
    suite = Suite("bad", areas=["collectives"])
    (check,) = [check for check in suite.checks if check.name == f"{case}, 2 ranks"]
    result = suite.run_one(check)
    assert result.outcome == "failed", result
    assert re.search(words, result.why), result.why
