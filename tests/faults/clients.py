"""Clients of the live fault tests: they say what became of their request."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import httpx

__all__ = ["Ending", "body_of", "read_stream"]


@dataclass
class Ending:
    """How a stream ended: chunks with text, the finish reason or the error event, and when, by the monotonic clock."""

    chunks: int = 0
    finish: str | None = None
    error: dict[str, Any] | None = None
    done: bool = False
    at: float = 0.0

    def take(self, line: str) -> None:
        """Take in one line of the stream."""
        if line == "data: [DONE]":
            self.done = True
        elif line:
            data = json.loads(line.removeprefix("data: "))
            self.error = data.get("error", self.error)
            for choice in data.get("choices", ()):
                self.chunks += 1
                self.finish = choice["finish_reason"] or self.finish


def body_of(prompt: list[int], max_tokens: int, **fields: Any) -> dict[str, Any]:
    """A completion request."""
    return {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **fields}


async def read_stream(client: httpx.AsyncClient, prompt: list[int], max_tokens: int, ending: Ending | None = None, **fields: Any) -> Ending:
    """Reads a stream of completions to its end; `ending` is filled as it comes."""
    ending = ending if ending is not None else Ending()
    async with client.stream("POST", "/v1/completions", json=body_of(prompt, max_tokens, stream=True, **fields)) as response:
        if response.status_code != 200:
            ending.error = json.loads(await response.aread())["error"]
        else:
            async for line in response.aiter_lines():
                ending.take(line)
    ending.at = time.monotonic()
    return ending
