"""Token counts and the head that every answer and chunk shares."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from llmx.engine.outputs import CompletionOutput
    from llmx_server.jobs import Job

__all__ = ["response_head", "usage", "usage_of"]


class Counted(Protocol):
    """What usage_of reads of one prompt's answers."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        ...

    @property
    def completion_tokens(self) -> int:
        """Tokens of all its answers."""
        ...

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache had."""
        ...

    @property
    def reasoning_tokens(self) -> int:
        """Of these, those that are reasoning."""
        ...

    @property
    def job(self) -> Job:
        """What was asked."""
        ...

    @property
    def in_order(self) -> list[CompletionOutput]:
        """The answers."""
        ...


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """OpenAI's usage object. A prompt counts once whatever n is; completion_tokens are summed over the choices."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def usage_of(answers: Sequence[Counted]) -> dict[str, Any]:
    """The usage object of all prompts of a request, as far as they have come."""
    counts = usage(sum(one.prompt_tokens for one in answers), sum(one.completion_tokens for one in answers), sum(one.cached_tokens for one in answers))
    details: dict[str, int] = {}
    if all(one.job.reasoning is not None for one in answers):
        details["reasoning_tokens"] = sum(one.reasoning_tokens for one in answers)
    if all(one.job.counts_drafts for one in answers):
        each = [answer for one in answers for answer in one.in_order]
        drafted, accepted = sum(answer.num_draft_tokens for answer in each), sum(answer.num_accepted_tokens for answer in each)
        details |= {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": drafted - accepted}
    return {**counts, "completion_tokens_details": details} if details else counts


def response_head(prefix: str, kind: str, model: str, fingerprint: str, *, request_id: str | None = None, **more: Any) -> dict[str, Any]:
    """id, object, created, model and system_fingerprint; the id is made of request_id, else new. more: further keys."""
    return {
        "id": f"{prefix}-{request_id or uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": fingerprint,
        **more,
    }
