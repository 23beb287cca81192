"""One request for vectors or scores, sent to an AsyncEngine."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from llmx.engine.messages import Add
from llmx.engine.pooling_outputs import PoolingProcessor, PoolingRequestOutput
from llmx.errors import EngineDead
from llmx.pooling_params import PoolingParams, check_pooling, gives_rows
from llmx.sampling_params import SamplingParams

if TYPE_CHECKING:
    from llmx.engine.async_engine import AsyncEngine

__all__ = ["pool"]


async def pool(
    engine: AsyncEngine,
    token_ids: list[int],
    params: PoolingParams,
    request_id: str,
    *,
    second_text: int = -1,
    priority: int = 0,
    cache_salt: str = "",
    timeout_s: float | None = None,
    lora: str = "",
) -> PoolingRequestOutput:
    """The answer. second_text: where the second text of a pair begins. lora: an adapter's name. Cancelling it aborts the request.

    Raises RequestError for what the model cannot do, EngineDead when the engine ends first and cannot be asked again.
    """
    config = engine.info.pooling
    check_pooling(config, params)
    message = Add(request_id, token_ids, SamplingParams(max_tokens=0), priority, cache_salt, params, second_text, lora)
    fresh = partial(PoolingProcessor, request_id, token_ids, whole=gives_rows(config, params))
    async with aclosing(engine.follow(message, fresh, timeout_s=timeout_s, replay=True)) as outputs:
        async for output in outputs:
            answer: PoolingRequestOutput = output
            return answer
    raise EngineDead("the engine ended the request without an answer")
