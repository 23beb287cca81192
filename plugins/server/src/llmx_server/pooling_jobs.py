"""Texts of a request for vectors or scores: checked, sent to the engine all at once, answered in order."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import Request

from llmx.engine.async_pooling import pool
from llmx.engine.outputs import CompletionOutput, RequestOutput
from llmx.engine.pooling_outputs import PoolingRequestOutput
from llmx.errors import EngineDead, PromptTooLong, RequestError
from llmx.pooling_params import PoolingConfig, PoolingParams, check_pooling
from llmx.record import record
from llmx.sampling_params import SamplingParams
from llmx_server.caller import caller
from llmx_server.disconnect import until_disconnect
from llmx_server.protocol.pooling import PoolingFields
from llmx_server.serving import Serving

__all__ = ["PoolingJob", "pair_job", "pooling_config", "run_jobs", "text_job", "token_usage"]

_NO_TOKENS = SamplingParams(max_tokens=0)
_THREAD_CHARS = 16_384  # longer texts are tokenized on a thread


@record
class PoolingJob:
    """One text or pair, ready for the engine. second_text: where the second of a pair begins."""

    token_ids: list[int]
    params: PoolingParams
    second_text: int = -1


def pooling_config(serving: Serving, params: PoolingParams) -> PoolingConfig:
    """The model's pooling. Raises RequestError when the model gives text, or not what params ask for."""
    config = serving.engine.info.pooling
    check_pooling(config, params)
    assert config is not None
    return config


async def text_job(serving: Serving, text: str | list[int], params: PoolingParams, place: str, *, special: bool = True, limit: int = 0) -> PoolingJob:
    """A job for one text or its token ids. place: what the text is called in errors. limit: tokens of the text, 0: none. Raises RequestError."""
    info, tokenizer, most = serving.engine.info, serving.engine.tokenizer, _most(serving, params)
    side: Any = params.truncation_side
    if isinstance(text, str) and special:
        ids, _ = await _encoded(text, lambda: tokenizer.encode_texts(text, most=most, side=side, each=(limit, 0)))
    else:
        ids = text if isinstance(text, list) else await serving.encode(text, add_special_tokens=False)
        bad = next((token for token in ids if not 0 <= token < info.vocab_size), None)
        if bad is not None:
            raise RequestError(f"{place} holds token id {str(bad)[:40]}: the vocabulary is 0..{info.vocab_size - 1}", field=place.partition("[")[0])
        if most is not None:
            ids = ids[:most] if side == "right" else ids[-most:]
    return _fitting(serving, PoolingJob(ids, params), place)


async def pair_job(serving: Serving, pair: tuple[str, str], params: PoolingParams, limits: tuple[int, int], place: str) -> PoolingJob:
    """A job for two texts that a model reads at once. limits: tokens of either, 0: no limit."""
    tokenizer, side = serving.engine.tokenizer, params.truncation_side
    most, (first, second) = _most(serving, params), pair
    found = await _encoded(first + second, lambda: tokenizer.encode_texts(first, second, most=most, side=side, each=limits))  # type: ignore[arg-type]
    return _fitting(serving, PoolingJob(found[0], params, found[1]), place)


def _most(serving: Serving, params: PoolingParams) -> int | None:
    most = params.truncate_prompt_tokens
    return serving.engine.info.max_model_len if most == -1 else most


async def _encoded(text: str, encode: Callable[[], tuple[list[int], int]]) -> tuple[list[int], int]:
    return encode() if len(text) < _THREAD_CHARS else await asyncio.to_thread(encode)


def _fitting(serving: Serving, job: PoolingJob, place: str) -> PoolingJob:
    limit, field = serving.engine.info.max_model_len, place.partition("[")[0]
    if not job.token_ids:
        raise RequestError(f"{place} has no tokens: it must have at least one", field=field)
    if len(job.token_ids) > limit:
        why = f"{place} has {len(job.token_ids)} tokens, but this model reads {limit}"
        raise PromptTooLong(f"{why}: shorten it, or send truncate_prompt_tokens: -1 to have it cut", field=field)
    return job


async def run_jobs(request: Request, serving: Serving, body: PoolingFields | None, jobs: Sequence[PoolingJob], priority: int = 0) -> list[PoolingRequestOutput]:
    """The answers in the order of the jobs; one that fails, or a client that goes away, ends the others."""
    salt = caller().salted("" if body is None else body.salt())
    priority = priority if body is None else body.priority
    serving.check_priority(priority)
    await caller().admit(sum(len(job.token_ids) for job in jobs))
    return await until_disconnect(request.receive, _gather([_run(serving, job, salt, priority) for job in jobs]))


async def _gather(runs: Sequence[Awaitable[PoolingRequestOutput]]) -> list[PoolingRequestOutput]:
    tasks = [asyncio.ensure_future(run) for run in runs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(serving: Serving, job: PoolingJob, salt: str, priority: int) -> PoolingRequestOutput:
    name = f"pool-{uuid.uuid4().hex}"
    watch = serving.metrics.stopwatch(_NO_TOKENS, name, len(job.token_ids), pools=True)
    limit = serving.config.server.request_timeout_s
    reason = "abort"
    try:
        output = await pool(
            serving.engine, job.token_ids, job.params, name, second_text=job.second_text, priority=priority, cache_salt=salt, timeout_s=limit, lora=serving.lora
        )
        reason = ""
        watch.step(RequestOutput(name, None, job.token_ids, [CompletionOutput(0, finish_reason="stop")], True, None, output.num_cached_tokens))
        return output
    except RequestError:
        reason = "refused"
        caller().used(-len(job.token_ids))
        raise
    except EngineDead:
        reason = "engine_dead"
        raise
    finally:
        if reason:
            watch.failed(reason)


def token_usage(outputs: Sequence[PoolingRequestOutput]) -> dict[str, Any]:
    """OpenAI's usage object of such routes; no token is generated."""
    tokens, cached = sum(len(one.prompt_token_ids) for one in outputs), sum(one.num_cached_tokens for one in outputs)
    return {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": cached}}
