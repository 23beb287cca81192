"""Logits processors of plugins: llmx_logits_processors. Turned on by name, for one request; what they do and how they fail touches no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmx import LLM, RequestOutput, SamplingParams
from llmx.errors import PluginError, RequestError
from llmx.executor.base import Limits
from llmx.structured_params import ReasoningSpan, StructuredOutputsParams
from tests.hooks.vendor import install

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/logits_plugin/src/llmx_no_repeat"
ZOO = """
from llmx.hooks import LogitsProcessorDef, hookimpl

@hookimpl
def llmx_logits_processors(config):
    names = {"only": "Only", "shift": "Shift", "late_fault": "LateFault", "wrong": "wrong", "unmade": "unmade", "same": "same", "dead": "dead", "nan": "nan"}
    return [LogitsProcessorDef(name, "zoo_processors:" + target) for name, target in names.items()]
"""
PROCESSORS = """
import numpy as np

class Only:
    '''The tokens that it was given, by turns; tells what it knows of the model.'''
    def __init__(self, args, model):
        self.ids = args["ids"]
        self.known = model.vocab_size, model.eos_ids, model.token_bytes(self.ids[0])
        seen.append(self)
    def __call__(self, tokens, prompt_len, logits):
        assert tokens.dtype == np.int32 and not tokens.flags.writeable and logits.dtype == np.float32
        wanted = self.ids[(len(tokens) - prompt_len) % len(self.ids)]
        row = np.full_like(logits, -np.inf)
        row[wanted] = logits[wanted]
        return row

class Shift:
    '''A pure function of history and logits that changes many rows a little.'''
    def __init__(self, args, model):
        self.by = args.get("by", 1)
    def __call__(self, tokens, prompt_len, logits):
        logits += np.float32(4.0) * (np.arange(len(logits)) % 7 == (int(tokens[-1]) + self.by) % 7)

class LateFault:
    def __init__(self, args, model): pass
    def __call__(self, tokens, prompt_len, logits):
        if len(tokens) - prompt_len == 3:
            raise KeyError("no such thing")

seen = []
def wrong(args, model): return lambda tokens, prompt_len, logits: logits[:5]
def unmade(args, model): raise OSError("no file")
def same(args, model): return lambda tokens, prompt_len, logits: None
def dead(args, model): return lambda tokens, prompt_len, logits: np.full_like(logits, -np.inf)
def nan(args, model): return lambda tokens, prompt_len, logits: logits * np.float32("nan")
"""
PROMPTS = [[50 + at for at in range(length)] for length in (3, 20, 7)]


@pytest.fixture(scope="module", params=["null", "cpu"])
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("zoo")
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(folder, monkeypatch, "llmx-zoo", {"zoo_llmx.py": ZOO, "zoo_processors.py": PROCESSORS}, "[llmx.plugins]\nzoo = zoo_llmx\n")
        example = {f"llmx_no_repeat/{path.name}": path.read_text() for path in EXAMPLE.glob("*.py")}
        install(folder, monkeypatch, "llmx-no-repeat", example, "[llmx.plugins]\nno_repeat = llmx_no_repeat\n")
        with LLM(platform=request.param, threads=1, num_blocks=400, max_model_len=256, max_num_seqs=16) as one:
            yield one


def run(llm: LLM, *each: dict[str, Any], prompts: Any = PROMPTS) -> list[RequestOutput]:
    params = [SamplingParams(**{"temperature": 0.0, "max_tokens": 10, "ignore_eos": True, **given}) for given in each]
    return llm.generate(prompts[: len(params)], params, use_tqdm=False)


def facts(output: RequestOutput) -> Any:
    return [(answer.token_ids, answer.logprobs, answer.finish_reason) for answer in output.outputs]


def test_a_request_names_it_and_its_answer_changes_alone(llm: LLM) -> None:
    plain = run(llm, {"logprobs": 1}, {"logprobs": 1}, {"logprobs": 1})
    mixed = run(llm, {"logprobs": 1}, {"logits_processors": [{"name": "only", "args": {"ids": [7, 9]}}]}, {"logprobs": 1})
    assert mixed[1].outputs[0].token_ids == [7, 9] * 5
    assert facts(mixed[0]) == facts(plain[0]) and facts(mixed[2]) == facts(plain[2])
    assert facts(run(llm, {"logprobs": 1, "logits_processors": ["same"]})[0]) == facts(plain[0])


def test_it_knows_the_model(llm: LLM) -> None:
    import zoo_processors  # type: ignore[import-not-found]

    run(llm, {"logits_processors": [{"name": "only", "args": {"ids": [7]}}]})
    assert zoo_processors.seen[-1].known == (llm.info.vocab_size, llm._engine._eos_ids, llm.tokenizer.token_bytes(7))


def test_the_same_alone_and_in_a_batch_and_with_other_features(llm: LLM) -> None:
    """Seeds, logprobs, n answers, a processor on top of another; the neighbours have none, or others."""
    asked = {"temperature": 0.8, "seed": 5, "n": 3, "logprobs": 2, "logits_processors": ["shift", {"name": "shift", "args": {"by": 3}}]}
    (alone,) = run(llm, asked)
    beside = run(llm, asked, {"logits_processors": [{"name": "only", "args": {"ids": [9]}}]}, {"temperature": 1.0, "seed": 1, "n": 2})
    assert facts(beside[0]) == facts(alone) and beside[1].outputs[0].token_ids == [9] * 10
    assert len({tuple(answer.token_ids) for answer in alone.outputs}) == 3
    singles = [run(llm, {**asked, "n": 1, "seed": 5 + index})[0].outputs[0].token_ids for index in range(3)]
    assert singles == [answer.token_ids for answer in alone.outputs]


def test_a_grammar_and_a_thinking_budget_hold_all_the_same(llm: LLM) -> None:
    shift = {"logits_processors": ["shift"], "temperature": 1.0, "seed": 2, "max_tokens": 60, "ignore_eos": False}
    (form,) = run(llm, {**shift, "structured_outputs": StructuredOutputsParams(regex="[ab]{4}")})
    assert len(form.outputs[0].text) == 4 and set(form.outputs[0].text) <= set("ab"), form.outputs[0].error
    after = ReasoningSpan("<think>", "</think>", True, 2)
    (budget,) = run(llm, {**shift, "ignore_eos": True, "max_tokens": 12, "structured_outputs": StructuredOutputsParams(after=after)})
    text = b"".join(llm.tokenizer.token_bytes(token) for token in budget.outputs[0].token_ids[:5])
    assert text.endswith(b"</think>") and len(budget.outputs[0].token_ids) == 12


@pytest.mark.parametrize(
    ("name", "says", "count"),
    [
        ("late_fault", "'late_fault' failed: KeyError", 3),
        ("wrong", "'wrong' failed: ValueError: it gave logits of shape", 0),
        ("nan", "'nan' failed: ValueError", 0),
    ],
)
def test_one_that_fails_ends_its_request_alone(llm: LLM, name: str, says: str, count: int) -> None:
    plain = run(llm, {}, {}, {})
    first, failed, last = run(llm, {}, {"logits_processors": [name]}, {})
    assert facts(first) == facts(plain[0]) and facts(last) == facts(plain[2])
    answer = failed.outputs[0]
    assert answer.finish_reason == "error" and says in (answer.error or "") and len(answer.token_ids) == count
    assert llm._engine.stats().kv_blocks_used == 0


def test_one_that_forbids_everything_ends_its_request(llm: LLM) -> None:
    answer = run(llm, {"logits_processors": ["dead"]})[0].outputs[0]
    assert answer.finish_reason == "error" and "no token may be drawn" in (answer.error or "")


def test_the_example(llm: LLM) -> None:
    """No pair of tokens comes twice; without it the answer, pushed towards three tokens, repeats itself."""
    push = {"logit_bias": {5: 100.0, 6: 100.0, 7: 100.0}, "max_tokens": 12}
    free, held = (run(llm, {**push, **more})[0].outputs[0].token_ids for more in ({}, {"logits_processors": [{"name": "no_repeat", "args": {"size": 2}}]}))
    pairs = list(zip(held, held[1:], strict=False))
    assert len(set(pairs)) == len(pairs) and len(set(zip(free, free[1:], strict=False))) < len(pairs)
    with pytest.raises(RequestError, match="'no_repeat' does not take .* it takes size"):
        run(llm, {"logits_processors": [{"name": "no_repeat", "args": {"size": 0}}]})


def test_what_is_refused(llm: LLM) -> None:
    for given, says in (
        (["nowhere"], "'nowhere', which no plugin has; there are dead, late_fault"),
        ([print], "hook llmx_logits_processors"),
        ([{"name": "only"}], "'only' does not take"),
        ([{"args": {}}], "each must be a name"),
        ([{"name": "only", "args": [1]}], "must be an object"),
        (["same"] * 9, "at most 8"),
        ("same", "give a list of names"),
    ):
        with pytest.raises(RequestError, match=says) as caught:
            run(llm, {"logits_processors": given})
        assert caught.value.field == "logits_processors"
    with pytest.raises(RequestError, match="'unmade' could not be made: OSError"):
        run(llm, {"logits_processors": ["unmade"]})
    limits, llm._engine.executor.limits = llm._engine.executor.limits, Limits(max_tokens=64, max_requests=4, features=frozenset({"late_mask"}))
    try:
        with pytest.raises(RequestError, match="lacks the feature host_logits"):
            run(llm, {"logits_processors": ["same"]})
    finally:
        llm._engine.executor.limits = limits


def test_two_of_one_name_stop_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        install(tmp_path, monkeypatch, f"llmx-{name}", {f"{name}_llmx.py": ZOO}, f"[llmx.plugins]\n{name} = {name}_llmx\n")
    with pytest.raises(PluginError, match="comes twice"):
        LLM(platform="null", num_blocks=100, max_model_len=256)
