"""The suite bites where a device is captured and sleeps: faults planted into graphs and memory, each found by the area that should."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from llmx.executor.torch.buckets import Buckets  # noqa: E402
from llmx.executor.torch.graphs import RecordedGraphs  # noqa: E402
from llmx.executor.torch.storage import StorageAllocator  # noqa: E402
from llmx.testing.conformance import Suite  # noqa: E402

Patch = pytest.MonkeyPatch


def _stale(name: str) -> Callable[[Patch], None]:
    """An input of a size stays what it was in the first step of that size."""
    real = Buckets.run

    def plant(patch: Patch) -> None:
        kept: dict[tuple[int, int], torch.Tensor] = {}

        def run(self: Any, size: int, rows: Any, inputs: Mapping[str, Any]) -> Any:
            old = kept.setdefault((size, inputs[name].shape[-1]), inputs[name].clone())
            return real(self, size, rows, {**inputs, name: old})

        patch.setattr(Buckets, "run", run)

    return plant


def _once(patch: Patch) -> None:
    """A replay does nothing: results stay what they were when the graph was recorded."""
    patch.setattr(RecordedGraphs, "capture", lambda self, run: (run(), lambda: None)[1])


def _shifted(patch: Patch) -> None:
    """The real rows are taken from the end of the padded ones."""
    real = Buckets._real

    def rows(self: Any, value: int, whole: Any, count: int) -> Any:
        found = real(self, value, whole, count)
        return found if found.shape == whole.shape or whole.dim() == 1 else whole[len(whole) - count :]

    patch.setattr(Buckets, "_real", rows)


def _late(patch: Patch) -> None:
    """A graph is recorded in each step."""
    real = Buckets.run

    def run(self: Any, *given: Any) -> Any:
        self.stats["graphs"] += 1
        return real(self, *given)

    patch.setattr(Buckets, "run", run)


def _forgets(patch: Patch) -> None:
    real = StorageAllocator.release
    patch.setattr(StorageAllocator, "release", lambda self, tag, *, keep: real(self, tag, keep=False))


def _keeps(patch: Patch) -> None:
    patch.setattr(StorageAllocator, "release", lambda self, tag, *, keep: 0)


FAULTS: dict[str, tuple[str, str, Callable[[Patch], None]]] = {
    "a stale input of a graph": ("graph capture", "replays see new inputs", _stale("ids")),
    "stale positions": ("graph capture", "replays see other requests", _stale("positions")),
    "a replay that does nothing": ("graph capture", "replays see new inputs", _once),
    "padding instead of real rows": ("graph capture", "padding changes nothing", _shifted),
    "a graph recorded while serving": ("graph capture", "nothing is recorded after the warm up", _late),
    "weights that are lost in sleep": ("memory and sleep", "logits are the same after waking", _forgets),
    "memory that stays taken": ("memory and sleep", "weights and pages are given back", _keeps),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: Patch) -> None:
    area, name, plant = FAULTS[fault]
    suite = Suite("xpu", emulate=True, areas=[area])
    (check,) = [check for check in suite.checks if check.name == name]
    plant(monkeypatch)
    result = suite.run_one(check)
    assert result.outcome == "failed" and result.why, f"{check} did not notice"
