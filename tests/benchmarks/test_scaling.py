"""The expected shapes of the sweeps: they go through both ends, and lie where the formula says between them."""

from __future__ import annotations

import pytest
from benchmarks.run_engine import shape_of
from benchmarks.scaling import SWEEPS, fit


def test_curve_through_both_ends() -> None:
    # 2 ms for a step, 1 ms for each request in it
    truth = [(n, n / (0.002 + 0.001 * n)) for n in (1, 2, 8, 64)]
    guess = fit([(truth[0][0], truth[0][1]), (2, None), (8, 1.0), truth[-1]], SWEEPS["batch"]["terms"])
    assert [x for x, _ in guess] == [1, 2, 8, 64]
    assert [y for _, y in guess] == pytest.approx([y for _, y in truth])


def test_context_halves_where_its_reading_equals_the_weights() -> None:
    points = [(0.0, 100.0), (4000.0, 0.5), (8000.0, 100 / 3)]
    assert fit(points, SWEEPS["context"]["terms"])[1][1] == pytest.approx(50.0)
    assert fit([(1.0, 2.0), (2.0, None)], SWEEPS["context"]["terms"]) == []


def test_workloads_of_all_sizes_can_be_run() -> None:
    for what in SWEEPS.values():
        shapes = [shape_of(what["workload"](size)) for size in what["sizes"]]
        assert all(shape.length + shape.new <= 8192 for shape in shapes)
