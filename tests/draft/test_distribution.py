"""20,000 answers of three tokens on the torch executor: with drafts they are distributed as the model says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from math import exp, prod
from pathlib import Path

import pytest

from llmx import LLM, SamplingParams
from llmx.executor.null_pages import history_hash
from llmx.sched.drafting import Drafting
from tests.structured.tiny import write_tiny_model

ALLOWED = (70, 80, 90)
ANSWERS, SLOTS = 20_000, 64


class AnyOf:
    """A drafter that guesses one of the allowed tokens, whatever they are worth."""

    def begin(self, tokens: Sequence[int], *, private: bool) -> Guess:
        return Guess(tokens)


class Guess:
    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens

    def propose(self, limit: int) -> tuple[list[int], int]:
        return [ALLOWED[history_hash([*self._tokens, at]) % len(ALLOWED)] for at in range(limit)], 4

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_drafts_leave_the_distribution_as_it_is(tmp_path: Path) -> None:
    prompt = [5, 6, 7]
    with LLM(str(write_tiny_model(tmp_path)), platform="torch", threads=1, max_model_len=64, num_blocks=300, max_num_seqs=SLOTS) as llm:
        expected = {cell: prod(_chances(llm, [*prompt, *cell[:at]])[token] for at, token in enumerate(cell)) for cell in product(ALLOWED, repeat=3)}
        llm._engine.scheduler.drafting = Drafting(AnyOf(), 2, llm._engine.kv)
        llm._engine.scheduler.drafting.fixed = True
        seen: Counter[tuple[int, ...]] = Counter()
        drafted = accepted = 0
        for first in range(0, ANSWERS, SLOTS):
            wanted = SamplingParams(n=SLOTS, temperature=1.0, seed=first, max_tokens=3, ignore_eos=True, allowed_token_ids=ALLOWED)
            for answer in llm.generate(prompt, wanted, use_tqdm=False)[0].outputs:
                seen[tuple(answer.token_ids)] += 1
                drafted, accepted = drafted + answer.num_draft_tokens, accepted + answer.num_accepted_tokens
    total = sum(seen.values())
    assert total >= ANSWERS and 0 < accepted < drafted
    chi = sum((seen[cell] - total * chance) ** 2 / (total * chance) for cell, chance in expected.items())
    assert chi < 54.05, chi  # 26 degrees of freedom, 0.1%


def _chances(llm: LLM, history: list[int]) -> dict[int, float]:
    """Of each allowed token to come next, where no other may."""
    asked = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=0, logprob_token_ids=ALLOWED)
    rows = llm.generate(history, asked, use_tqdm=False)[0].outputs[0].logprobs
    assert rows is not None
    weights = {token: exp(rows[0][token].logprob) for token in ALLOWED}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}
