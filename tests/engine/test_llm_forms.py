"""Forms of prompts and outputs of LLM, what an enqueued request survives, and the tokenizer's other names; on the null platform."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from llmx import LLM, LLMEngine, RequestError, RequestOutputKind, SamplingParams, TextPrompt, TokensPrompt
from llmx.engine.flat_logprobs import FlatLogprobs
from llmx.engine.metrics_snapshot import Counter, Gauge
from llmx.engine.outputs import TokenLogprobs
from llmx.tokens.tokenizer import Tokenizer

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(platform="null", num_blocks=1000, max_model_len=1024) as one:
        yield one


def _tokens(output: Any) -> list[int]:
    return list(output.outputs[0].token_ids)


# -- prompts -------------------------------------------------------------------------------------------------------------


def test_every_form_of_a_prompt(llm: LLM) -> None:
    ids = llm.tokenizer.encode("one two")
    forms: list[Any] = ["one two", {"prompt": "one two"}, ids, {"prompt_token_ids": ids}, {"prompt": "one two", "prompt_token_ids": ids}]
    forms += [TextPrompt(prompt="one two"), TokensPrompt(prompt_token_ids=ids), {"prompt": "one two", "multi_modal_data": None}]
    forms += [np.array(ids), tuple(ids), {"prompt_token_ids": np.array(ids)}]
    outputs = llm.generate(forms, GREEDY)
    assert {tuple(output.prompt_token_ids) for output in outputs} == {tuple(ids)}
    assert len({tuple(_tokens(output)) for output in outputs}) == 1
    assert [output.prompt for output in outputs] == ["one two", "one two", None, None, "one two", "one two", None, "one two", None, None, None]
    assert _tokens(llm.generate(np.array(ids), GREEDY)[0]) == _tokens(outputs[0])


@pytest.mark.parametrize("key", ["prompt_embeds", "encoder_prompt", "decoder_prompt", "multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs", "data"])
def test_what_a_prompt_cannot_hold_is_named(key: str, llm: LLM) -> None:
    with pytest.raises(RequestError, match=rf"the prompt dict has '{key}': .+(give|leave)") as caught:
        llm.generate({"prompt": "a", key: {"image": 1}}, GREEDY)
    assert caught.value.field == key


@pytest.mark.parametrize("prompt", [{"text": "a"}, {}, {"prompt": 3}, 3.5, {"prompt_token_ids": ["a"]}, {"prompt": "a", "cache_salt": 3}])
def test_what_is_no_prompt_is_refused(prompt: Any, llm: LLM) -> None:
    with pytest.raises(RequestError, match="prompt|cache_salt"):
        llm.generate([prompt], GREEDY)


def test_a_salt_keeps_prompts_apart(llm: LLM) -> None:
    ids = [7] * 40
    for salt in ("a", "b", ""):
        cold, warm = (llm.generate({"prompt_token_ids": ids, "cache_salt": salt}, GREEDY)[0] for _ in range(2))
        assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 32) and _tokens(cold) == _tokens(warm)


def test_special_tokens_of_the_tokenizer_can_be_left_out(llm: LLM) -> None:
    class Adding(Tokenizer):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [1] * add_special_tokens + super().encode(text, add_special_tokens=False)

    own, llm.llm_engine.tokenizer = llm.llm_engine.tokenizer, Adding(llm.tokenizer._vocabulary)
    try:
        plain, bare = (llm.generate("a", GREEDY, tokenization_kwargs={"add_special_tokens": add})[0].prompt_token_ids for add in (True, False))
    finally:
        llm.llm_engine.tokenizer = own
    assert plain == [1, *bare]
    with pytest.raises(RequestError, match="tokenization_kwargs has 'padding'"):
        llm.generate("a", GREEDY, tokenization_kwargs={"padding": True})


def test_a_prompt_that_is_cut_to_fit(llm: LLM) -> None:
    ids = [5 + index % 90 for index in range(3000)]
    output = llm.generate([ids], SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, truncate_prompt_tokens=-1))[0]
    assert output.prompt_token_ids == ids[-1000:] and len(_tokens(output)) == 24


# -- several calls -------------------------------------------------------------------------------------------------------


def test_one_bad_prompt_and_nothing_runs(llm: LLM) -> None:
    for bad in ([[5], [5] * 9000], [[5], [99_999_999]], [[5], {"text": "a"}]):
        with pytest.raises(RequestError):
            llm.generate(bad, GREEDY)
        assert not llm.llm_engine.has_unfinished_requests() and not llm._engine.has_work


def test_an_interrupted_call_leaves_nothing_behind(llm: LLM) -> None:
    def interrupt(**_: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], GREEDY, use_tqdm=interrupt)
    assert not llm.llm_engine.has_unfinished_requests() and not llm._engine.has_work


def test_other_calls_do_not_lose_what_is_enqueued(llm: LLM) -> None:
    ids = llm.enqueue(["one", "two"], GREEDY)
    wanted = [_tokens(output) for output in llm.generate(["one", "two"], GREEDY)]  # the enqueued ones are done now
    assert len(list(llm.stream("three", GREEDY))) > 1
    ids += llm.enqueue_chat([{"role": "user", "content": "four"}], GREEDY)
    outputs = llm.wait_for_completion()
    assert [output.request_id for output in outputs] == ids and [_tokens(output) for output in outputs[:2]] == wanted
    assert llm.wait_for_completion() == []


def test_an_engine_turned_by_hand_gives_outputs_by_kind() -> None:
    engine = LLMEngine.from_engine_args({"platform": "null", "num_blocks": 200, "max_model_len": 512})
    seen: dict[str, list[Any]] = {kind.name: [] for kind in RequestOutputKind}
    for kind in RequestOutputKind:
        params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=1, output_kind=kind)
        assert engine.add_request(kind.name, "hello", params) == kind.name
    assert engine.get_num_unfinished_requests() == 3
    while engine.has_unfinished_requests():
        for output in engine.step():
            answer = output.outputs[0]
            assert answer.logprobs is not None and len(answer.logprobs) == len(answer.token_ids)
            seen[output.request_id].append((answer.text, list(answer.token_ids), output.finished))
    (final,) = seen["FINAL_ONLY"]
    assert seen["CUMULATIVE"][-1] == final and [len(tokens) for _, tokens, _ in seen["CUMULATIVE"]] == [1, 2, 3, 4, 5, 6]
    assert "".join(text for text, _, _ in seen["DELTA"]) == final[0] and [token for _, tokens, _ in seen["DELTA"] for token in tokens] == final[1]
    engine.add_request("gone", "hello", GREEDY)
    engine.abort_request("gone")
    assert not engine.has_unfinished_requests() and engine.step() == []
    engine.close()


# -- outputs -------------------------------------------------------------------------------------------------------------


def test_logprobs_are_dicts_by_token_id(llm: LLM) -> None:
    params = SamplingParams(temperature=1.9, seed=2, max_tokens=6, ignore_eos=True, logprobs=2, logprob_token_ids=[11, 12], prompt_logprobs=1)
    output = llm.generate([7, 8, 9], params)[0]
    answer = output.outputs[0]
    for token, row in zip(answer.token_ids, answer.logprobs or [], strict=True):
        assert list(row)[0] == token and {11, 12} <= set(row) and isinstance(row, dict)
        assert row[token].rank and row[token].decoded_token == llm.tokenizer.token_text(token)
        assert row[token].rank == 1 + sum(one.logprob > row[token].logprob for one in row.values() if one.rank) or row[token].rank > 2
        assert copy.deepcopy(row) == row
    rows = output.prompt_logprobs or []
    assert rows[0] is None and [next(iter(row)) for row in rows[1:] if row] == [8, 9]
    assert answer.cumulative_logprob == pytest.approx(sum(row[token].logprob for token, row in zip(answer.token_ids, answer.logprobs or [], strict=True)))


def test_flat_logprobs_read_like_the_list(llm: LLM) -> None:
    given: dict[str, Any] = {"temperature": 0.0, "max_tokens": 5, "ignore_eos": True, "logprobs": 2, "prompt_logprobs": 1}
    plain, flat = (llm.generate([7, 8, 9], SamplingParams(**given, flat_logprobs=flat))[0] for flat in (False, True))
    for listed, one in ((plain.outputs[0].logprobs, flat.outputs[0].logprobs), (plain.prompt_logprobs, flat.prompt_logprobs)):
        assert isinstance(one, FlatLogprobs) and listed is not None
        assert list(one) == listed and len(one) == len(listed) and list(one[1:3]) == listed[1:3] and one[-1] == listed[-1]
        assert len(one.token_ids) == len(one.logprobs) == len(one.ranks) == len(one.decoded_tokens) == one.end_indices[-1]
    assert plain.outputs[0].cumulative_logprob == flat.outputs[0].cumulative_logprob
    rows = zip(flat.outputs[0].logprobs or [], plain.outputs[0].logprobs or [], strict=True)
    assert all(isinstance(row, TokenLogprobs) and row.top == want.top for row, want in rows)


def test_times_of_a_request(llm: LLM) -> None:
    metrics = llm.generate("hello", GREEDY)[0].metrics
    assert metrics is not None and metrics.num_generation_tokens == 6
    assert metrics.queued_ts < metrics.first_token_ts < metrics.last_token_ts and 0 < metrics.first_token_latency < 60


def test_metrics_count_what_ran(llm: LLM) -> None:
    def values() -> dict[str, float]:
        return {metric.name: metric.value for metric in llm.get_metrics()}

    before = values()
    llm.generate([[7] * 10, [8] * 10], GREEDY)
    after = values()
    assert after["llmx:generation_tokens"] - before["llmx:generation_tokens"] == 12
    assert after["llmx:prompt_tokens"] - before["llmx:prompt_tokens"] == 20
    assert all(isinstance(metric, Counter | Gauge) and metric.labels["model_name"] == llm.info.name for metric in llm.get_metrics())


def test_a_call_of_the_executor(llm: LLM) -> None:
    with pytest.raises(RequestError, match="the executor NullExecutor has no such method"):
        llm.collective_rpc("nosuch")


# -- the tokenizer -------------------------------------------------------------------------------------------------------


def test_the_tokenizer_has_the_names_that_scripts_use(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    chat = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
    assert text.endswith("<|im_start|>assistant\n") and tokenizer.decode(ids) == text and "<|im" not in tokenizer.decode(ids, skip_special_tokens=True)
    assert tokenizer.apply_chat_template([chat, chat], tokenize=False) == [text.removesuffix("<|im_start|>assistant\n")] * 2
    assert tokenizer("hi there")["input_ids"] == tokenizer.encode("hi there") == llm.tokenizer.encode("hi there")
    assert tokenizer(["a", "b c"])["attention_mask"] == [[1], [1, 1]]
    assert tokenizer.batch_decode([[5], [6]]) == [tokenizer.decode(5), tokenizer.decode([6])]
    assert tokenizer.eos_token_id in tokenizer.all_special_ids and tokenizer.convert_tokens_to_ids(tokenizer.eos_token) == tokenizer.eos_token_id
    assert len(tokenizer) == tokenizer.vocab_size and tokenizer.chat_template and tokenizer.is_special(tokenizer.bos_token_id)
    with pytest.raises(RequestError, match="chat_template is no variable"):
        tokenizer.apply_chat_template(chat, chat_template="{{ messages }}")
    assert copy.copy(tokenizer).encode("a") == tokenizer.encode("a")


def test_a_special_token_after_another_keeps_its_space_unless_asked(llm: LLM) -> None:
    from llmx.tokens.detokenizer import Detokenizer

    class Spaced(Tokenizer):
        def token_bytes(self, token: int) -> bytes:
            return b" <s>" if token == 0 else super().token_bytes(token)

    tokenizer = Spaced(llm.tokenizer._vocabulary)
    word = tokenizer.encode("x")[0]
    shown = [
        Detokenizer(tokenizer, skip_special_tokens=False, spaces_between_special_tokens=spaces).extend([0, 0, word, 0, 0]) for spaces in (True, False)
    ]
    assert shown == [" <s> <s>x <s> <s>", " <s><s>x <s><s>"]
