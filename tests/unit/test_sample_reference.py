"""The specification of sampling: Philox vectors as published, each step of the reference by hand, and the drawn distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest

from llmx.batch import Status
from llmx.sample import reference
from llmx.sample.params_rows import SamplingRow
from llmx.sample.philox import philox4x32, uniform

NO_TOKENS = np.empty(0, dtype=np.int32)


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def logits(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def pick(row: SamplingRow, values: np.ndarray, history: np.ndarray = NO_TOKENS, prompt_len: int | None = None, mask: np.ndarray | None = None):
    return reference.sample(values, row, history, len(history) if prompt_len is None else prompt_len, mask)


def kept(row: SamplingRow, values: np.ndarray) -> list[int]:
    return list(np.flatnonzero(reference.kept_weights(values, row)))


# Random123, kat_vectors: philox4x32 10
@pytest.mark.parametrize(
    ("counter", "key", "block"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_known_answers(counter, key, block):
    assert philox4x32(counter, key).tolist() == block


def test_uniform_uses_seed_as_key_and_position_as_counter():
    assert uniform(0, 0) == 0x6627E8D5 / 2**32
    seed, position, stream = 0x299F31D0A4093822, 0x85A308D3243F6A88, 0x0370734413198A2E
    assert uniform(seed, position, stream) == 0xD16CFE09 / 2**32
    many = uniform(7, np.arange(1000))
    assert many.shape == (1000,)
    assert ((many >= 0) & (many < 1)).all()
    assert many[3] == uniform(7, 3)
    assert len(set(many.tolist())) > 990


def test_greedy_takes_the_lowest_id_among_equals():
    assert pick(SamplingRow(), logits(1, 3, 3, 2)) == reference.Sampled(1, Status.OK)
    assert pick(SamplingRow(temperature=1e-6), logits(1, 3, 3, 2)).token == 1


def test_logit_bias_comes_before_penalties():
    row = SamplingRow(bias_ids=ids(0), bias=logits(-3), repetition_penalty=2.0)
    z = reference.process(logits(2, 1), row, ids(0), 1)
    assert z.tolist() == [-2.0, 1.0]  # (2 - 3) is negative: multiplied


def test_bans_win_over_bias():
    row = SamplingRow(bias_ids=ids(2), bias=logits(100), allowed_ids=ids(0, 1))
    assert reference.process(logits(1, 2, 3), row, NO_TOKENS, 0).tolist() == [1, 2, -math.inf]


def test_mask_bits_are_little_endian_and_cover_the_last_word_in_part():
    mask = np.array([0xFFFFFFFE, 0b101], dtype=np.uint32)
    z = reference.process(np.zeros(35, np.float32), SamplingRow(), NO_TOKENS, 0, mask)
    assert list(np.flatnonzero(np.isneginf(z))) == [0, 33]


def test_min_tokens_bans_stop_ids_until_enough_are_generated():
    row = SamplingRow(min_tokens=2, stop_ids=ids(1))
    values = logits(0, 5, 1)
    assert pick(row, values, ids(0, 0, 0), 3).token == 2
    assert pick(row, values, ids(0, 0, 0), 2).token == 2
    assert pick(row, values, ids(0, 0, 0), 1).token == 1


@pytest.mark.parametrize(
    ("words", "history", "prompt_len", "token"),
    [
        ((1, 1), (0,), 1, 2),  # one token: never
        ((2, 0, 1), (0, 0), 1, 2),  # the generated text ends with its beginning
        ((2, 0, 1), (0, 0), 2, 1),  # the prompt does not count
        ((2, 3, 1), (0, 0), 1, 1),
        ((3, 0, 3, 1), (0, 0, 3), 1, 2),
        ((3, 0, 3, 1), (0, 0, 3), 2, 1),  # only its second token was generated
        ((3, 0, 3, 1, 1, 2), (0, 0, 3), 1, 3),  # two words
        ((1, 99), (0,), 1, 1),
    ],
)
def test_bad_words_are_not_completed(words, history, prompt_len, token):
    assert pick(SamplingRow(bad_words=ids(*words)), logits(0, 5, 4, 1), ids(*history), prompt_len).token == token


def test_repetition_reads_prompt_and_generated_once_each():
    row = SamplingRow(repetition_penalty=2.0)
    z = reference.process(logits(4, -4, 4, 4), row, ids(0, 0, 1, 2), 2)
    assert z.tolist() == [2, -8, 2, 4]


def test_presence_and_frequency_read_only_what_was_generated():
    row = SamplingRow(presence_penalty=0.5, frequency_penalty=0.25)
    z = reference.process(logits(1, 1, 1), row, ids(0, 0, 1, 1, 2), 2)
    assert z.tolist() == [1, 0, 0.25]
    assert reference.process(logits(1, 1), row, ids(0, 1), 2).tolist() == [1, 1]


def test_ids_outside_the_vocabulary_are_ignored():
    penalties = {"repetition_penalty": 2.0, "presence_penalty": 1.0}
    row = SamplingRow(**penalties, bias_ids=ids(1, 9), bias=logits(1, 1), allowed_ids=ids(0, 1, 9), min_tokens=9, stop_ids=ids(7))
    assert reference.process(logits(2, 2), row, ids(-1, 5, 0), 1).tolist() == [0, 3]


@pytest.mark.parametrize(("k", "expected"), [(0, [0, 1, 2, 3, 4]), (1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [0, 1, 2, 3]), (99, [0, 1, 2, 3, 4])])
def test_top_k_keeps_exactly_k_ties_by_lowest_id(k, expected):
    assert kept(SamplingRow(temperature=1.0, top_k=k), logits(1, 3, 2, 2, 1)) == expected


@pytest.mark.parametrize(("p", "expected"), [(0.05, [1]), (0.5, [1]), (0.51, [1, 2]), (0.75, [1, 2]), (0.76, [0, 1, 2]), (1.0, [0, 1, 2, 3])])
def test_top_p_keeps_the_shortest_prefix_that_reaches_p(p, expected):
    values = np.log(np.array([0.125, 0.5, 0.25, 0.125])).astype(np.float32)
    probabilities = np.exp(values - values.max())
    assert np.allclose(probabilities, [0.25, 1, 0.5, 0.25])
    # the sums 0.5 and 0.75 are hit to rounding only, so stay clear of them by a hair
    assert kept(SamplingRow(temperature=1.0, top_p=p - 1e-4 if p in (0.5, 0.75) else p), values) == expected


def test_top_p_reads_the_distribution_that_top_k_left():
    values = np.log(np.array([0.4, 0.3, 0.2, 0.1])).astype(np.float32)
    assert kept(SamplingRow(temperature=1.0, top_p=0.6), values) == [0, 1]  # 0.4 is less than 0.6 of 1.0
    assert kept(SamplingRow(temperature=1.0, top_p=0.55, top_k=2), values) == [0]  # 0.4 / 0.7 = 0.571


def test_min_p_is_relative_to_the_most_likely_and_comes_last():
    values = np.log(np.array([0.4, 0.3, 0.2, 0.1])).astype(np.float32)
    assert kept(SamplingRow(temperature=1.0, min_p=0.45), values) == [0, 1, 2]
    assert kept(SamplingRow(temperature=1.0, min_p=1.0), values) == [0]
    assert kept(SamplingRow(temperature=1.0, min_p=0.6, top_p=0.65), values) == [0, 1]  # before top_p it would have left one


def test_temperature_flattens_and_sharpens():
    values = logits(0, 1)
    for temperature in (0.5, 1.0, 2.0):
        weight = reference.kept_weights(values, SamplingRow(temperature=temperature))
        assert weight[0] / weight[1] == pytest.approx(math.exp(-1 / temperature), rel=1e-6)


def test_draw_is_the_inverse_of_the_cumulative_weights():
    weight = np.array([0.0, 1.0, 0.0, 3.0, 0.0])
    for position in range(200):
        expected = 1 if uniform(5, position) < 0.25 else 3
        assert reference.draw(weight, 5, position) == expected


def test_rows_that_cannot_be_sampled():
    for bad in (math.nan, math.inf):
        assert pick(SamplingRow(temperature=1.0), logits(0, bad)) == reference.Sampled(-1, Status.NAN)
        assert pick(SamplingRow(allowed_ids=ids(0)), logits(0, bad)).status == Status.NAN  # a ban does not hide it
    assert pick(SamplingRow(), logits(-math.inf, 0)).token == 1
    assert pick(SamplingRow(), logits(0, 1), mask=np.zeros(1, np.uint32)) == reference.Sampled(-1, Status.MASK_DEAD)
    assert pick(SamplingRow(temperature=1.0), logits(-math.inf, -math.inf)).status == Status.MASK_DEAD


def test_logprobs_are_of_the_raw_logits_with_rank_and_ties():
    values = logits(1, 3, 2, 3)
    result = reference.logprobs(values, 3, 3, ids(0))
    exact = values - math.log(sum(math.exp(v) for v in values))
    assert result.ids.tolist() == [3, 1, 3, 2, 0]
    assert np.allclose(result.lp, exact[[3, 1, 3, 2, 0]], atol=1e-6)
    assert result.rank == 2
    assert reference.logprobs(values, 1, 0).rank == 1
    assert reference.logprobs(values, 0, 0).rank == 4
    assert reference.logprobs(logits(-math.inf, 0), 0, 2).lp.tolist() == [-math.inf, 0.0, -math.inf]


def test_drawn_tokens_follow_the_kept_distribution():
    rng = np.random.default_rng(1)
    values = rng.normal(size=40).astype(np.float32) * 2
    row = SamplingRow(temperature=0.8, top_k=12, top_p=0.95, min_p=0.01, seed=11)
    weight = reference.kept_weights(values, row)
    expected = weight / weight.sum()
    draws = 20000
    target = uniform(11, np.arange(draws)) * np.cumsum(weight)[-1]
    tokens = np.searchsorted(np.cumsum(weight), target, side="right")
    assert tokens[17] == reference.draw(weight, 11, 17)
    counts = np.bincount(tokens, minlength=40)
    assert counts[weight == 0].sum() == 0
    alive = weight > 0
    chi_square = float((((counts - draws * expected) ** 2)[alive] / (draws * expected)[alive]).sum())
    freedom = int(alive.sum()) - 1
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)  # about 5 standard deviations
