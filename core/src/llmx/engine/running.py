"""Running: a request in flight as the API process sees it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from llmx import errors
from llmx.engine.messages import Abort, Add, Rejected, SeqOutput
from llmx.engine.output_processor import OutputProcessor
from llmx.engine.pooling_outputs import PoolingProcessor
from llmx.errors import QueueFull, RequestError, RequestFailed, RequestTimeout

__all__ = ["Running", "request_error", "too_late"]

_log = logging.getLogger("llmx.engine")


class Running:
    """What was sent for a request, its outputs so far, and the flag that wakes its consumer.

    fresh: makes an empty OutputProcessor, or PoolingProcessor. replay: the consumer shows nothing before the end, so the request can be sent
    anew although tokens have come.
    """

    __slots__ = ("error", "fresh", "gone", "message", "processor", "replay", "retried", "started", "wake", "_timer")

    def __init__(self, message: Add, fresh: Callable[[], OutputProcessor | PoolingProcessor], *, replay: bool = False) -> None:
        self.message = message
        self.fresh = fresh
        self.processor = fresh()
        self.replay = replay
        self.wake = asyncio.Event()
        self.error: Exception | None = None
        self.started = False  # the consumer has news: what the client may have seen cannot be taken back
        self.retried = False
        self._timer: asyncio.TimerHandle | None = None
        self.gone = False  # the engine knows nothing of it, or no more

    def expire_after(self, seconds: float) -> None:
        """Fail it with RequestTimeout then, unless `close` comes before."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self.fail, too_late(seconds))

    def close(self) -> None:
        """Nobody waits for it any more."""
        if self._timer is not None:
            self._timer.cancel()

    def take(self, item: SeqOutput) -> Abort | None:
        """Take in news; returns the Abort to send when the request ended on this side. An error in here is this request's alone."""
        try:
            abort = self.processor.take(item)
        except Exception:  # noqa: BLE001 - the border of one request: what it raises must not end the others
            _log.exception("request %s failed", item.id)
            self.fail(RequestFailed("internal error at this request: see the server's log"))
            return Abort(item.id)
        self.wake.set()
        return abort

    def fail(self, error: Exception) -> None:
        """Wake the consumer with an error, unless it has one or all it waits for."""
        if self.error is None and not self.processor.finished:
            self.error = error
            self.wake.set()

    def send_again(self) -> bool:
        """The engine died: True when the request may be sent to the next one; at most once."""
        if self.processor.finished:
            return False
        if self.retried or (self.started and not self.replay):
            return False
        self.retried, self.started = True, False
        self.processor = self.fresh()
        self.wake.clear()
        return True


def request_error(message: Rejected) -> RequestError:
    """The error that the engine refused a request with, of the same class."""
    kind: type[Any] = getattr(errors, message.kind)
    error: RequestError = kind(message.message, **({"retry_after_s": message.retry_after_s} if issubclass(kind, QueueFull) else {"field": message.field}))
    return error


def too_late(seconds: float) -> RequestTimeout:
    """The error of a request that took longer than that."""
    return RequestTimeout(f"the request was not answered within {seconds:g} s, the limit of this server (--request-timeout): ask for fewer tokens")
