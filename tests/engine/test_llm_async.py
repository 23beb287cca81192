"""AsyncLLMEngine, the asynchronous face, over a real engine process on the null platform."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from llmx import AsyncEngineArgs, AsyncLLMEngine, LoRARequest, RequestError, RequestOutput, RequestOutputKind, SamplingParams
from llmx.errors import ConfigError, EngineDead
from tests.lora.adapters import smollm2_adapter

OPTIONS: dict[str, Any] = {"platform": "null", "num_blocks": 700, "max_model_len": 2048}


def _with_engine(use: Callable[[AsyncLLMEngine], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        engine = AsyncLLMEngine.from_engine_args({**OPTIONS, **options})
        try:
            await asyncio.wait_for(use(engine), 60)
        finally:
            await engine.close()

    asyncio.run(run())


def _params(**given: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 6, "ignore_eos": True, **given})


async def _all(engine: AsyncLLMEngine, prompt: Any, params: SamplingParams, request_id: str | None = None, **given: Any) -> list[RequestOutput]:
    return [output async for output in engine.generate(prompt, params, request_id, **given)]


def test_outputs_by_kind_and_all_forms_of_a_prompt() -> None:
    async def use(engine: AsyncLLMEngine) -> None:
        got = {kind: await _all(engine, "hello", _params(output_kind=kind, logprobs=0), kind.name) for kind in RequestOutputKind}
        (final,) = got[RequestOutputKind.FINAL_ONLY]
        assert final.prompt == "hello" and final.request_id == "FINAL_ONLY" and final.finished
        parts, whole = got[RequestOutputKind.DELTA], got[RequestOutputKind.CUMULATIVE]
        assert [token for part in parts for token in part.outputs[0].token_ids] == final.outputs[0].token_ids
        assert "".join(part.outputs[0].text for part in parts) == final.outputs[0].text == whole[-1].outputs[0].text
        assert [len(output.outputs[0].token_ids) for output in whole] == sorted(len(output.outputs[0].token_ids) for output in whole)
        ids = engine.engine.tokenizer.encode("hello")
        for form in (ids, {"prompt_token_ids": ids}, {"prompt": "hello", "cache_salt": "s"}):
            assert (await _all(engine, form, _params()))[-1].outputs[0].token_ids == final.outputs[0].token_ids
        answer = (await _all(engine, "hello", _params(logprobs=-1, truncate_prompt_tokens=1)))[-1]
        assert len((answer.outputs[0].logprobs or [{}])[0]) == engine.engine.info.vocab_size and len(answer.prompt_token_ids) == 1

    _with_engine(use)


def test_abort_health_and_tokenizer() -> None:
    async def use(engine: AsyncLLMEngine) -> None:
        await engine.check_health()
        assert (await engine.get_tokenizer()).encode("a") and (await engine.get_default_sampling_params()).temperature == 0.0
        outputs = []
        async for output in engine.generate("hello", _params(max_tokens=1500), request_id="long"):
            outputs.append(output)
            if len(outputs) == 3:
                await engine.abort("long")
        assert outputs[-1].outputs[0].finish_reason == "abort" and len(outputs[-1].outputs[0].token_ids) < 1500
        engine.shutdown()
        with pytest.raises(EngineDead):
            await engine.check_health()
        with pytest.raises(EngineDead):
            await _all(engine, "hello", _params())

    _with_engine(use)


def test_what_is_wrong_is_named() -> None:
    async def use(engine: AsyncLLMEngine) -> None:
        for given, words in (
            ({"lora_request": "a"}, "lora_request is a str: give a LoRARequest"),
            ({"priority": 3}, "priority is 3, but requests run in the order of arrival"),
            ({"tokenization_kwargs": {"padding": 1}}, "tokenization_kwargs has 'padding'"),
        ):
            with pytest.raises(RequestError, match=words):
                await _all(engine, "a", _params(), **given)
        with pytest.raises(RequestError, match="logprobs is 3: at most 2"):
            await _all(engine, "a", _params(logprobs=3))
        with pytest.raises(RequestError, match="multi_modal_data"):
            await _all(engine, {"prompt": "a", "multi_modal_data": {"image": 1}}, _params())

    _with_engine(use, max_logprobs=2)
    with pytest.raises(ConfigError, match="--pipeline-parallel-size is 2: "):
        AsyncEngineArgs(pipeline_parallel_size=2)


def test_a_start_that_fails_raises_at_the_first_use() -> None:
    async def run() -> None:
        engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(platform="null", num_blocks=20))
        with pytest.raises(ConfigError, match="--max-model-len"):
            await _all(engine, "a", _params())
        await engine.close()

    asyncio.run(run())


def test_an_adapter_without_a_path_is_found_by_its_name(tmp_path: Path) -> None:
    smollm2_adapter(tmp_path / "x")

    async def use(engine: AsyncLLMEngine) -> None:
        (output,) = await _all(engine, "hello", _params(output_kind=RequestOutputKind.FINAL_ONLY), lora_request=LoRARequest("x"))
        assert output.finished and await engine.list_loras() == ["x"]
        with pytest.raises(RequestError, match="adapter 'y' is not loaded: loaded are x"):
            await _all(engine, "hello", _params(), lora_request=LoRARequest("y"))

    _with_engine(use, lora_dir=str(tmp_path))
