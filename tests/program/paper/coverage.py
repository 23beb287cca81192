"""Which elements of a checkpoint's tensors a Model uses.

Rule for stacked tensors (experts): a reference covers the part that its transforms cut out; all references of a tensor together
must cover every element once. A reference that stands in several ops (tied head) counts once.
"""

from __future__ import annotations

import math

import numpy as np

from llmx.program.ops import Model, WeightRef


def check_coverage(model: Model, parameters: dict[str, tuple[int, ...]], buffers: dict[str, tuple[int, ...]]) -> None:
    """Asserts that every parameter is used exactly once, by its name and shape, and nothing else is (buffers may be)."""
    counts: dict[str, np.ndarray] = {}
    for ref in model.weights().values():
        stored = parameters.get(ref.name, buffers.get(ref.name))
        assert stored is not None, f"the checkpoint has no tensor {ref.name}"
        turned = any(change.name == "transpose" for change in ref.transforms)
        rows = stored[1:] if turned else stored[: max(1, len(stored) - 1)]  # columns are never cut
        count = counts.setdefault(ref.name, np.zeros(rows, np.int8))
        _mark(count, stored, ref)
    unused = sorted(set(parameters) - set(counts))
    assert not unused, f"parameters not used: {unused}"
    for name, count in counts.items():
        assert (count == 1).all(), f"{name}: rows are used {count.min()} to {count.max()} times"


def _mark(count: np.ndarray, stored: tuple[int, ...], ref: WeightRef) -> None:
    shape, view = stored, count
    for change in ref.transforms:
        if change.name == "row":
            shape, view = shape[1:], view[change.args[0]]
        elif change.name == "slice_rows":
            shape, view = (change.args[1] - change.args[0], *shape[1:]), view[slice(*change.args)]
        elif change.name == "transpose":
            shape = shape[::-1]
        elif change.name == "flatten":
            shape = (shape[0], math.prod(shape[1:]))
        elif change.name != "permute_rows":
            raise AssertionError(f"{ref.name}: how much {change.name} covers is not written here")
    assert shape == ref.shape, f"{ref.name}: stored {stored} becomes {shape}, the model asks for {ref.shape}"
    view += 1
