"""`llmx bench collectives`: times between real processes, and its mistakes."""

from __future__ import annotations

import json

import pytest

from llmx.hooks import COLLECTIVES
from tests.server.processes import llmx


def test_each_collective_is_timed_at_each_size() -> None:
    done = llmx("bench", "collectives", "--platform", "cpu", "--sizes", "1,3000000", "--repeats", "3", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["platform"] == "cpu" and report["ranks"] == 2
    found = {(one["op"], one["bytes"]): one for one in report["collectives"]}
    assert set(found) == {(op, size) for op in COLLECTIVES for size in (4, 3000000)}
    assert all(one["us"] >= one["least_us"] > 0 for one in found.values())
    assert found["all_reduce", 3000000]["least_us"] > found["all_reduce", 4]["least_us"]


@pytest.mark.parametrize(("given", "status", "words"), [(("--platform", "null"), 1, "no collectives"), (("--sizes", "4,x"), 2, "'4,x'")])
def test_what_cannot_be_measured_is_said(given: tuple[str, ...], status: int, words: str) -> None:
    done = llmx("bench", "collectives", *given)
    assert done.returncode == status and words in done.stderr and "Traceback" not in done.stderr
