"""Engines with a drafter on the device, and what is asked of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmx import LLM, SamplingParams, StructuredOutputsParams
from llmx.draft.device import DeviceProposer
from llmx.engine.outputs import RequestOutput

__all__ = ["K", "PROMPTS", "facts", "guesses_of", "open_llm", "params", "run_with_lengths"]

K = 4
PROMPTS = ["+abcdefgh" * 9, "-x", "-hgfedcba" * 5, "+the quick brown fox", "-" + "x" * 70, "+0123456789"]
ASKED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"seed": 3, "n": 3},
    {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.4, "min_tokens": 20},
    {"seed": 4, "structured_outputs": StructuredOutputsParams(regex="([a-f]{2},){5,20}")},
    {"temperature": 0.0, "prompt_logprobs": 1, "logit_bias": {100: 3.0}},
    {"seed": 5, "stop": ["ab"], "top_p": 0.9},
]


def open_llm(target: Path, platform: str = "cpu", spec: dict[str, Any] | None = None, **options: Any) -> LLM:
    """A small engine whose drafter, where there is one, is always asked."""
    options = {"threads": 1, "max_model_len": 256, "num_blocks": 300, "max_num_seqs": 8, "dtype": "float32", **options}
    spec = None if spec is None else {"num_speculative_tokens": K, **spec}
    llm = LLM(model=str(target), platform=platform, speculative_config=spec, **options)
    drafting = llm._engine.scheduler.drafting
    if drafting is not None:
        drafting.fixed = True
    return llm


def params() -> list[SamplingParams]:
    """One for each of PROMPTS."""
    return [SamplingParams(**{"max_tokens": 40, "logprobs": 1, "ignore_eos": True, **fields}) for fields in ASKED]


def facts(outputs: list[RequestOutput]) -> list[Any]:
    """What must be the same whatever drafts are made."""
    return [[(a.token_ids, a.text, a.logprobs, a.finish_reason) for a in output.outputs] for output in outputs]


def guesses_of(llm: LLM, prompts: list[str], asked: SamplingParams, monkeypatch: Any) -> list[tuple[list[int], list[int]]]:
    """(tokens so far, what the device guesses to follow) of every step."""
    seen, receive = list[tuple[list[int], list[int]]](), DeviceProposer.receive

    def noted(self: DeviceProposer, guess: list[int]) -> None:
        seen.append((list(self._tokens), guess))
        receive(self, guess)

    with monkeypatch.context() as patch:
        patch.setattr(DeviceProposer, "receive", noted)
        llm.generate(prompts, asked, use_tqdm=False)
    return seen


def run_with_lengths(llm: LLM, prompts: list[str], asked: SamplingParams) -> set[int]:
    """How many guesses were right in the steps of these prompts: every number that occurred."""
    lengths, accepted = set(), dict[str, int]()
    for prompt in prompts:
        llm.llm_engine.add_request(prompt, prompt, asked)
    while llm.llm_engine.has_unfinished_requests():
        for output in llm.llm_engine.step():
            lengths.add(output.outputs[0].num_accepted_tokens - accepted.get(output.request_id, 0))
            accepted[output.request_id] = output.outputs[0].num_accepted_tokens
    return lengths
