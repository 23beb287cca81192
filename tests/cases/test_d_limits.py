"""Public bugs of other engines, part D and what part A leaves: limits, stop strings in odd forms, errors inside streams, large bodies."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
import transformers

from llmx import LLM, SamplingParams
from llmx.config import ModelConfig
from llmx.models.load import read_model_info
from llmx_server.body import MAX_BODY_BYTES
from tests.cases.conftest import CONTEXT, Api, texts
from tests.cases.test_a_first import CHAT, COMPLETIONS, both

NAN = 13  # after this token the echo model's logits are NaN
LATER = {"logit_bias": {str(NAN): 100}, "skip_special_tokens": False}  # the token is generated first, and the step after it fails
RED = 455


def test_b013_the_score_of_a_prompt_is_that_of_a_forward_pass(tmp_path: Path) -> None:
    """Prompt logprobs, chunked and whole, against transformers on a tiny random model."""
    torch.manual_seed(5)
    torch.set_num_threads(1)
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, initializer_range=0.2, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval().float()
    model.save_pretrained(tmp_path)
    prompt = [3 + (11 * index) % 500 for index in range(90)]
    with torch.inference_mode():
        table = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    wanted = [float(table[at, token]) for at, token in enumerate(prompt[1:])]
    options: dict[str, Any] = {"tokenizer": read_model_info(ModelConfig()).path, "dtype": "float32", "num_blocks": 30, "threads": 1, "platform": "cpu"}
    for budget in (17, 128):
        with LLM(str(tmp_path), max_num_batched_tokens=budget, **options) as llm:
            (output,) = llm.generate([prompt], SamplingParams(max_tokens=1, prompt_logprobs=0))
        assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
        found = [entry.token.logprob for entry in output.prompt_logprobs[1:] if entry is not None]
        assert found == pytest.approx(wanted, abs=1e-3)


def test_b073_the_context_to_the_token(echo: Api) -> None:
    for extra, status in ((1, 400), (0, 400), (-1, 200)):
        answer = echo.post(COMPLETIONS, {"prompt": [RED] * (CONTEXT + extra), "max_tokens": 1})
        assert answer.status_code == status
        if status == 200:
            assert answer.json()["usage"]["prompt_tokens"] == CONTEXT - 1
        else:
            assert str(CONTEXT + extra) in answer.json()["error"]["message"] and str(CONTEXT) in answer.json()["error"]["message"]


def test_b074_messages_about_lengths_name_what_was_sent(echo: Api) -> None:
    long = [{"role": "user", "content": "red " * 400}]
    refused = echo.post(CHAT, {"messages": long}).json()["error"]
    assert refused["code"] == "context_length_exceeded" and "prompt" in refused["message"] and "max_tokens" not in refused["message"]
    both_given = echo.post(COMPLETIONS, {"prompt": [RED] * 200, "max_tokens": 200}).json()["error"]
    assert both_given["param"] == "max_tokens" and "400" in both_given["message"] and str(CONTEXT) in both_given["message"]
    filled = echo.post(CHAT, {"messages": [{"role": "user", "content": "red"}], "max_tokens": None, "ignore_eos": True, "temperature": 0}).json()
    assert filled["usage"]["total_tokens"] == CONTEXT and filled["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("n", [0, -1, 10**6, 129])
def test_b076_n_that_cannot_be(echo: Api, n: int) -> None:
    for stream in (False, True):
        answer = echo.post(COMPLETIONS, {"prompt": "a", "n": n, "stream": stream})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "n"
    assert echo.post(COMPLETIONS, {"prompt": "a", "n": 3, "best_of": 2}).status_code == 400


def test_b076_every_choice_comes_once(echo: Api) -> None:
    whole = echo.complete("red lemon", n=64, temperature=1.0, seed=1)
    assert [choice["index"] for choice in whole["choices"]] == list(range(64)) and {choice["text"] for choice in whole["choices"]} == {"red lemon"}
    chunks = echo.stream(COMPLETIONS, {"prompt": "red lemon", "n": 64, "seed": 1})
    ends = [choice["index"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(ends) == list(range(64)) and {texts(chunks, index) for index in range(64)} == {"red lemon"}


def test_b077_an_error_before_and_after_the_first_token(echo: Api) -> None:
    with openai.OpenAI(base_url=f"{echo.http.base_url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.InternalServerError, match="NaN"):
            client.completions.create(model="smollm2-135m-instruct", prompt=[RED, NAN], stream=True)
        seen = []
        with pytest.raises(openai.APIError, match="NaN") as caught:  # noqa: PT012 - the error comes out of the loop
            for chunk in client.completions.create(model="smollm2-135m-instruct", prompt=[RED], stream=True, temperature=0, extra_body=LATER):
                seen.append(chunk.choices[0].text)
        assert "".join(seen) == "<jupyter_code>" and caught.value.code == "generation_failed"
    lines = echo.post(COMPLETIONS, {"prompt": [RED], "stream": True, "temperature": 0, **LATER}).text.split("\n\n")
    assert '"error":{"message"' in lines[-3] and lines[-2] == "data: [DONE]"
    echo.alive()


def test_a_request_that_leaves_itself_no_token_is_its_own_fault(echo: Api) -> None:
    """Nobody can know it before the mask meets the form."""
    body = {"prompt": [RED], "allowed_token_ids": [RED], "structured_outputs": {"choice": ["12345"]}}
    for stream in (False, True):
        answer = echo.post(COMPLETIONS, {**body, "stream": stream})
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "nothing_allowed", answer.text
        assert "allowed_token_ids" in answer.json()["error"]["message"]
    echo.alive()


@pytest.mark.parametrize("depth", [4000, 100_000])
def test_b079_deep_bodies(echo: Api, depth: int) -> None:
    for field in (b"tools", b"foo"):
        answer = echo.post(COMPLETIONS, b'{"prompt":"a","' + field + b'":' + b"[" * depth + b"]" * depth + b"}")
        assert answer.status_code == 400 and answer.json()["error"]["message"]
    echo.alive()


def test_b080_ten_thousand_faults_give_a_small_answer(echo: Api) -> None:
    parts = [{"type": "text", "text": {"x": "y" * 1000}}] * 10_000
    answer = echo.post(CHAT, {"messages": [{"role": "user", "content": parts}]})
    assert answer.status_code == 400 and len(answer.content) < 16_384 and b"yyyy" * 100 not in answer.content


def test_b081_large_bodies_do_not_hold_up_streams(echo: Api) -> None:
    assert echo.post(COMPLETIONS, {"prompt": "lorem " * 9000}).json()["error"]["code"] == "context_length_exceeded"
    with pytest.raises(Exception, match="."):  # noqa: PT011,B017 - the server may close before all is sent
        answer = echo.post(COMPLETIONS, b" " * (MAX_BODY_BYTES + 1))
        assert answer.status_code == 413
        raise RuntimeError("answered")
    large = "lorem ipsum " * 300_000  # 3.6 MB, a second or more of tokenizing: many short streams fit beside it, unless it holds them up
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(echo.post(COMPLETIONS, {"prompt": large})))
    thread.start()
    streams = 0
    while thread.is_alive():
        assert texts(echo.stream(COMPLETIONS, {"prompt": "red lemon", "temperature": 0})) == "red lemon"
        streams += 1
    thread.join()
    assert answers[0].status_code == 400 and streams > 5, streams
    echo.alive()


def test_b083_names_of_models(echo: Api) -> None:
    for path, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": [{"role": "user", "content": "a"}]}), ("/tokenize", {"prompt": "a"})):
        answer = echo.post(path, {**body, "model": "nope"})
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found" and "smollm2-135m-instruct" in answer.text
    assert echo.complete("a")["model"] == "smollm2-135m-instruct"


def test_b084_null_is_nothing(echo: Api) -> None:
    nothing: dict[str, Any] = dict.fromkeys(("stop", "logit_bias", "tools", "tool_choice", "n", "seed", "user", "stream_options", "max_tokens"))
    assert both(echo, "red lemon", **{**nothing, "response_format": {"type": "text"}, "tools": []}) == [("red lemon", "stop")] * 2
    answer = echo.post(COMPLETIONS, {"prompt": "a", "foo": 1})
    assert answer.status_code == 200 and "foo" in answer.headers["warning"]


@pytest.mark.parametrize("stop", ["", [""], ["a"] * 5, [None], {"a": 1}])
def test_b085_stops_that_cannot_be(echo: Api, stop: Any) -> None:
    answer = echo.post(COMPLETIONS, {"prompt": "a", "stop": stop})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "stop"


@pytest.mark.parametrize(
    ("text", "stop", "shown"),
    [
        ("red lemon sky", [], ("red lemon sky", "stop")),
        ("one ab abc two", ["abc", "ab"], ("one ", "stop")),  # the one that is complete first
        ("one abc two", ["bc", "abc"], ("one ", "stop")),  # both end here: the longest
        ("red<file_sep>sky", ["<file_sep>"], ("red", "stop")),  # a special token by its name, though it is not shown
        ("red<file_sep>sky", ["never"], ("redsky", "stop")),
        ("le<file_sep>sky", ["lemon", "<file_sep>"], ("le", "stop")),  # what was held back is shown
    ],
)
def test_b085_forms_of_stop(echo: Api, text: str, stop: list[str], shown: tuple[str, str]) -> None:
    assert both(echo, text, stop=stop) == [shown] * 2
    if shown[0] != "redsky" and stop:
        answer = echo.complete(text, stop=stop, max_tokens=50)
        assert answer["choices"][0]["stop_reason"] in stop
        included = echo.complete(text, stop=stop, include_stop_str_in_output=True, max_tokens=50)["choices"][0]["text"]
        assert included == shown[0] + answer["choices"][0]["stop_reason"]
        assert echo.complete(text, stop=stop, max_tokens=50, min_tokens=20)["usage"]["completion_tokens"] >= 20


def test_b087_spaces_come_back(echo: Api) -> None:
    text = "  a    b .\n\n  c"
    assert echo.complete(text, max_tokens=60)["choices"][0]["text"] == text
    assert texts(echo.stream(COMPLETIONS, {"prompt": text, "temperature": 0, "max_tokens": 60})) == text
