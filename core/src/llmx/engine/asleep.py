"""Sleep of an engine that runs in this process: the executor gives its memory back; nothing is known of earlier prompts afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmx.engine.prefix_reset import forget_prefixes
from llmx.errors import RequestError
from llmx.executor.base import Control

if TYPE_CHECKING:
    from llmx.engine.engine import Engine

__all__ = ["sleep", "wake"]


def sleep(engine: Engine, level: int = 1) -> dict[str, Any]:
    """{"released_bytes": ...}. Raises RequestError while requests run or wait, and with the executor's reason when it cannot."""
    if engine.has_work:
        raise RequestError("sleep: requests run or wait: let them end, or abort them", field="level")
    found = _ask(engine, Control("sleep", {"level": level}))
    engine.queue.closed = "the engine sleeps: wake_up() comes first"
    return found


def wake(engine: Engine) -> dict[str, Any]:
    """{"restored_bytes": ...}. Raises RequestError with the executor's reason when it cannot."""
    found = _ask(engine, Control("wake"))
    engine.queue.closed = ""
    return found


def _ask(engine: Engine, command: Control) -> dict[str, Any]:
    reply = engine.executor.control(command)
    if not reply.ok:
        raise RequestError(reply.error, field="level")
    forget_prefixes(engine)
    return dict(reply.value)
