"""LLM and the output processor on the null platform: text, stop strings, logprobs, n, order; no model arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llmx import LLM, RequestError, SamplingParams
from llmx.errors import ConfigError, ModelError, PlatformError, PromptTooLong

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(platform="null", num_blocks=2000) as one:
        yield one


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["one", "two two two", "three", [5, 6, 7], {"prompt_token_ids": [5, 6, 7]}, {"prompt": "one"}]
    outputs = llm.generate(prompts, GREEDY)
    assert [output.prompt_token_ids for output in outputs[:3]] == [llm.tokenizer.encode(text) for text in prompts[:3]]
    assert outputs[3].outputs[0].token_ids == outputs[4].outputs[0].token_ids
    assert outputs[0].outputs[0].text == outputs[5].outputs[0].text
    assert all(output.finished and len(output.outputs[0].token_ids) == 12 for output in outputs)


def test_text_is_the_decoded_tokens(llm: LLM) -> None:
    answer = llm.generate("hello", SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))[0].outputs[0]
    assert answer.text == llm.tokenizer.decode(answer.token_ids, at_start=False)


def test_stream_adds_up_and_an_early_end_aborts(llm: LLM) -> None:
    whole = llm.generate("hello", GREEDY)[0].outputs[0]
    pieces = [output.outputs[0] for output in llm.stream("hello", GREEDY)]
    assert "".join(piece.text_delta for piece in pieces) == whole.text
    assert [token for piece in pieces for token in piece.new_token_ids] == whole.token_ids
    for _ in llm.stream("hello", GREEDY):
        break
    assert llm._engine.stats().requests_running == 0 and llm._engine.kv.blocks_held == 0


@pytest.mark.parametrize("include", [False, True])
def test_stop_string_across_tokens_cuts_text_tokens_and_logprobs(llm: LLM, include: bool) -> None:
    whole = llm.generate("hello", GREEDY)[0].outputs[0]
    texts = [llm.tokenizer.token_text(token) for token in whole.token_ids]
    stop = texts[3][-2:] + texts[4][:2]
    assert whole.text.count(stop) == 1
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, stop=(stop,), logprobs=1, include_stop_str_in_output=include)
    answer = llm.generate("hello", params)[0].outputs[0]
    assert answer.text == whole.text[: whole.text.index(stop)] + (stop if include else "")
    assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
    assert answer.token_ids == whole.token_ids[:5] and answer.logprobs is not None and len(answer.logprobs) == 5
    assert llm._engine.kv.blocks_held == 0


def test_held_back_text_is_given_at_the_end(llm: LLM) -> None:
    whole = llm.generate("hello", GREEDY)[0].outputs[0]
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, stop=(whole.text[-3:] + "never",))
    assert llm.generate("hello", params)[0].outputs[0].text == whole.text


def test_eos_is_in_the_tokens_not_in_the_text(llm: LLM) -> None:
    eos = llm.tokenizer.eos_ids[0]
    params = SamplingParams(temperature=0.0, max_tokens=9, logit_bias={eos: 100.0}, skip_special_tokens=False)
    answer = llm.generate("hello", params)[0].outputs[0]
    assert (answer.token_ids, answer.text, answer.finish_reason, answer.stop_reason) == ([eos], "", "stop", None)


def test_logprobs_hold_the_token_and_the_most_likely(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=4, prompt_logprobs=2)
    output = llm.generate([7, 8, 9], params)[0]
    answer = output.outputs[0]
    assert answer.logprobs is not None and [entry.token.token_id for entry in answer.logprobs] == answer.token_ids
    for entry in answer.logprobs:
        assert len(entry.top) == 4 and entry.top[0].token_id == entry.token.token_id and entry.token.rank == 1
        assert [top.logprob for top in entry.top] == sorted((top.logprob for top in entry.top), reverse=True)
    assert answer.cumulative_logprob == pytest.approx(sum(entry.token.logprob for entry in answer.logprobs))
    assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
    assert [entry.token.token_id for entry in output.prompt_logprobs[1:] if entry] == [8, 9]


def test_n_and_seeds(llm: LLM) -> None:
    params = SamplingParams(temperature=1.5, n=3, seed=4, max_tokens=8, ignore_eos=True)
    first, again = llm.generate(["hi", "hi"], params)
    assert [answer.token_ids for answer in first.outputs] == [answer.token_ids for answer in again.outputs]
    assert len({tuple(answer.token_ids) for answer in first.outputs}) > 1
    single = llm.generate("hi", SamplingParams(temperature=1.5, seed=5, max_tokens=8, ignore_eos=True))[0]
    assert single.outputs[0].token_ids == first.outputs[1].token_ids  # child i has seed + i


def test_params_per_prompt(llm: LLM) -> None:
    lengths = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 2, 3)]
    assert [len(output.outputs[0].token_ids) for output in llm.generate(["a", "b", "c"], lengths)] == [1, 2, 3]
    with pytest.raises(RequestError, match="3 prompts but 2"):
        llm.generate(["a", "b", "c"], lengths[:2])
    with pytest.raises(RequestError, match="is a dict: give a SamplingParams"):
        llm.generate(["a"], {"max_tokens": 3})  # type: ignore[arg-type]


def test_chat_renders_the_template(llm: LLM) -> None:
    output = llm.chat([{"role": "user", "content": "hello"}], GREEDY)[0]
    text = llm.tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)
    assert "<|im_start|>user\nhello<|im_end|>" in text and text.endswith("<|im_start|>assistant\n")


def test_more_prompts_than_slots_and_queue_places() -> None:
    with LLM(platform="null", num_blocks=2000, max_num_seqs=4) as llm:
        outputs = llm.generate([[5 + index % 40] for index in range(1200)], SamplingParams(temperature=0, max_tokens=1))
        assert len(outputs) == 1200 and all(output.finished for output in outputs)


def test_the_embedded_model_is_greedy_by_default(llm: LLM) -> None:
    assert llm.get_default_sampling_params().temperature == 0.0


def test_bad_input_is_refused_by_name(llm: LLM) -> None:
    with pytest.raises(PromptTooLong, match="shorten it by"):
        llm.generate([[5] * 9000], GREEDY)
    with pytest.raises(RequestError, match="no tokens"):
        llm.generate([[]], GREEDY)
    with pytest.raises(RequestError, match="49152"):
        llm.generate([[49152]], GREEDY)
    with pytest.raises(RequestError, match="prompt dict"):
        llm.generate({"text": "a"}, GREEDY)
    assert not llm._engine.has_work


def test_a_cache_larger_than_the_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="MiB of memory are free: lower --kv-cache-memory-bytes"):
        LLM(platform="cpu", kv_cache_memory_bytes="90T")
    with pytest.raises(ConfigError, match="--device is 'gpu0'"):
        LLM(platform="cpu", device="gpu0")
    with pytest.raises(PlatformError, match="--disable-kernel nosuch"):
        LLM(platform="cpu", disable_kernel=["nosuch"])
    with pytest.raises(PlatformError, match="no op kind 'foo'"):
        LLM(platform="cpu", kernel=["foo=bar"])


def test_bad_options_stop_the_start() -> None:
    with pytest.raises(ConfigError, match="did you mean 'max_model_len'"):
        LLM(max_model_length=5)
    with pytest.raises(ModelError, match="smollm2-135m-instruct"):
        LLM("smollm2-135m-instrukt", platform="null")
    with pytest.raises(PlatformError, match="not installed"):
        LLM(platform="zpu")
    with pytest.raises(ConfigError, match="--max-model-len to"):
        LLM(platform="null", num_blocks=20)
