"""The native sampler against llmx.sample.reference: the same token for every row and option, at every ISA level.

A token may differ only where the uniform number lies within 1e-6 of an edge of the cumulative distribution, or top_p within
1e-6 of a cumulative sum: weights are float32 there and float64 in the reference. Logprobs agree to 2e-5.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from ctypes import c_int32, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np
import pytest

from llmx.batch import Status
from llmx.sample import reference
from llmx.sample.params_rows import SamplingRow
from llmx.sample.philox import uniform
from llmx_cpu.native import ISA_NAMES, best_isa, library, pointer

EDGE = 1e-6
LEVELS = range(ISA_NAMES.index(best_isa()) + 1)
NO_TOKENS = np.empty(0, dtype=np.int32)


class TestSample(ctypes.Structure):
    """TestSample of csrc/capi_sampler.cpp."""

    __test__ = False
    _fields_ = [
        *[(name, c_void_p) for name in ("logits", "mask", "ids", "lp_ids", "rank", "lp")],
        ("position", c_int64),
        *[(name, c_int32) for name in ("slot", "top", "n_ids", "lp_width", "token", "status")],
    ]


class TestScore(ctypes.Structure):
    """TestScore of csrc/capi_sampler.cpp."""

    __test__ = False
    _fields_ = [*[(name, c_void_p) for name in ("logits", "ids", "rank", "lp")], *[(name, c_int32) for name in ("next", "top", "width", "status")]]


@dataclass
class Case:
    """One row to sample."""

    logits: np.ndarray
    row: SamplingRow
    history: np.ndarray
    prompt_len: int
    mask: np.ndarray | None = None
    top: int = -1
    ids: np.ndarray | None = None


@dataclass
class Drawn:
    """What came back for one row."""

    token: int
    status: int
    ids: np.ndarray
    lp: np.ndarray
    rank: int


class NativeSampler:
    """Samples cases in one call; each gets a slot of its own."""

    def __init__(self, open_slots, isa: int):
        self._open_slots, self.isa = open_slots, isa

    def sample(self, cases: Sequence[Case], width: int = 0) -> list[Drawn]:
        table = self._open_slots(len(cases), (1,))
        rows = (TestSample * len(cases))()
        lp_ids = np.zeros((len(cases), width), dtype=np.int32)
        lp = np.zeros((len(cases), width), dtype=np.float32)
        rank = np.zeros(len(cases), dtype=np.int32)
        for i, case in enumerate(cases):
            table.join(i, case.row, case.history[: case.prompt_len], case.prompt_len)
            for token in case.history[case.prompt_len :]:
                table.append(i, int(token))
            rows[i] = TestSample(
                pointer(case.logits), pointer(case.mask), pointer(case.ids), pointer(lp_ids[i]), pointer(rank[i:]), pointer(lp[i]),
                len(case.history), i, case.top, 0 if case.ids is None else len(case.ids), width, -7, 7,
            )  # fmt: skip
        library().llmx_test_sample(self.isa, table.pointer, rows, len(cases), len(cases[0].logits))
        return [Drawn(row.token, row.status, lp_ids[i], lp[i], int(rank[i])) for i, row in enumerate(rows)]


@pytest.fixture(params=LEVELS, ids=[ISA_NAMES[i] for i in LEVELS])
def sampler(request, open_slots):
    return NativeSampler(open_slots, request.param)


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def simple(values: np.ndarray, row: SamplingRow, **more) -> Case:
    return Case(np.asarray(values, dtype=np.float32), row, ids(0), 1, **more)


def random_logits(rng: np.random.Generator, vocab: int) -> np.ndarray:
    """Normal, peaked, quantised (many ties), flat, or with holes."""
    values = rng.normal(size=vocab) * rng.choice([0.5, 2.0, 6.0])
    kind = rng.integers(5)
    if kind == 1:
        values[rng.integers(vocab)] += 12.0
    if kind == 2:
        values = np.round(values)
    if kind == 3:
        values = np.zeros(vocab)
    if kind == 4:
        values[rng.random(vocab) < 0.3] = -np.inf
    return values.astype(np.float32)


def random_row(rng: np.random.Generator, vocab: int) -> SamplingRow:
    """Any combination of options, each one on or off."""
    on = rng.random(13) < 0.4
    some = np.unique(rng.integers(vocab, size=5)).astype(np.int32)
    return SamplingRow(
        temperature=0.0 if on[0] and on[1] else float(rng.choice([0.3, 1.0, 1.7])),
        top_k=int(rng.choice([1, 2, 7, 40, vocab - 1, vocab, 2 * vocab])) if on[2] else 0,
        top_p=float(rng.uniform(0.01, 0.999)) if on[3] else 1.0,
        min_p=float(rng.choice([1e-4, 0.02, 0.3, 1.0])) if on[4] else 0.0,
        presence_penalty=float(rng.uniform(-2, 2)) if on[5] else 0.0,
        frequency_penalty=float(rng.uniform(-2, 2)) if on[6] else 0.0,
        repetition_penalty=float(rng.uniform(0.5, 2)) if on[7] else 1.0,
        seed=int(rng.integers(2**63)) * 2 + 1,
        min_tokens=int(rng.integers(12)) if on[8] else 0,
        stop_ids=some[:3],
        bias_ids=some if on[9] else NO_TOKENS,
        bias=(rng.normal(size=len(some)) * 5).astype(np.float32) if on[9] else np.empty(0, np.float32),
        allowed_ids=np.unique(rng.integers(vocab, size=max(1, vocab // 3))).astype(np.int32) if on[10] else None,
        bad_words=bad_words(rng, vocab) if on[11] else NO_TOKENS,
    )


def bad_words(rng: np.random.Generator, vocab: int) -> np.ndarray:
    """A few sequences; over a vocabulary this small some of them are about to be completed."""
    words = [rng.integers(min(vocab, 4), size=rng.integers(1, 4)) for _ in range(4)]
    return np.array([number for word in words for number in (len(word), *word)], dtype=np.int32)


def random_case(rng: np.random.Generator, vocab: int) -> Case:
    history = rng.integers(vocab, size=rng.integers(1, 30)).astype(np.int32)
    if len(history) > 3 and rng.random() < 0.5:
        history[-3:] %= 4  # so that bad words meet it
    mask = rng.integers(2**32, size=(vocab + 31) // 32, dtype=np.uint32) if rng.random() < 0.3 else None
    return Case(random_logits(rng, vocab), random_row(rng, vocab), history, int(rng.integers(1, len(history) + 1)), mask)


def near_edge(case: Case) -> bool:
    """True where rounding of the weights may decide."""
    z = reference.process(case.logits, case.row, case.history, case.prompt_len, case.mask)
    cumulative = np.cumsum(reference.kept_weights(z, case.row))
    u = float(uniform(case.row.seed, len(case.history)))
    if np.abs(cumulative / cumulative[-1] - u).min() < EDGE:
        return True
    if case.row.top_p >= 1.0:
        return False
    weight = reference.kept_weights(z, SamplingRow(temperature=case.row.temperature, top_k=case.row.top_k))
    prefix = np.cumsum(weight[reference.ranking(z)])
    return bool(np.abs(prefix / prefix[-1] - np.float32(case.row.top_p)).min() < EDGE)


@pytest.mark.parametrize(("vocab", "rows"), [(1, 30), (2, 60), (17, 600), (64, 600), (65, 600), (1000, 900), (3001, 300), (49152, 24)])
def test_tokens_equal_the_reference(sampler, vocab, rows):
    rng = np.random.default_rng(vocab)
    cases = [random_case(rng, vocab) for _ in range(rows)]
    near = 0
    for case, drawn in zip(cases, sampler.sample(cases), strict=True):
        expected = reference.sample(case.logits, case.row, case.history, case.prompt_len, case.mask)
        assert drawn.status == expected.status, case
        if drawn.token != expected.token:
            assert near_edge(case), (case, drawn.token, expected.token)
            near += 1
    assert near <= max(1, rows // 100)


@pytest.mark.parametrize("temperature", [0.2, 1.0, 2.0])
@pytest.mark.parametrize("options", [{}, {"top_k": 50}, {"top_p": 0.9}, {"top_k": 50, "top_p": 0.9}, {"top_p": 0.9999}, {"min_p": 0.05}, {"top_k": 5000}])
def test_usual_options_on_a_real_vocabulary(sampler, temperature, options):
    rng = np.random.default_rng(9)
    cases = []
    for seed in range(6):
        values = (rng.normal(size=49152) * 2 + 8 * (rng.random(49152) < 0.001)).astype(np.float32)
        cases.append(simple(values, SamplingRow(temperature=temperature, seed=seed, **options)))
    for case, drawn in zip(cases, sampler.sample(cases), strict=True):
        expected = reference.sample(case.logits, case.row, case.history, case.prompt_len)
        assert drawn.token == expected.token or near_edge(case)


def test_a_row_does_not_depend_on_its_neighbours(sampler):
    rng = np.random.default_rng(3)
    cases = [random_case(rng, 777) for _ in range(60)]
    for case in cases:
        case.top = 3
    together = sampler.sample(cases, width=4)
    for case, drawn in zip(cases, together, strict=True):
        alone = sampler.sample([case], width=4)[0]
        assert (alone.token, alone.status, alone.rank) == (drawn.token, drawn.status, drawn.rank)
        assert alone.lp.tobytes() == drawn.lp.tobytes()
        assert alone.ids.tobytes() == drawn.ids.tobytes()


def test_logprobs_do_not_change_the_token(sampler):
    rng = np.random.default_rng(4)
    cases = [random_case(rng, 500) for _ in range(200)]
    plain = [drawn.token for drawn in sampler.sample(cases)]
    for case in cases:
        case.top = 5
    assert plain == [drawn.token for drawn in sampler.sample(cases, width=6)]


@pytest.mark.parametrize(("vocab", "top"), [(1, 0), (5, 0), (5, 3), (5, 9), (64, 20), (1000, 20), (1000, 1000), (49152, 5)])
def test_logprobs_of_samples(sampler, vocab, top):
    rng = np.random.default_rng(vocab + top)
    extra = rng.integers(vocab, size=3).astype(np.int32)
    cases = [simple(random_logits(rng, vocab), SamplingRow(temperature=1.0, seed=i), top=top, ids=extra) for i in range(4 if vocab > 5000 else 20)]
    width = 1 + top + 3 + 2
    for case, drawn in zip(cases, sampler.sample(cases, width=width), strict=True):
        if drawn.status != Status.OK:
            continue
        expected = reference.logprobs(case.logits, drawn.token, top, extra)
        n = len(expected.ids)
        assert drawn.ids[:n].tolist() == expected.ids.tolist()
        assert np.allclose(drawn.lp[:n], expected.lp, atol=2e-5, rtol=2e-6)
        assert drawn.rank == expected.rank
        assert (drawn.ids[n:] == -1).all()
        assert np.isneginf(drawn.lp[n:]).all()


def test_logprobs_of_rows_whose_next_token_is_known():
    rng = np.random.default_rng(8)
    vocab, top = 1003, 4
    for isa in LEVELS:
        rows = [random_logits(rng, vocab) for _ in range(12)]
        rows[5][7] = np.nan
        following = rng.integers(vocab, size=12)
        out_ids, out_lp, out_rank = np.zeros((12, top + 2), np.int32), np.zeros((12, top + 2), np.float32), np.zeros(12, np.int32)
        tests = (TestScore * 12)()
        for i, values in enumerate(rows):
            tests[i] = TestScore(pointer(values), pointer(out_ids[i]), pointer(out_rank[i:]), pointer(out_lp[i]), int(following[i]), top, top + 2, 9)
        library().llmx_test_score(isa, tests, 12, vocab)
        for i, values in enumerate(rows):
            if i == 5:
                assert tests[i].status == Status.NAN
                continue
            expected = reference.logprobs(values, int(following[i]), top)
            assert tests[i].status == Status.OK
            assert out_ids[i].tolist() == [*expected.ids.tolist(), -1]
            assert np.allclose(out_lp[i, :-1], expected.lp, atol=2e-5, rtol=2e-6)
            assert out_rank[i] == expected.rank


@pytest.mark.parametrize("vocab", [1, 15, 16, 17, 63, 64, 65, 1023, 1024, 1025, 3000])
def test_greedy_finds_the_first_of_equals_anywhere(sampler, vocab):
    for place in {0, 1, 15, 16, 62, 63, 64, vocab // 2, vocab - 2, vocab - 1}:
        if not 0 <= place < vocab:
            continue
        values = np.full(vocab, -2.0, dtype=np.float32)
        values[place:] = np.where(np.arange(vocab - place) % 3 == 0, 1.5, -3.0)
        assert sampler.sample([simple(values, SamplingRow())])[0].token == place


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("row", [SamplingRow(), SamplingRow(temperature=1.0), SamplingRow(temperature=1.0, top_k=3), SamplingRow(allowed_ids=ids(0))])
def test_a_row_without_numbers_fails_alone(sampler, bad, row):
    for place in (0, 16, 63, 70, 99):
        values = np.zeros(100, dtype=np.float32)
        values[place] = bad
        good = np.zeros(100, dtype=np.float32)
        failed, fine = sampler.sample([simple(values, row), simple(good, row)])
        assert (failed.token, failed.status) == (-1, Status.NAN)
        assert fine.status == Status.OK


def test_bad_words_are_not_completed(sampler):
    values = np.array([0, 5, 4, 1], dtype=np.float32)
    words = SamplingRow(bad_words=ids(1, 2, 2, 0, 1, 1, 99))
    histories = [(ids(0, 0), 1, 3), (ids(0, 0), 2, 1), (ids(0, 3), 1, 1)]
    drawn = sampler.sample([Case(values, words, history, prompt_len) for history, prompt_len, _ in histories])
    assert [one.token for one in drawn] == [token for _, _, token in histories]


@pytest.mark.parametrize("row", [SamplingRow(), SamplingRow(temperature=1.0), SamplingRow(temperature=1.0, top_k=3), SamplingRow(temperature=1.0, top_p=0.5)])
def test_a_row_with_nothing_left_fails_alone(sampler, row):
    dead = simple(np.zeros(70), row, mask=np.zeros(3, np.uint32))
    holes = simple(np.full(70, -np.inf), row)
    results = sampler.sample([dead, holes, simple(np.zeros(70), row)])
    assert [drawn.status for drawn in results] == [Status.MASK_DEAD, Status.MASK_DEAD, Status.OK]
    assert results[0].token == -1


def test_empty_allowed_list_is_not_all_allowed(sampler):
    assert sampler.sample([simple(np.zeros(8), SamplingRow(allowed_ids=NO_TOKENS))])[0].status == Status.MASK_DEAD


def test_tiny_temperatures_and_wide_logits_stay_finite(sampler):
    values = np.array([-3e38, 3e38, 0, 2.9e38], dtype=np.float32)
    for temperature in (1e-6, 1e-4, 1e-2, 2.0):
        assert sampler.sample([simple(values, SamplingRow(temperature=temperature, seed=3))])[0].token == 1


@pytest.mark.parametrize("options", [{}, {"top_k": 20}, {"top_p": 0.9}, {"top_k": 60, "top_p": 0.8, "min_p": 0.02}])
def test_frequencies_follow_the_reference_distribution(open_slots, options):
    sampler = NativeSampler(open_slots, LEVELS[-1])
    rng = np.random.default_rng(6)
    values = (rng.normal(size=80) * 1.5).astype(np.float32)
    row = SamplingRow(temperature=0.9, seed=21, **options)
    weight = reference.kept_weights(values, row)
    expected = weight / weight.sum()
    draws = 8000
    cases = [Case(values, SamplingRow(temperature=0.9, seed=seed, **options), ids(0), 1) for seed in range(draws)]
    counts = np.bincount([drawn.token for drawn in sampler.sample(cases)], minlength=80)
    assert counts[weight == 0].sum() == 0
    alive = expected * draws >= 5
    chi_square = float((((counts - draws * expected) ** 2)[alive] / (draws * expected)[alive]).sum())
    freedom = int(alive.sum()) - 1
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)
