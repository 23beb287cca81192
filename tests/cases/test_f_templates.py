"""Public bugs of other engines, part F: BOS, chat templates, sets of end tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from llmx import LLM, SamplingParams
from llmx.config import ModelConfig
from llmx.models.load import read_model_info
from llmx.tokens.chat_template import ChatTemplate
from llmx.tokens.source import TokenizerSource
from llmx.tokens.tokenizer import Tokenizer
from tests.cases.conftest import Api
from tests.cases.test_a_first import CHAT

ENDS = (5, 9)  # of the tiny model
ASK = [{"role": "user", "content": "hi"}]
PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}\n{% endfor %}"
WITH_BOS = "{{ bos_token }}" + PLAIN.replace("<|im_start|>", "")


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize(("template", "begins"), [(WITH_BOS, 1), (PLAIN.replace("<|im_start|>", ""), 0)])
def test_b109_chat_follows_the_template_and_completions_the_tokenizer(adds: bool, template: str, begins: int) -> None:
    source = read_model_info(ModelConfig()).tokenizer
    assert source.gguf is not None
    tokenizer = Tokenizer.load(TokenizerSource("x.gguf", {**source.gguf, "tokenizer.ggml.add_bos_token": adds}))
    chat = ChatTemplate({"default": template}, tokenizer.names)
    ids = tokenizer.encode(chat.render(ASK), add_special_tokens=False)  # as the server does
    assert ids.count(tokenizer.bos_id or -1) == begins
    library = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer._backend, bos_token=tokenizer.names["bos_token"], chat_template=template)
    assert ids == library.apply_chat_template(ASK, tokenize=True, return_dict=False)
    assert tokenizer.encode("hi").count(tokenizer.bos_id or -1) == adds
    assert tokenizer.encode(f"{tokenizer.names['bos_token']}hi").count(tokenizer.bos_id or -1) == adds + 1  # typed by the user: kept


def test_b111_messages_that_a_template_may_not_like(echo: Api) -> None:
    for role in ("foo", "", None, 7):
        answer = echo.post(CHAT, {"messages": [{"role": role, "content": "a"}]})
        assert answer.status_code == 400 and "role" in answer.json()["error"]["message"]
    last = [*ASK, {"role": "assistant", "content": "red lemon"}]
    for more in ({}, {"continue_final_message": True}, {"add_generation_prompt": False}):
        assert echo.post(CHAT, {"messages": last, "temperature": 0, **more}).status_code == 200
    clash = echo.post(CHAT, {"messages": last, "continue_final_message": True, "add_generation_prompt": True})
    assert clash.status_code == 400 and clash.json()["error"]["param"] == "continue_final_message"
    assert echo.post(CHAT, {"messages": [{"role": "developer", "content": "be brief"}, *ASK], "temperature": 0}).status_code == 200
    echo.alive()


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_b112_no_template_from_the_request(echo: Api, path: str) -> None:
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"
    reserved = ("chat_template", "tokenize", "add_generation_prompt", "tools")
    for more in ({"chat_template": loops}, *({"chat_template_kwargs": {name: loops}} for name in reserved)):
        answer = echo.post(path, {"messages": ASK, **more})
        assert answer.status_code == 400 and next(iter(more)) in answer.json()["error"]["param"]
    assert echo.post(path, {"messages": ASK, "chat_template_kwargs": {"enable_thinking": False}}).status_code == 200
    echo.alive()


def test_b113_nothing_leaves_the_sandbox_of_a_models_template() -> None:
    reaches = ("''.__class__.__mro__", "cycler.__init__.__globals__.os.popen('id').read()", "messages.__class__.__base__.__subclasses__()")
    for source in ("{{ " + reach + " }}" for reach in reaches):
        try:
            text = ChatTemplate({"default": source}, {}).render(ASK)
        except Exception as error:  # noqa: BLE001 - whichever error it is, it is an answer and not the object
            assert type(error).__name__ == "RequestError"
        else:
            assert text == ""


@pytest.fixture(scope="module")
def two_ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A tiny random model that ends with either of two tokens, as its generation_config.json says."""
    folder: Path = tmp_path_factory.mktemp("ends")
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(ENDS)}))
    with LLM(str(folder), tokenizer=read_model_info(ModelConfig()).path, dtype="float32", num_blocks=20, threads=1, platform="cpu") as llm:
        yield llm


@pytest.mark.parametrize("end", ENDS)
def test_b114_every_end_token_ends(two_ends: LLM, end: int) -> None:
    def run(token: int, **more: Any) -> Any:
        params = SamplingParams(temperature=0.0, max_tokens=4, logit_bias={token: 100.0}, skip_special_tokens=False, **more)
        return two_ends.generate([[3, 4, 11]], params)[0].outputs[0]

    ended = run(end)
    assert (ended.finish_reason, ended.stop_reason, ended.token_ids, ended.text) == ("stop", None, [end], "")
    assert (run(end, ignore_eos=True).finish_reason, run(end, ignore_eos=True).token_ids) == ("length", [end] * 4)
    assert run(11).finish_reason == "length"
    assert run(end, min_tokens=2).token_ids[0] not in ENDS  # none of them before
