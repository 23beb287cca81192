"""Pacing: fewer, larger outputs of one request."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from llmx.engine.outputs import RequestOutput

__all__ = ["paced"]


async def paced(outputs: AsyncGenerator[RequestOutput, None], interval: int | None) -> AsyncGenerator[RequestOutput, None]:
    """Leaves out an output that brings fewer than `interval` new tokens, but never the first and the last: the next one has them too."""
    passed: int | None = None  # tokens of the last output that was let through
    async with aclosing(outputs):
        async for output in outputs:
            tokens = sum(len(answer.token_ids) for answer in output.outputs)
            if not interval or passed is None or output.finished or tokens - passed >= interval:
                yield output
                passed = tokens
