"""Grammars inside an engine: one matcher per answer, failures that stay with their request, compiling beside the others."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from llmx import LLM, SamplingParams
from llmx.engine.compiling import CompileRoom
from llmx.engine.messages import Abort, Add, ToEngine, decoder, encode
from llmx.errors import GrammarError
from llmx.structured import GrammarSpec, TokenTable
from llmx.structured.manager import Grammars
from llmx.structured_params import StructuredOutputsParams
from llmx_llguidance.backend import LLGuidanceBackend
from tests.structured.tiny import EOS

HANG_S = 30
OBJECT = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}, "b": {"type": "boolean"}}, "required": ["a", "b"]}
CLOSED = {**OBJECT, "additionalProperties": False}


def params(tokens: int = 60, **form: Any) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=3, max_tokens=tokens, structured_outputs=StructuredOutputsParams(**form))


def text(llm: LLM, prompt: str, wanted: SamplingParams) -> str:
    (output,) = llm.generate(prompt, wanted, use_tqdm=False)
    assert output.outputs[0].finish_reason == "stop", output.outputs[0].error
    return output.outputs[0].text


@pytest.mark.parametrize("platform", ["cpu", "torch", "null"])
def test_every_executor_waits_for_its_masks(tiny_folder: Any, platform: str) -> None:
    with LLM(model=str(tiny_folder), platform=platform, threads=1, max_model_len=256, num_blocks=300, max_num_seqs=8) as llm:
        mixed = [params(json=CLOSED), SamplingParams(temperature=1.0, seed=5, max_tokens=40), params(choice=["yes", "no"]), params(regex="[a-c]{9}")]
        outputs = [output.outputs[0] for output in llm.generate(["x", "y", "z", "w"], mixed, use_tqdm=False)]
        assert set(json.loads(outputs[0].text)) == {"a", "b"}
        assert outputs[2].text in ("yes", "no")
        assert len(outputs[3].text) == 9 and set(outputs[3].text) <= set("abc")
        alone = llm.generate("y", mixed[1], use_tqdm=False)[0].outputs[0]
        assert (alone.token_ids, alone.text) == (outputs[1].token_ids, outputs[1].text)  # an open row beside masked ones


def test_every_answer_has_a_matcher_of_its_own(tiny: LLM) -> None:
    wanted = SamplingParams(n=4, temperature=1.5, seed=1, max_tokens=60, structured_outputs=StructuredOutputsParams(regex="[a-z]{3}(x|yy|zzz)[0-9]{2}"))
    (output,) = tiny.generate("a", wanted, use_tqdm=False)
    texts = [answer.text for answer in output.outputs]
    assert len(set(texts)) > 1 and all(answer.finish_reason == "stop" for answer in output.outputs)


def test_special_tokens_and_ids_without_text_are_never_drawn(tiny: LLM, tiny_table: TokenTable) -> None:
    empty = [index for index, token in enumerate(tiny_table.tokens) if not token]
    bias = {index: 100.0 for index in (*empty, *tiny_table.special_ids) if tiny_table.tokens[index] != EOS.encode()}
    wanted = SamplingParams(temperature=1.0, max_tokens=30, logit_bias=bias, structured_outputs=StructuredOutputsParams(regex="(.|\\n){10,200}"))
    (output,) = tiny.generate("a", wanted, use_tqdm=False)
    assert empty and len(output.outputs[0].token_ids) == 30 and not set(output.outputs[0].token_ids) & set(bias)


def test_a_bias_revives_no_forbidden_token(tiny: LLM) -> None:
    bias = {token: 100.0 for token in range(tiny.info.vocab_size) if tiny.tokenizer.token_bytes(token) in (b"x", b"q", b" ")}
    wanted = SamplingParams(temperature=0.0, max_tokens=20, logit_bias=bias, structured_outputs=StructuredOutputsParams(choice=["abc"]))
    assert text(tiny, "a", wanted) == "abc"


def test_the_end_of_the_grammar_ends_the_answer(tiny: LLM) -> None:
    for more in ({"ignore_eos": True}, {"min_tokens": 20}, {"ignore_eos": True, "min_tokens": 20, "stop_token_ids": (1,)}):
        wanted = SamplingParams(temperature=0.0, max_tokens=30, structured_outputs=StructuredOutputsParams(choice=["ok"]), **more)
        assert text(tiny, "a", wanted) == "ok"
    longer = SamplingParams(temperature=0.0, max_tokens=30, min_tokens=8, logit_bias={257: 100.0}, structured_outputs=StructuredOutputsParams(regex="a+"))
    assert len(tiny.generate("a", longer, use_tqdm=False)[0].outputs[0].token_ids) == 9  # EOS is wanted most, and comes as soon as it may


def test_whitespace_options(tiny: LLM) -> None:
    spaces = {token: 50.0 for token in range(tiny.tokenizer.vocab_size) if (word := tiny.tokenizer.token_bytes(token)) and not word.strip(b" \n")}
    for form, most in (({}, 8), ({"disable_any_whitespace": True}, 0), ({"whitespace_pattern": "[ ]{0,2}"}, 2)):
        wanted = SamplingParams(temperature=0.0, max_tokens=150, logit_bias=spaces, structured_outputs=StructuredOutputsParams(json=CLOSED, **form))
        found = text(tiny, "a", wanted)
        runs = max((len(part) - len(part.lstrip(" \n")) for part in [found[at:] for at in range(len(found))]), default=0)
        assert runs == most, found


def test_additional_properties_can_be_disabled(tiny: LLM) -> None:
    wanted = StructuredOutputsParams(json={"type": "object", "properties": {"a": {"type": "null"}}}, disable_additional_properties=True)
    for seed in range(5):
        found = text(tiny, "a", SamplingParams(temperature=1.0, seed=seed, max_tokens=60, structured_outputs=wanted))
        assert set(json.loads(found)) <= {"a"}


def test_a_grammar_works_in_chunks_and_after_preemption(tiny_folder: Any, tiny: LLM) -> None:
    wanted = [params(json=CLOSED), params(regex="[a-f]{40}")]
    prompts = ["abcdefgh" * 9, "hgfedcba" * 9]
    plain = [text(tiny, prompt, one) for prompt, one in zip(prompts, wanted, strict=True)]
    with LLM(model=str(tiny_folder), platform="cpu", threads=1, max_model_len=128, num_blocks=13, max_num_seqs=4, max_num_batched_tokens=16) as small:
        outputs = small.generate(prompts, wanted, use_tqdm=False)
        assert small._engine.stats().preemptions > 0
    assert [output.outputs[0].text for output in outputs] == plain


class Faulty(LLGuidanceBackend):
    """Fails while it compiles `boom`; at the fourth mask with an error (fault `later`) or an exception (fault `worse`)."""

    def compile(self, spec: GrammarSpec) -> Any:
        if "boom" in spec.text:
            raise RuntimeError("the compiler broke")
        return super().compile(spec)

    def fill(self, matchers: Sequence[Any], tokens: Sequence[Sequence[int]], rows: Sequence[int], mask: np.ndarray) -> None:
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls >= 4 and "worse" in self.fault:
            raise RuntimeError("the library broke")
        super().fill(matchers, tokens, rows, mask)
        if self.calls >= 4 and "later" in self.fault:
            matchers[0].error = "a limit was met"

    fault = ""


@pytest.fixture
def faulty(tiny_folder: Any, tiny_table: TokenTable) -> Iterator[Callable[[str], LLM]]:
    made: list[LLM] = []

    def build(fault: str) -> LLM:
        llm = LLM(model=str(tiny_folder), platform="cpu", threads=1, max_model_len=256, num_blocks=300, max_num_seqs=8)
        made.append(llm)

        def backend(table: TokenTable) -> Faulty:
            one = Faulty(table)
            one.fault = fault
            return one

        llm._engine.grammars = Grammars([("faulty", backend)], lambda: tiny_table)
        return llm

    yield build
    for llm in made:
        llm.close()


def test_b046_a_compiler_that_breaks_costs_its_request_only(faulty: Callable[[str], LLM]) -> None:
    llm = faulty("")
    engine = llm.llm_engine
    for prompt in "abc":
        engine.add_request(prompt, prompt, SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))
    for _ in range(3):
        engine.step()
    with pytest.raises(GrammarError, match="the compiler broke"):
        engine.add_request("d", "d", params(choice=["boom"]))
    ended: dict[str, int] = {}
    while engine.has_unfinished_requests():
        ended |= {output.request_id: len(output.outputs[0].token_ids) for output in engine.step() if output.finished}
    assert ended == {"a": 20, "b": 20, "c": 20}


@pytest.mark.parametrize(("fault", "word"), [("later", "a limit was met"), ("worse", "the library broke")])
def test_a_grammar_that_fails_while_it_runs_ends_its_request_only(faulty: Callable[[str], LLM], fault: str, word: str) -> None:
    llm = faulty(fault)
    bad, good = llm.generate(["a", "b"], [params(regex="[a-c]{30}"), SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)], use_tqdm=False)
    assert bad.outputs[0].finish_reason == "error" and word in (bad.outputs[0].error or "")
    assert len(good.outputs[0].token_ids) == 30
    llm._engine.kv.check_integrity([])


# -- compiling -----------------------------------------------------------------------------------------------------------------


class Slow(LLGuidanceBackend):
    """Compiles when it is let go."""

    go = threading.Event()

    def compile(self, spec: GrammarSpec) -> Any:
        assert self.go.wait(HANG_S)
        return super().compile(spec)


@pytest.fixture
def slow(tiny_table: TokenTable) -> Iterator[Grammars]:
    Slow.go.clear()
    grammars = Grammars([("slow", Slow)], lambda: tiny_table, timeout_s=HANG_S)
    yield grammars
    Slow.go.set()
    grammars.close()


def add(name: str, **form: Any) -> Add:
    return Add(name, [1, 2], SamplingParams(n=2, structured_outputs=StructuredOutputsParams(**form)))


def test_requests_wait_in_the_room_until_their_grammar_is_ready(slow: Grammars) -> None:
    room = CompileRoom(slow)
    assert not room.hold(Add("plain", [1], SamplingParams()))
    assert room.hold(add("one", choice=["a"])) and room.hold(add("two", choice=["a"])) and room.hold(add("three", regex="("))
    assert room.ready(idle=False) == [] and len(room) == 3
    ended = room.drop(Abort("two"))
    assert [(one.id, one.index, one.finish_reason) for one in ended] == [("two", 0, "abort"), ("two", 1, "abort")]
    assert room.drop(Abort("two")) == []
    Slow.go.set()
    done: dict[str, Any] = {}
    while len(room):
        done |= {message.id: error for message, error in room.ready(idle=True)}
    assert set(done) == {"one", "three"} and done["one"].backend.name == "llguidance" and isinstance(done["three"], GrammarError)
    assert done["three"].field == "structured_outputs"


def test_a_grammar_that_takes_too_long_is_refused(slow: Grammars) -> None:
    slow.timeout_s = 0.05
    room = CompileRoom(slow)
    room.hold(add("one", choice=["a"]))
    done: list[Any] = []
    while not done:
        done = room.ready(idle=True)
    assert "longer than 0.05 s" in str(done[0][1]) and not len(room)
    with pytest.raises(GrammarError, match="longer than"):
        slow.get(StructuredOutputsParams(choice=["a"]))


def test_a_backend_is_not_made_for_what_it_does_not_support(tiny_table: TokenTable) -> None:
    def heavy(table: TokenTable) -> Any:
        raise AssertionError("it was imported")

    makers = [("llguidance", LLGuidanceBackend), ("heavy", heavy)]
    grammars = Grammars(makers, lambda: tiny_table, supports={"heavy": lambda spec: "heavy takes none"})
    with pytest.raises(GrammarError, match="uniqueItems.*; heavy: heavy takes none"):
        grammars.get(StructuredOutputsParams(json={"type": "array", "uniqueItems": True}))
    grammars.close()


def test_equal_grammars_are_compiled_once_and_the_oldest_are_forgotten(tiny_table: TokenTable) -> None:
    grammars = Grammars([("llguidance", LLGuidanceBackend)], lambda: tiny_table, kept=2)
    one, same = StructuredOutputsParams(json=CLOSED), StructuredOutputsParams(json={"title": "T", **CLOSED}, field_name="response_format")
    first = grammars.get(one)
    assert grammars.get(same) is first and (grammars.compiled, grammars.hits) == (1, 1)  # annotations make no other grammar
    for word in ("a", "b"):
        grammars.get(StructuredOutputsParams(choice=[word]))
    assert grammars.get(one) is not first and grammars.compiled == 4
    grammars.close()


def test_a_request_travels_whole() -> None:
    tag = {"structural_tag": {"structures": [], "triggers": []}}
    for form in ({"json": CLOSED}, {"json": True}, {"regex": "a"}, {"choice": ["a"]}, tag, {"json_object": True}):
        sent = add("x", **form)
        received = decoder(ToEngine).decode(encode(sent))
        assert received.params.structured_outputs == sent.params.structured_outputs


@pytest.mark.parametrize(
    ("form", "word"),
    [
        ({}, "exactly one"), ({"regex": "a", "choice": ["a"]}, "exactly one"), ({"json": "{"}, "not valid JSON"), ({"json": 3}, "JSON object"),
        ({"json": '{"a": NaN}'}, "NaN"), ({"choice": []}, "one or more"), ({"choice": ["a", 1]}, "strings"), ({"regex": ""}, "non-empty"),
        ({"regex": "a" * 20_000}, "16384"), ({"json_object": 1}, "true or false"), ({"regex": "a", "whitespace_pattern": " "}, "whitespace_pattern"),
        ({"json": "[" * 100_000}, "deep"), ({"choice": ["a"] * 10_001}, "10000"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_at_the_border(form: dict[str, Any], word: str) -> None:
    with pytest.raises(GrammarError, match=word) as caught:
        StructuredOutputsParams(**form)
    assert caught.value.field == "structured_outputs"
