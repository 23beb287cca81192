"""Frames: the chunks of one stream as bytes. What all chunks share is encoded once: a token costs one small encode and a join."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["Frames", "encode", "event", "named"]

encode = msgspec.json.encode


def event(data: Any) -> bytes:
    """One server-sent event with `data` as JSON."""
    return b"data: " + encode(data) + b"\n\n"


def named(data: Mapping[str, Any]) -> bytes:
    """One server-sent event, named as the type of its data."""
    return b"event: " + str(data["type"]).encode() + b"\ndata: " + encode(data) + b"\n\n"


class Frames:
    """with_usage: each chunk carries `"usage":null`, as OpenAI does when a usage chunk follows."""

    def __init__(self, head: Mapping[str, Any], *, with_usage: bool) -> None:
        self._head = dict(head)
        self._start = b"data: " + encode(self._head)[:-1] + b',"choices":[{"index":'
        self._with_usage = with_usage

    def choice(
        self,
        index: int,
        name: str,
        content: Any,
        logprobs: Any = None,
        finish_reason: str | None = None,
        stop_reason: str | int | None = None,
        *,
        more: Mapping[str, Any] | None = None,
        beside: Mapping[str, Any] | None = None,
        usage: Mapping[str, Any] | None = None,
    ) -> bytes:
        """A chunk with one choice; `name` is its payload's key, delta or text. finish_reason is always there, null until the end.

        more: further keys of the choice. beside: further keys of the chunk. usage: so far.
        """
        parts = [self._start, b'%d,"%b":' % (index, name.encode()), encode(content)]
        parts += [b',"logprobs":', encode(logprobs) if logprobs is not None else b"null"]
        parts += [b',"finish_reason":', encode(finish_reason)]
        if finish_reason is not None:
            parts += [b',"stop_reason":', encode(stop_reason)]
        if more:
            parts += [b",", encode(more)[1:-1]]
        parts.append(b"}]")
        if beside:
            parts += [b",", encode(beside)[1:-1]]
        if usage is not None or self._with_usage:
            parts += [b',"usage":', encode(usage)]
        parts.append(b"}\n\n")
        return b"".join(parts)

    def usage(self, counts: Mapping[str, Any]) -> bytes:
        """The usage chunk, which has no choices."""
        return event({**self._head, "choices": [], "usage": counts})
