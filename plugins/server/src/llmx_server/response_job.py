"""From a request to /v1/responses to the Job that the engine runs: through the chat request that says the same."""

from __future__ import annotations

from typing import Any

from llmx.errors import PromptTooLong, RequestError
from llmx_server.answer_form import AnswerForm
from llmx_server.chat_job import chat_job
from llmx_server.jobs import Job
from llmx_server.protocol.responses import ResponsesRequest, renamed
from llmx_server.serving import Serving

__all__ = ["response_job"]


async def response_job(serving: Serving, body: ResponsesRequest, messages: list[dict[str, Any]]) -> tuple[Job, AnswerForm, list[str]]:
    """As chat_job. With truncation auto, the oldest turns of a conversation that is too long are left out. Raises RequestError."""
    try:
        return await chat_job(serving, body.chat(messages))
    except PromptTooLong as error:
        if body.truncation != "auto":
            raise renamed(error) from error
        return await _shortened(serving, body, messages, error)
    except RequestError as error:
        raise renamed(error) from error


async def _shortened(serving: Serving, body: ResponsesRequest, messages: list[dict[str, Any]], error: PromptTooLong) -> tuple[Job, AnswerForm, list[str]]:
    """With as few turns left out as makes it fit; a turn begins with a message of the user, and system messages at the start stay."""
    head = next((index for index, message in enumerate(messages) if message["role"] not in ("system", "developer")), len(messages))
    starts = [index for index, message in enumerate(messages) if message["role"] == "user" and index > head]
    best = None
    low, high = 0, len(starts)  # the first of starts[low:high] at which it fits
    while low < high:
        middle = (low + high) // 2
        try:
            best = await chat_job(serving, body.chat([*messages[:head], *messages[starts[middle] :]]))
            high = middle
        except PromptTooLong as still:
            error = still
            low = middle + 1
    if best is None:
        raise renamed(error)
    return best
