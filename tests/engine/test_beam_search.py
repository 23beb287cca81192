"""Beam search gives what transformers gives, sequence by sequence, on a tiny model in float32; and its prefixes come from the cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from llmx import LLM, BeamSearchParams, RequestError
from tests.structured.tiny import write_tiny_model

PROMPTS = [[256, 72, 101, 108, 108, 111, 32, 119], [256, 40, 41, 42], [256, *range(60, 90)]]
ENDS = [257, *range(3, 350, 9)]  # many tokens end an answer, so that answers of all lengths compete


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ENDS, "bos_token_id": 256}))
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), platform="cpu", dtype="float32", threads=1, num_blocks=300) as one:
        yield one


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    torch.set_num_threads(1)
    return transformers.LlamaForCausalLM.from_pretrained(folder).eval()


def _wanted(oracle: Any, prompt: list[int], params: BeamSearchParams) -> list[tuple[list[int], float]]:
    ends = {"eos_token_id": None} if params.ignore_eos else {"eos_token_id": ENDS}
    found = oracle.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), num_beams=params.beam_width,
        num_return_sequences=params.beam_width, max_new_tokens=params.max_tokens, length_penalty=params.length_penalty, early_stopping="never",
        do_sample=False, return_dict_in_generate=True, output_scores=True, pad_token_id=999, **ends,
    )  # fmt: skip
    sequences = [[token for token in row if token != 999] for row in found.sequences.tolist()]
    return list(zip(sequences, found.sequences_scores.tolist(), strict=True))


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, -0.7, 2.0])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_equals_transformers(llm: LLM, oracle: Any, length_penalty: float, ignore_eos: bool) -> None:
    params = BeamSearchParams(4, 12, ignore_eos=ignore_eos, length_penalty=length_penalty, include_stop_str_in_output=True)
    reasons = set()
    for prompt, output in zip(PROMPTS, llm.beam_search(PROMPTS, params), strict=True):
        wanted = _wanted(oracle, prompt, params)
        assert [beam.tokens for beam in output.sequences] == [tokens for tokens, _ in wanted]
        for beam, (tokens, score) in zip(output.sequences, wanted, strict=True):
            made = len(tokens) - len(prompt)
            assert len(beam.logprobs) == made and beam.cum_logprob / made**length_penalty == pytest.approx(score, abs=2e-4)
            assert beam.cum_logprob == pytest.approx(sum(row[token].logprob for row, token in zip(beam.logprobs, tokens[len(prompt) :], strict=True)))
            assert beam.text == llm.tokenizer.decode(tokens)
            assert (beam.finish_reason, beam.stop_reason) == (("stop", tokens[-1]) if not ignore_eos and tokens[-1] in ENDS else ("length", None))
            reasons.add(beam.finish_reason)
    assert reasons == {"length"} if ignore_eos else "stop" in reasons


def test_the_end_token_is_left_out_unless_asked_for(llm: LLM) -> None:
    shown, hidden = (
        llm.beam_search(PROMPTS[:1], BeamSearchParams(3, 12, length_penalty=0.0, include_stop_str_in_output=shown))[0].sequences for shown in (True, False)
    )
    assert any(beam.finish_reason == "stop" for beam in shown)
    for with_end, without in zip(shown, hidden, strict=True):
        assert without.tokens == (with_end.tokens[:-1] if with_end.finish_reason == "stop" else with_end.tokens)
        assert without.cum_logprob == with_end.cum_logprob


def test_prefixes_come_from_the_cache_and_nothing_is_left(llm: LLM) -> None:
    llm.reset_prefix_cache()
    kv = llm._engine.kv
    before = kv.prefix_queries, kv.prefix_hits
    prompt = [256, *(index % 200 for index in range(100))]
    llm.beam_search([prompt], BeamSearchParams(4, 20, ignore_eos=True))
    asked, found = kv.prefix_queries - before[0], kv.prefix_hits - before[1]
    computed = asked - found
    assert computed < len(prompt) + 4 * 20 * 17  # at most the open block of each beam is computed again
    assert found > 0.8 * asked and kv.blocks_held == 0


def test_the_context_ends_a_search(llm: LLM) -> None:
    prompt = [256] * 500
    (output,) = llm.beam_search([prompt], BeamSearchParams(2, 50, ignore_eos=True))
    assert {len(beam.tokens) for beam in output.sequences} == {512}
    with pytest.raises(RequestError, match="shorten it by"):
        llm.beam_search([[256] * 600], BeamSearchParams(2, 5))
    assert not llm.llm_engine.has_unfinished_requests()
