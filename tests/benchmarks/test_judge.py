"""The comparison's arithmetic on recorded inputs: ratios, medians, floors, shares of the limit, and what fails an assertion."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.judge import failures, judge, ratios
from benchmarks.rows import ROWS, Floor, Job, Row, chosen
from benchmarks.run_engine import SHAPES, Shape, shape_of
from benchmarks.work import Limits, Work

OURS, OTHER, THIRD = Job("llmx", "q4_1"), Job("openvino", "q4_1"), Job("llamacpp", "q4_0")
ROW = Row("q4_1.decode1", "decode1", OURS, (Floor(OTHER, 2.5, 3.0), Floor(THIRD, 1.8)), "read", asserted=True)
# 100 MB per token at the middle of decode1 (32 + 64 tokens of context), so 40 GB/s allow 400 tokens/s
WORK = Work(True, 60e6, 30.4e6, 0.2e9, 0.05e9, 1e5, 0.0)
LIMITS = Limits(read=40e9, int8=900e9, bf16=400e9, f32=200e9)
RATES = {
    OURS: {"decode1": [260.0, 250.0, 200.0, 270.0, 240.0]},
    OTHER: {"decode1": [100.0, 100.0, 100.0, 90.0, 80.0]},
    THIRD: {"decode1": [130.0, 140.0, 150.0, 150.0, 140.0]},
}


def judged(rates=RATES, row=ROW, works=None, limits=LIMITS):
    return judge([row], rates, {"q4_1": WORK} if works is None else works, limits)[0]


def test_ratios_are_round_by_round() -> None:
    assert ratios([2.0, 3.0, None, 4.0], [1.0, 2.0, 1.0, 0.0]) == [2.0, 1.5, None, None]


def test_the_median_of_the_ratios_is_judged_not_the_ratio_of_medians() -> None:
    first, second = judged().verdicts
    assert first.ratios == pytest.approx([2.6, 2.5, 2.0, 3.0, 3.0]) and first.median == pytest.approx(2.6)
    assert (first.met, first.by) == (True, "ratio")
    assert second.median == pytest.approx(250 / 140) and second.median < 1.8 and second.met is False


def test_a_share_of_the_limit_meets_a_floor() -> None:
    result = judged()
    assert result.median == 250.0 and result.share == pytest.approx(250 / 400)  # below 70%
    fast = {**RATES, OURS: {"decode1": [285.0] * 5}, OTHER: {"decode1": [200.0] * 5}}
    first, second = judged(fast).verdicts
    assert (first.met, first.by) == (True, "limit") and first.median == pytest.approx(1.425)
    assert (second.met, second.by) == (True, "ratio")


def test_the_limit_is_the_largest_rate_that_any_engine_showed() -> None:
    beaten = {**RATES, OTHER: {"decode1": [500.0, 100.0, 100.0, 90.0, 80.0]}}  # above what the probe read
    assert judged(beaten).share == pytest.approx(250 / 500)
    itself = {**RATES, OURS: {"decode1": [600.0, 250.0, 250.0, 250.0, 250.0]}}
    assert judged(itself).share == pytest.approx(250 / 600)


def test_without_limits_or_work_only_ratios_count() -> None:
    for result in (judged(limits=None), judged(works={})):
        assert result.share is None and result.verdicts[1].met is False


def test_compute_limit_counts_products_and_attention_apart() -> None:
    work = Work(True, 0, 0, layer_ops=2e8, head_ops=5e7, kv_bytes=0, attention_ops=1e5)
    shape = SHAPES["prefill1k"]
    products, attention = work.run_ops(shape)
    assert products == 1024 * 2e8 + 5e7 and attention == 1024 * 1e5 * 512.5
    least = products / 900e9 + attention / 400e9
    assert work.share("prefill1k", 1024 / least, "compute", LIMITS) == pytest.approx(1.0)
    dense = replace(work, quantised=False)
    assert dense.share("prefill1k", 1024 / least, "compute", LIMITS) > 1.5
    assert Work(True, 0, 0, 1, 1, 1, 1, window=512, sliding=0.5).context(1000) == 756


def test_less_is_better_for_seconds() -> None:
    row = Row("q4_1.start", "start", OURS, (Floor(OTHER, 0.4),), less=True, asserted=True)
    rates = {OURS: {"start": [0.5, 0.6, 0.5]}, OTHER: {"start": [1.0, 1.0, 2.0]}}
    verdict = judged(rates, row).verdicts[0]
    assert verdict.median == 0.5 and verdict.met is False
    assert judged({**rates, OTHER: {"start": [2.0, 2.0, 2.0]}}, row).verdicts[0].met is True


def test_assertion_names_what_was_missed_and_what_was_not_measured() -> None:
    peers = ["openvino", "llamacpp"]
    assert failures([judged()], peers) == ["q4_1.decode1: 1.79 of llamacpp q4_0, the floor is 1.8, and 62% of the machine's limit"]
    assert failures([judged()], ["openvino"]) == []
    lost = judged({**RATES, THIRD: {"decode1": [None] * 5}})
    assert failures([lost], peers) == ["q4_1.decode1: no ratio against llamacpp q4_0"]
    silent = judged({**RATES, OURS: {"decode1": [None] * 5}})
    assert failures([silent], peers)[0] == "q4_1.decode1: llmx gave no value"
    assert failures([judged(row=replace(ROW, asserted=False))], peers) == []


def test_asserted_rows_are_those_that_the_project_promises() -> None:
    asserted = {row.name for row in ROWS if row.asserted}
    assert asserted == {"q4_1.decode1", "q4_1.prefill1k", "q4_1.batch8", "q4_1.batch32", "bf16.decode1", "bf16.prefill1k", "bf16.batch32"}
    assert all(row.limit for row in ROWS if row.asserted)


def test_rows_are_chosen_by_name_and_keep_the_floors_of_present_peers() -> None:
    rows = chosen(["decode1"], {"llamacpp"})
    assert [row.name for row in rows] == ["q4_1.decode1", "bf16.decode1", "gemma.decode1"]
    assert {floor.peer.engine for row in rows for floor in row.floors} == {"llamacpp"}
    assert chosen(["q4_1.decode8k_int8_kv"], set())[0].floors[0].peer.engine == "llmx"  # against itself
    with pytest.raises(ValueError, match="no row is called 'decode9'"):
        chosen(["decode9"], set())


def test_shapes_can_be_written_out() -> None:
    assert shape_of("4:100:20") == Shape(4, 100, 20) and shape_of("1:9:2:decode") == Shape(1, 9, 2, "decode")
    for wrong in ("4:100", "x", "0:1:1", "1:1:1:prompt"):
        with pytest.raises(ValueError, match="is no workload"):
            shape_of(wrong)
