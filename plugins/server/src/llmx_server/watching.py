"""Watchers: tells plugins of requests (the hook llmx_request_observers). A server without observers does nothing for it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from time import monotonic_ns, time_ns

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmx.engine.outputs import RequestOutput
from llmx.hooks import GenerationRecord, RequestObserver, RequestRecord
from llmx.sampling_params import SamplingParams

__all__ = ["Watched", "WatchedGeneration", "Watchers"]

_log = logging.getLogger("llmx.server")
_HEADERS = {b"traceparent", b"tracestate", b"user-agent"}  # what observers see: no key and no cookie

# A task copies the context of the one that starts it: what a request leaves running in the background is still its own.
_REQUEST: ContextVar[RequestRecord] = ContextVar("llmx_request")


class Watchers:
    """The observers of one server. One that raises is told of nothing more, with one line in the log."""

    def __init__(self, observers: Iterable[RequestObserver]) -> None:
        self._observers = list(observers)

    def tell(self, what: Callable[[RequestObserver], None]) -> None:
        """Call `what` with each observer."""
        for observer in tuple(self._observers):
            try:
                what(observer)
            except Exception as error:  # noqa: BLE001 - what a plugin raises must not touch a request
                if observer in self._observers:
                    self._observers.remove(observer)
                _log.warning("a request observer failed and is told of nothing more: %r: %s: %s", observer, type(error).__name__, error)

    def arrived(self, id: str, method: str = "", path: str = "", headers: Iterable[tuple[bytes, bytes]] = ()) -> RequestRecord:
        """A record of a request that comes now; the observers know."""
        shown = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name in _HEADERS}
        request = RequestRecord(id, method, path, shown, time_ns())
        self.tell(lambda one: one.arrived(request))
        return request

    def ended(self, request: RequestRecord) -> None:
        """It is answered."""
        request.ended_ns = time_ns()
        self.tell(lambda one: one.ended(request))

    def generation(self, name: str, model: str, params: SamplingParams, prompt_tokens: int, *, pools: bool) -> WatchedGeneration:
        """Watch a prompt that goes to the engine now, as part of the request that is being answered; outside of any, as one of its own."""
        request = _REQUEST.get(None)
        alone = request is None
        request = request if request is not None else self.arrived(name)
        record = GenerationRecord(name, "pool" if pools else "generate", model, prompt_tokens, arrived_ns=time_ns())
        if not pools:
            record.n, record.max_tokens, record.temperature, record.top_p = params.n, params.max_tokens, params.temperature, params.top_p
        request.generations.append(record)
        return WatchedGeneration(self, request, record, alone)


class WatchedGeneration:
    """One prompt while it runs."""

    def __init__(self, watchers: Watchers, request: RequestRecord, record: GenerationRecord, alone: bool) -> None:
        self._watchers, self._request, self._record, self._alone = watchers, request, record, alone
        self._unix_ns = time_ns() - monotonic_ns()  # what a time of the monotonic clock lacks to be unix time

    def step(self, output: RequestOutput) -> None:
        """News of the engine."""
        record, times = self._record, output.metrics
        record.cached_tokens = output.num_cached_tokens
        record.generated_tokens = sum(len(answer.token_ids) for answer in output.outputs)
        if times is not None:
            record.scheduled_ns, record.last_token_ns = self._unix(times.scheduled_ts), self._unix(times.last_token_ts)
            record.preemptions = times.num_preemptions
        if record.generated_tokens and not record.first_token_ns:
            record.first_token_ns = self._unix(times.first_token_ts) if times is not None else time_ns()
            self._watchers.tell(lambda one: one.first_token(self._request, record))
        if output.finished:
            record.finish_reasons = tuple(answer.finish_reason or "" for answer in output.outputs)
            record.error = next((reason for reason in record.finish_reasons if reason in ("error", "abort")), "")
            self._end()

    def failed(self, reason: str) -> None:
        """It did not run to its end."""
        self._record.error = reason
        self._end()

    def _end(self) -> None:
        if not self._record.ended_ns:
            self._record.ended_ns = time_ns()
            self._watchers.tell(lambda one: one.generated(self._request, self._record))
            if self._alone:
                self._watchers.ended(self._request)

    def _unix(self, seconds: float) -> int:
        return int(seconds * 1e9) + self._unix_ns if seconds else 0


class Watched:
    """ASGI middleware that tells the watchers of each request and of how it was answered."""

    def __init__(self, app: ASGIApp, watchers: Watchers) -> None:
        self._app, self._watchers = app, watchers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        name = scope.get("llmx.request_id") or uuid.uuid4().hex
        request = self._watchers.arrived(name, scope.get("method", "WEBSOCKET"), scope["path"], scope["headers"])

        async def send_seen(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                request.status = message["status"]
            elif message["type"] == "websocket.accept":
                request.status = 101
            await send(message)

        token = _REQUEST.set(request)
        try:
            await self._app(scope, receive, send_seen)
        except BaseException as error:
            request.error = type(error).__name__
            raise
        finally:
            _REQUEST.reset(token)
            request.route = getattr(scope.get("route"), "path", "")
            self._watchers.ended(request)
