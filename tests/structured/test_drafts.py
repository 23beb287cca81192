"""Answers under a grammar bring drafts: a row behind a draft has the mask that it would have without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmx import LLM, SamplingParams
from llmx.engine.outputs import RequestOutput
from llmx.structured import TokenTable
from llmx.structured.manager import Grammars
from llmx.structured_params import StructuredOutputsParams
from llmx_llguidance.backend import LLGuidanceBackend
from tests.draft.script import follow

ITEMS = {"type": "array", "items": {"enum": ["red", "green", 12]}, "minItems": 3, "maxItems": 5}
SCHEMA = {"type": "object", "properties": {"tags": ITEMS, "n": {"type": "integer"}}, "required": ["tags", "n"], "additionalProperties": False}
ASKED: list[dict[str, Any]] = [
    {"structured_outputs": StructuredOutputsParams(json=SCHEMA), "seed": 3},
    {"structured_outputs": StructuredOutputsParams(regex="([a-f]{2},){5,20}"), "seed": 4, "min_tokens": 30},
    {"structured_outputs": StructuredOutputsParams(choice=["yes, of course", "no, of course"]), "seed": 5},
    {"structured_outputs": StructuredOutputsParams(json=SCHEMA), "seed": 6, "n": 3, "logprobs": 2},
    {"structured_outputs": StructuredOutputsParams(regex="[a-c]{40}"), "seed": 7, "repetition_penalty": 1.3, "top_k": 8},
    {"seed": 8},
]
PROMPTS = ["x", "y", "z", "w", "v", "u"]


def _asked() -> list[SamplingParams]:
    return [SamplingParams(**{"temperature": 1.0, "max_tokens": 60, **fields}) for fields in ASKED]


def _facts(outputs: list[RequestOutput], *, bits: bool = True) -> list[Any]:
    """bits: logprobs are compared too; torch's products give other last bits with more rows."""
    return [[(a.token_ids, a.text, a.logprobs if bits else None, a.finish_reason, a.error) for a in output.outputs] for output in outputs]


def _known(outputs: list[RequestOutput]) -> list[list[int]]:
    return [[*output.prompt_token_ids, *answer.token_ids] for output in outputs for answer in output.outputs]


def _llm(folder: Path, platform: str, **options: Any) -> LLM:
    return LLM(model=str(folder), platform=platform, threads=1, max_model_len=256, num_blocks=300, max_num_seqs=8, **options)


@pytest.mark.parametrize("platform", ["cpu", "torch", "null"])
def test_answers_under_grammars_are_the_same_with_drafts(tiny_folder: Path, platform: str) -> None:
    with _llm(tiny_folder, platform) as llm:
        plain = llm.generate(PROMPTS, _asked(), use_tqdm=False)
        follow(llm, _known(plain))
        drafted, bits = llm.generate(PROMPTS, _asked(), use_tqdm=False), platform != "torch"
        assert _facts(drafted, bits=bits) == _facts(plain, bits=bits)
        for output in drafted:
            for answer in output.outputs:
                assert answer.num_draft_tokens > answer.num_accepted_tokens > 0, output
        assert llm._engine.scheduler.drafting is not None
        llm._engine.scheduler.drafting.enabled = False
        assert _facts(llm.generate(PROMPTS, _asked(), use_tqdm=False)) == _facts(plain)


class Shy:
    """A backend whose matchers cannot be forked (fault `none`), break when they are (`fork`), or break behind a draft (`fill`)."""

    def __init__(self, table: TokenTable, fault: str) -> None:
        self.name, self.fault, self.inner = "shy", fault, LLGuidanceBackend(table)
        self.forks: list[Any] = []

    def compile(self, spec: Any) -> ShyCompiled:
        return ShyCompiled(self, self.inner.compile(spec))

    def fill(self, matchers: Any, tokens: Any, rows: Any, mask: Any) -> None:
        if self.fault == "fill" and any(one in self.forks for one in matchers):
            raise RuntimeError("it broke behind a draft")
        self.inner.fill([one.inner for one in matchers], tokens, rows, mask)


class ShyCompiled:
    def __init__(self, backend: Shy, inner: Any) -> None:
        self._backend, self._inner = backend, inner

    def matcher(self) -> Any:
        return (ShyMatcher if self._backend.fault == "none" else ShyForking)(self._backend, self._inner.matcher())


class ShyMatcher:
    def __init__(self, backend: Shy, inner: Any) -> None:
        self.backend, self.inner = backend, inner

    @property
    def error(self) -> str | None:
        return self.inner.error


class ShyForking(ShyMatcher):
    def fork(self) -> ShyForking:
        if self.backend.fault == "fork":
            raise RuntimeError("it cannot be forked")
        other = ShyForking(self.backend, self.inner.fork())
        self.backend.forks.append(other)
        return other


@pytest.fixture
def shy(tiny_folder: Path, tiny_table: TokenTable) -> Iterator[Callable[[str], LLM]]:
    with _llm(tiny_folder, "cpu") as llm:

        def build(fault: str) -> LLM:
            llm._engine.grammars = Grammars([("shy", lambda table: Shy(table, fault))], lambda: tiny_table)
            return llm

        yield build


@pytest.mark.parametrize("fault", ["none", "fork", "fill"])
def test_a_backend_that_cannot_look_ahead_costs_the_drafts_only(shy: Callable[[str], LLM], tiny: LLM, fault: str) -> None:
    plain = tiny.generate(PROMPTS, _asked(), use_tqdm=False)
    llm = shy(fault)
    follow(llm, _known(plain))
    drafted = llm.generate(PROMPTS, _asked(), use_tqdm=False)
    assert _facts(drafted) == _facts(plain)
    for output, fields in zip(drafted, ASKED, strict=True):
        for answer in output.outputs:
            held = "structured_outputs" in fields
            assert (answer.num_draft_tokens > 0) == (not held or fault != "none"), (fields, answer)
            assert (answer.num_accepted_tokens > 0) == (not held), (fields, answer)
