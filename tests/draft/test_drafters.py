"""What the drafters guess, against slow and plain searches."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from llmx.draft.ngram import NgramDrafter
from llmx.draft.suffix import Recent, SuffixDrafter
from llmx.draft.token_index import TokenIndex
from llmx.errors import ConfigError


def _ngram(tokens: Sequence[int], limit: int, **settings: int) -> tuple[list[int], int] | None:
    return NgramDrafter(settings).begin(list(tokens), private=False).propose(limit)


def test_the_index_knows_every_end_of_every_run() -> None:
    rng, tokens = random.Random(1), [0]
    index, indexed = TokenIndex(tokens, 2), 0
    for _ in range(300):
        tokens.append(rng.randrange(5))
        if rng.random() < 0.5:
            index.grow(len(tokens) - indexed)
            indexed = len(tokens)
            last = tokens[-2:]
            assert list(index.ends(last)) == [end for end in range(len(tokens), 1, -1) if tokens[end - 2 : end] == last]


def test_ngram_takes_the_longest_match_and_of_equal_ones_the_latest() -> None:
    assert _ngram([1, 2, 3, 4, 9, 2, 3, 5, 9, 3, 6, 1, 2, 3], 2, prompt_lookup_min=1, prompt_lookup_max=3) == ([4, 9], 3)
    assert _ngram([1, 2, 3, 4, 9, 2, 3, 5, 9, 3, 6, 1, 2, 3], 2, prompt_lookup_min=1, prompt_lookup_max=2) == ([5, 9], 2)
    assert _ngram([1, 2, 3, 4, 9, 2, 3, 5, 9, 3, 6, 1, 2, 3], 2, prompt_lookup_min=1, prompt_lookup_max=1) == ([6, 1], 1)
    assert _ngram([1, 2, 3, 4], 2, prompt_lookup_min=1) is None
    assert _ngram([1], 2, prompt_lookup_min=2) is None


def test_what_repeats_goes_on_repeating() -> None:
    assert _ngram([8, 1, 2, 3, 1, 2, 3], 8, prompt_lookup_min=2) == ([1, 2, 3, 1, 2, 3, 1, 2], 3)
    assert _ngram([7, 7, 7], 4, prompt_lookup_min=1) == ([7, 7, 7, 7], 2)


def test_a_growing_request_gives_the_guesses_of_a_fresh_one() -> None:
    rng = random.Random(3)
    for drafter in (NgramDrafter({}), SuffixDrafter({})):
        tokens = [1, 2, 3]
        growing = drafter.begin(tokens, private=True)
        for _ in range(200):
            tokens += [rng.randrange(4) for _ in range(rng.randrange(1, 4))]
            assert growing.propose(5) == drafter.begin(list(tokens), private=True).propose(5)


def test_suffix_follows_the_majority_and_stops_where_nothing_is_likely() -> None:
    drafter = SuffixDrafter({"suffix_decoding_max_spec_factor": 4.0, "suffix_decoding_min_token_prob": 0.5})
    tokens = [1, 2, 3, 5, 1, 2, 3, 6, 1, 2, 4, 7, 1, 2]
    assert drafter.begin(tokens, private=True).propose(4) == ([3], 2)  # 3 follows in two of three places; then 5 and 6 are equally likely
    assert SuffixDrafter({"suffix_decoding_max_spec_factor": 0.5}).begin(tokens, private=True).propose(4) == ([3], 2)


def test_suffix_finds_recent_requests_and_keeps_private_ones_to_themselves() -> None:
    drafter, ask = SuffixDrafter({}), [90, 10, 11, 12]
    drafter.begin([10, 11, 12, 13, 14, 15], private=True).close()
    assert drafter.begin(ask, private=False).propose(4) is None
    drafter.begin([10, 11, 12, 13, 14, 15], private=False).close()
    assert drafter.begin(ask, private=False).propose(4) == ([13, 14, 15], 3)
    assert drafter.begin(ask, private=True).propose(4) is None
    drafter.begin([20, 21], private=False).close()
    assert drafter.begin([5, 14, 15], private=False).propose(4) is None  # no guess goes over the end of a request


def test_recent_requests_are_bounded() -> None:
    recent = Recent(max_requests=1000, max_tokens=200)
    for number in range(50):
        recent.add([number * 10 + at for at in range(7)])
        assert recent.num_tokens <= 200
    assert recent.places([490, 491]) and not recent.places([0, 1])
    recent.add(list(range(5000)))
    assert recent.num_tokens <= 200 and recent.places([4998, 4999])
    few = Recent(max_requests=4)
    for number in range(50):
        few.add([number, number, number])
    assert few.num_tokens <= 16
    none = Recent(max_requests=0)
    none.add([1, 2, 3])
    assert none.num_tokens == 0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"prompt_lookup_max": 0}, "prompt_lookup_max is 0: it must be a whole number in 1..32"),
        ({"prompt_lookup_min": "two"}, "prompt_lookup_min is 'two'"),
        ({"prompt_lookup_min": True}, "prompt_lookup_min is True"),
        ({"prompt_lookup_min": 4, "prompt_lookup_max": 3}, "prompt_lookup_min is 4, above prompt_lookup_max, which is 3"),
    ],
)
def test_ngram_settings_are_checked(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        NgramDrafter(settings)


def test_suffix_settings_are_checked() -> None:
    for name, value in (("max_tree_depth", 1), ("max_cached_requests", -1), ("max_spec_factor", 0), ("min_token_prob", 1.5)):
        with pytest.raises(ConfigError, match=f"suffix_decoding_{name} is {value}"):
            SuffixDrafter({f"suffix_decoding_{name}": value})
