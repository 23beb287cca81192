"""What of the field's offline Python interface works here, argument by argument: each has a check of its effect, or is refused by name.

tests/engine/test_llm_table.py runs every check and holds the table against the real signatures; docs/from-vllm.md is written from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from llmx import LLM, BeamSearchParams, LoRARequest, RequestError, RequestOutput, RequestOutputKind, SamplingParams
from llmx.engine.flat_logprobs import FlatLogprobs
from llmx.engine.refused_methods import REFUSED_METHODS

PROMPT = "hello"
LONG = list(range(20, 60))  # two full blocks and a half
CHAT = [{"role": "user", "content": "hello"}]
BASE: dict[str, Any] = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}{{ mood }}{% if add_generation_prompt %}>{% endif %}"


@dataclass(frozen=True)
class Field:
    """A SamplingParams field. given: what sets it; holds: what must be true of the plain output and the changed one."""

    given: dict[str, Any]
    holds: Callable[[RequestOutput, RequestOutput], object]
    says: str


@dataclass(frozen=True)
class Refused:
    """A field or argument that no value but its default is taken of: `value` raises RequestError naming it."""

    value: Any


def tokens(output: RequestOutput, index: int = 0) -> list[int]:
    """Of one answer."""
    return output.outputs[index].token_ids


def text(output: RequestOutput) -> str:
    """Of the first answer."""
    return output.outputs[0].text


def _first(llm_output: RequestOutput) -> int:
    return tokens(llm_output)[0]


def sampling_fields(plain: RequestOutput) -> dict[str, Field | Refused]:
    """Every field of SamplingParams. plain: the output for LONG with BASE, on which some values depend."""
    token, word = plain.outputs[0].token_ids[0], plain.outputs[0].text.split()[0]
    drawn = {"temperature": 1.8, "seed": 3}
    return {
        "n": Field({"n": 2}, lambda a, b: [one.index for one in b.outputs] == [0, 1], "1 to 128 answers that share their prompt"),
        "temperature": Field(drawn, lambda a, b: tokens(a) != tokens(b), "0 to 2; 0 is greedy"),
        "top_p": Field({**drawn, "top_p": 1e-6}, lambda a, b: tokens(a) == tokens(b), "above 0, to 1"),
        "top_k": Field({**drawn, "top_k": 1}, lambda a, b: tokens(a) == tokens(b), "0 and -1 are off"),
        "min_p": Field({**drawn, "min_p": 1.0}, lambda a, b: tokens(a) == tokens(b), "0 to 1; applied after top_p"),
        "presence_penalty": Field({"presence_penalty": 2.0, "logit_bias": {token: 7.0}}, lambda a, b: tokens(b).count(token) < 8, "-2 to 2"),
        "frequency_penalty": Field({"frequency_penalty": 2.0, "logit_bias": {token: 7.0}}, lambda a, b: tokens(b).count(token) < 8, "-2 to 2"),
        "repetition_penalty": Field({"repetition_penalty": 100.0, "logit_bias": {token: 7.0}}, lambda a, b: tokens(b).count(token) < 8, "0.01 to 100"),
        "seed": Field({**drawn, "seed": 4}, lambda a, b: tokens(a) != tokens(b), "request i of n uses seed + i; None or -1 draws one"),
        "stop": Field({"stop": word}, lambda a, b: b.outputs[0].stop_reason == word and word not in text(b), "at most 16 strings"),
        "stop_token_ids": Field({"stop_token_ids": [token]}, lambda a, b: b.outputs[0].stop_reason == token and tokens(b) == [token], "ids of the vocabulary"),
        "ignore_eos": Field({"ignore_eos": False, "logit_bias": {2: 100.0}}, lambda a, b: tokens(b) == [2], "EOS ends nothing"),
        "max_tokens": Field({"max_tokens": 3}, lambda a, b: len(tokens(b)) == 3, "16 by default; None: as many as the context allows"),
        "min_tokens": Field({"min_tokens": 8, "stop_token_ids": [token]}, lambda a, b: len(tokens(b)) == 8 and token not in tokens(b), "bans EOS and stop ids"),
        "logprobs": Field({"logprobs": 2}, lambda a, b: len(b.outputs[0].logprobs or []) == 8, "-1: every token's; LLM(max_logprobs=N) limits it"),
        "prompt_logprobs": Field({"prompt_logprobs": 1}, lambda a, b: len(b.prompt_logprobs or []) == len(LONG), "as logprobs, for the prompt"),
        "logprob_token_ids": Field(
            {"logprobs": 0, "logprob_token_ids": [9]}, lambda a, b: 9 in (b.outputs[0].logprobs or [{}])[0], "with logprobs: also these tokens'"
        ),
        "flat_logprobs": Field(
            {"logprobs": 1, "flat_logprobs": True}, lambda a, b: isinstance(b.outputs[0].logprobs, FlatLogprobs), "one FlatLogprobs in place of the lists"
        ),
        "logit_bias": Field({"logit_bias": {77: 100.0}}, lambda a, b: set(tokens(b)) == {77}, "-100 to 100"),
        "allowed_token_ids": Field({"allowed_token_ids": [5, 6]}, lambda a, b: set(tokens(b)) <= {5, 6}, "nothing else is drawn"),
        "bad_words": Field({"bad_words": [word]}, lambda a, b: word in text(a) and word not in text(b), "as the tokenizer writes them; at most 128"),
        "bad_word_ids": Field({"bad_word_ids": ((token,),)}, lambda a, b: token not in tokens(b), "llmx's own: the same as token ids"),
        "include_stop_str_in_output": Field(
            {"stop": word, "include_stop_str_in_output": True}, lambda a, b: text(b).endswith(word), "the stop string, or stop token, is in the text"
        ),
        "skip_special_tokens": Field(
            {"logit_bias": {0: 100.0}, "skip_special_tokens": False}, lambda a, b: "<|endoftext|>" in text(b), "special tokens are in the text with False"
        ),
        "spaces_between_special_tokens": Field(
            {"spaces_between_special_tokens": False, "skip_special_tokens": False, "logit_bias": {0: 100.0}},
            lambda a, b: " " not in text(b),
            "False: a special token after another loses the space that it begins with",
        ),
        "detokenize": Field({"detokenize": False}, lambda a, b: text(b) == "" and tokens(b) == tokens(a), "False: tokens only"),
        "output_kind": Field({"output_kind": RequestOutputKind.DELTA}, lambda a, b: text(b) == text(a), "for streams; LLM.generate gives the whole"),
        "skip_reading_prefix_cache": Field(
            {"skip_reading_prefix_cache": True}, lambda a, b: a.num_cached_tokens > 0 and b.num_cached_tokens == 0, "the whole prompt is computed"
        ),
        "truncate_prompt_tokens": Field({"truncate_prompt_tokens": 5}, lambda a, b: b.prompt_token_ids == LONG[-5:], "the last so many; -1: as many as fit"),
        "truncation_side": Field(
            {"truncate_prompt_tokens": 5, "truncation_side": "right"}, lambda a, b: b.prompt_token_ids == LONG[:5], "right cuts the end instead"
        ),
        "priority": Refused(3),  # of an engine without priorities; with them: ARGUMENTS
        "extra_args": Refused({"a": 1}),
        "prompt_logprob_token_ids": Refused([1]),
        "prompt_logprob_start": Refused(3),
        "trace_decode_token_ids": Refused([1]),
        "thinking_token_budget": Field(
            {"thinking_token_budget": 2},
            lambda a, b: tokens(b)[:2] == tokens(a)[:2] and "</think>" in text(b),
            "reasoning ends after so many tokens; needs a model that marks its reasoning, or `reasoning_parser`",
        ),
        "repetition_detection": Refused({"max_pattern_size": 3}),
        "watermarking": Refused(True),
    }


BEAM_FIELDS: dict[str, Refused | Callable[[LLM], object]] = {
    "beam_width": lambda llm: len(_beams(llm, beam_width=3)) == 3,
    "max_tokens": lambda llm: len(_beams(llm, max_tokens=5)[0].logprobs) == 5,
    "ignore_eos": lambda llm: [{beam.finish_reason for beam in _ended(llm, ignore_eos=ignore)} for ignore in (False, True)] == [{"stop", "length"}, {"length"}],
    "temperature": Refused(0.5),
    "length_penalty": lambda llm: [_ended(llm, length_penalty=penalty)[0].finish_reason for penalty in (-5.0, 5.0)] == ["stop", "length"],
    "include_stop_str_in_output": lambda llm: [_end_shown(_ended(llm, include_stop_str_in_output=shown)) for shown in (False, True)] == [False, True],
    "structured_outputs": Refused({"json": {}}),
    "skip_special_tokens": lambda llm: "<|im_start|>" in (_beams(llm, "<|im_start|>a", skip_special_tokens=False)[0].text or ""),
    "watermarking": Refused(True),
}


def _beams(llm: LLM, prompt: Any = PROMPT, **given: Any) -> Any:
    return llm.beam_search([prompt], BeamSearchParams(**{"beam_width": 2, "max_tokens": 3, **given}))[0].sequences


def _ended(llm: LLM, **given: Any) -> Any:
    """Beams of a search in which the most likely first token ends an answer."""
    own, llm.tokenizer.eos_ids = llm.tokenizer.eos_ids, (tokens(llm.generate(PROMPT, params())[0])[0],)
    try:
        return _beams(llm, **given)
    finally:
        llm.tokenizer.eos_ids = own


def _end_shown(beams: Any) -> bool:
    (ended,) = [beam for beam in beams if beam.finish_reason == "stop"]
    return bool(ended.tokens[-1] == ended.stop_reason)


class Bar:
    """Stands for tqdm: counts what it is told."""

    made: list[Bar] = []

    def __init__(self, total: int, desc: str, **_: Any) -> None:
        self.total, self.desc, self.n = total, desc, 0
        Bar.made.append(self)

    def update(self, by: int) -> None:
        self.n += by

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        assert "tokens/s" in text

    def close(self) -> None:
        assert self.n == self.total


def bar_of(call: Callable[[], object]) -> Bar:
    """The bar that a call with use_tqdm=Bar makes."""
    Bar.made.clear()
    call()
    (bar,) = Bar.made
    return bar


def params(**given: Any) -> SamplingParams:
    """BASE with changes."""
    return SamplingParams(**{**BASE, **given})


def prompt_of(outputs: list[RequestOutput]) -> str:
    """The text of the first prompt."""
    return outputs[0].prompt or ""


def _wait(llm: LLM, ids: list[str]) -> list[RequestOutput]:
    outputs = llm.wait_for_completion()
    assert [output.request_id for output in outputs] == ids
    return outputs


def _answers(name: str, llm: LLM, first: Any, **given: Any) -> list[RequestOutput]:
    """Of generate, chat, enqueue or enqueue_chat, by one way."""
    given.setdefault("sampling_params", params())
    got = getattr(llm, name)(first, **given)
    return _wait(llm, got) if name.startswith("enqueue") else got


Check = Callable[[LLM], object]
ADAPTER = LoRARequest("there")  # loaded by the test's fixture


def _shared(name: str, first: Any) -> dict[str, Check | Refused]:
    """Arguments that all four ways to generate share."""
    return {
        "sampling_params": lambda llm: len(tokens(_answers(name, llm, first, sampling_params=params(max_tokens=2))[0])) == 2,
        "use_tqdm": lambda llm: bar_of(lambda: _answers(name, llm, first, use_tqdm=Bar)).total == 1,
        "lora_request": lambda llm: _answers(name, llm, first, lora_request=ADAPTER)[0].lora_request is ADAPTER,
        "priority": lambda llm: _in_order(name, llm, first),
        "tokenization_kwargs": lambda llm: len(_answers(name, llm, first, tokenization_kwargs={"truncate_prompt_tokens": 1})[0].prompt_token_ids) == 1,
        "mm_processor_kwargs": Refused({"a": 1}),
    }


def _in_order(name: str, llm: LLM, first: Any) -> bool:
    """The later prompt with the lower number is done first; an engine in order of arrival refuses."""
    if llm.llm_engine.config.scheduler.policy != "priority":
        with pytest.raises(RequestError, match="priority is 5"):
            _answers(name, llm, first, priority=[5])
        return True
    a, b = _answers(name, llm, [first, first], priority=[5, 1])
    assert a.metrics and b.metrics
    return b.metrics.last_token_ts < a.metrics.first_token_ts


def _chat_arguments(name: str) -> dict[str, Check | Refused]:
    def render(llm: LLM, **given: Any) -> str:
        return prompt_of(_answers(name, llm, CHAT, **given))

    half = [*CHAT, {"role": "assistant", "content": "well"}]
    return {
        "messages": lambda llm: "hello" in render(llm),
        **_shared(name, CHAT),
        "chat_template": lambda llm: render(llm, chat_template=TEMPLATE) == "helloNone>",
        "chat_template_content_format": Refused("openai"),
        "add_generation_prompt": lambda llm: render(llm, chat_template=TEMPLATE, add_generation_prompt=False) == "helloNone",
        "continue_final_message": lambda llm: prompt_of(_answers(name, llm, half, add_generation_prompt=False, continue_final_message=True)).endswith("well"),
        "tools": lambda llm: "get_time" in render(llm, chat_template=TEMPLATE, tools=[{"type": "function", "function": {"name": "get_time"}}]),
        "chat_template_kwargs": lambda llm: render(llm, chat_template=TEMPLATE, chat_template_kwargs={"mood": "glad"}) == "helloNoneglad>",
    }


def _resets(llm: LLM, **given: Any) -> bool:
    """reset_prefix_cache while a request runs: what it says, and whether the request still gives the plain answer."""
    llm.enqueue([LONG], params())
    llm._step()
    said = llm.reset_prefix_cache(**given)
    assert tokens(llm.wait_for_completion()[0]) == tokens(llm.generate([LONG], params())[0])
    return said


def _refusal(call: Callable[[], None]) -> str:
    """What a call is refused with."""
    try:
        call()
    except RequestError as error:
        return str(error)
    return ""


TWO = BeamSearchParams(2, 2)
ARGUMENTS: dict[str, dict[str, Check | Refused]] = {
    "generate": {"prompts": lambda llm: len(llm.generate(["a", "b"], params())) == 2, **_shared("generate", [5, 6, 7])},
    "chat": _chat_arguments("chat"),
    "enqueue": {"prompts": lambda llm: len(_wait(llm, llm.enqueue(["a", "b"], params()))) == 2, **_shared("enqueue", [5, 6, 7])},
    "enqueue_chat": _chat_arguments("enqueue_chat"),
    "wait_for_completion": {"use_tqdm": lambda llm: bar_of(lambda: (llm.enqueue(["a", "b"], params()), llm.wait_for_completion(use_tqdm=Bar))).total == 2},
    "stream": {
        "prompt": lambda llm: next(llm.stream([5, 6], params())).prompt_token_ids == [5, 6],
        "sampling_params": lambda llm: len(list(llm.stream("a", params(output_kind=RequestOutputKind.FINAL_ONLY)))) == 1,
        "lora_request": lambda llm: next(llm.stream("a", params(), lora_request=ADAPTER)).lora_request is ADAPTER,
    },
    "beam_search": {
        "prompts": lambda llm: len(llm.beam_search(["a", [5]], BeamSearchParams(2, 2))) == 2,
        "params": lambda llm: len(_beams(llm, beam_width=4)) == 4,
        "lora_request": lambda llm: llm.beam_search(["a"], TWO, lora_request=ADAPTER)[0].sequences[0].lora_request is ADAPTER,
        "use_tqdm": lambda llm: bar_of(lambda: llm.beam_search(["a", "b"], BeamSearchParams(2, 2), use_tqdm=Bar)).total == 2,
        "concurrency_limit": lambda llm: llm.beam_search(["a", [5]], TWO, concurrency_limit=1) == llm.beam_search(["a", [5]], TWO),
    },
    "reset_prefix_cache": {
        "reset_running_requests": lambda llm: (_resets(llm), _resets(llm, reset_running_requests=True)) == (False, True),
        "reset_connector": Refused(True),
    },
    "collective_rpc": {
        "method": lambda llm: llm.collective_rpc("kv_needs") == [llm._engine.executor.kv_needs()],
        "timeout": Refused(1.0),
        "args": lambda llm: llm.collective_rpc(lambda executor, a: (executor is llm._engine.executor, a), args=(7,)) == [(True, 7)],
        "kwargs": lambda llm: llm.collective_rpc(lambda executor, a: a, kwargs={"a": 8}) == [8],
    },
    "sleep": {"level": lambda llm: "'sleep'" in _refusal(lambda: llm.sleep(1))},  # where the platform has no allocator; tests/platforms has the rest
    "wake_up": {},
    "get_world_size": {"include_dp": lambda llm: llm.get_world_size(True) == llm.get_world_size(False) == 1},
    "get_tokenizer": {},
    "get_default_sampling_params": {},
    "get_metrics": {},
    "close": {},
}
ASKS: dict[str, dict[str, Any]] = {  # what a method needs besides the argument that is refused
    "generate": {"prompts": "a"},
    "chat": {"messages": CHAT},
    "enqueue": {"prompts": "a"},
    "enqueue_chat": {"messages": CHAT},
    "beam_search": {"prompts": "a", "params": BeamSearchParams(2, 2)},
    "reset_prefix_cache": {},
    "collective_rpc": {"method": "kv_needs"},
}
METHODS_ELSEWHERE = (  # every method that scripts for other engines' LLM may call
    "generate chat enqueue enqueue_chat wait_for_completion beam_search encode embed classify score reward collective_rpc apply_model start_profile "
    "stop_profile reset_prefix_cache reset_mm_cache sleep wake_up release_kv_cache_memory get_metrics get_tokenizer get_world_size "
    "get_default_sampling_params init_weight_transfer_engine start_weight_update start_draft_weight_update update_weights finish_weight_update "
    "update_weight_version get_weight_version shutdown_weight_transfer_engine"
).split()
POOLING = ("encode", "embed", "classify", "score")  # tests/pooling/arguments.py
assert set(METHODS_ELSEWHERE) <= set(ARGUMENTS) | set(POOLING) | set(REFUSED_METHODS)
