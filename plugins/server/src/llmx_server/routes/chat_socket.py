"""WS /v1/chat/ws: chat over a WebSocket. docs/websocket.md has the messages."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import Any

from pydantic_core import from_json
from starlette.types import Message
from starlette.websockets import WebSocket

from llmx.errors import LlmxError, RequestError
from llmx_server.body import as_model, shorten
from llmx_server.chat_chunks import chat_events
from llmx_server.chat_job import open_chat
from llmx_server.errors import failure_body, failure_status
from llmx_server.frames import Frames, encode
from llmx_server.protocol.chat import ChatRequest
from llmx_server.routing import Router
from llmx_server.served_models import ServedModels, models_of

__all__ = ["router"]

router = Router()

_GOING_AWAY = 1001
_log = logging.getLogger("llmx.server")


@router.websocket("/v1/chat/ws")
async def chat_socket(socket: WebSocket) -> None:
    """Answer conversations, one at a time, until the client leaves or the server shuts down."""
    await socket.accept()
    await _Talk(socket, models_of(socket)).run()


class _SlowReader(Exception):
    """The client has taken nothing for too long."""


class _Talk:
    """One connection: what comes is read while an answer is written, so that `stop` and a client that leaves end it at once."""

    def __init__(self, socket: WebSocket, models: ServedModels) -> None:
        self._socket, self._models = socket, models
        self._answer: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serves the connection."""
        receiving = asyncio.ensure_future(self._socket.receive())
        leaving = asyncio.ensure_future(self._models.host.leaving.wait())
        try:
            await self._send({"type": "ready"})
            while True:
                await asyncio.wait({receiving, self._answer or leaving}, return_when=asyncio.FIRST_COMPLETED)
                if self._answer is not None and self._answer.done():
                    self._answer.result()
                    self._answer = None
                elif self._answer is None and leaving.done():
                    await self._socket.close(_GOING_AWAY, "the server is shutting down")
                    return
                if receiving.done():
                    message = receiving.result()
                    if message["type"] == "websocket.disconnect":
                        return
                    receiving = asyncio.ensure_future(self._socket.receive())
                    await self._take(message)
        except _SlowReader:
            _log.warning("client %s has not read its answer for %g s (--reader-timeout): cut off", self._socket.client, self._timeout_s)
        finally:
            tasks = [task for task in (receiving, leaving, self._answer) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, message: Message) -> None:
        """One message of the client."""
        try:
            value = _parsed(message)
            kind = value.get("type")
            if kind == "auth":  # no key is asked for, or one was shown
                await self._send({"type": "ready"})
            elif kind == "stop":
                await self._stop()
            elif kind is not None:
                raise RequestError(f"type is {shorten(kind)}: it must be 'stop' or 'auth'; a chat completion body has none", field="type")
            elif self._answer is not None:
                raise RequestError("an answer is being written on this connection: wait for its end, stop it, or open another", field="messages")
            else:
                self._answer = asyncio.create_task(self._write(value))
        except RequestError as error:
            await self._send({**failure_body(error), "status": error.status})

    async def _stop(self) -> None:
        """End the answer in the engine too. One that has just ended is left as it is: its `done` is on the way."""
        if self._answer is None or self._answer.done():
            return
        self._answer.cancel()
        await asyncio.gather(self._answer, return_exceptions=True)
        if self._answer.cancelled():
            await self._send({"type": "done", "reason": "stopped"})
        self._answer = None

    async def _write(self, value: dict[str, Any]) -> None:
        """The answer to a chat completion body, then its `done`."""
        begun, reason, serving = False, "complete", self._models.default
        try:
            self._models.host.check_ready()
            if value.get("stream") is False:
                raise RequestError("stream is false: answers on a WebSocket are always streamed, leave it out", field="stream")
            body = as_model({**value, "stream": True}, ChatRequest)
            serving = await self._models.pick(body.model)
            serving.check_generates()
            chat = await open_chat(serving, body, "chat.completion.chunk")
            if chat.phrases:
                await self._send({"type": "warning", "ignored": chat.phrases})
            frames = Frames(chat.head, with_usage=body.usage_in_stream()[0])
            async with aclosing(chat_events(serving, body, chat.job, chat.form, frames, chat.beside)) as events:
                async for data in events:
                    begun = True
                    for event in data.split(b"\n\n"):  # JSON has no line breaks of its own
                        if event:
                            await self._send(event.removeprefix(b"data: "))
        except LlmxError as error:
            reason = "error"
            if not begun:
                serving.metrics.refused(error, failure_body(error)["error"]["code"])
            await self._fail(error)
        except _SlowReader:
            raise
        except Exception as error:  # noqa: BLE001  the border to the client, which must learn that its answer ended
            reason = "error"
            _log.exception("an answer on a WebSocket failed")
            await self._fail(error)
        await self._send({"type": "done", "reason": reason})

    async def _fail(self, error: Exception) -> None:
        status, headers = failure_status(error)
        again = {"retry_after": int(headers["Retry-After"])} if "Retry-After" in headers else {}
        await self._send({**failure_body(error), "status": status, **again})

    @property
    def _timeout_s(self) -> float:
        return self._models.config.server.reader_timeout_s

    async def _send(self, data: dict[str, Any] | bytes) -> None:
        """One message; waits while the client does not keep up. Raises _SlowReader."""
        text = (data if isinstance(data, bytes) else encode(data)).decode()
        try:
            async with asyncio.timeout(self._timeout_s or None):
                await self._socket.send_text(text)
        except TimeoutError:
            raise _SlowReader from None


def _parsed(message: Message) -> dict[str, Any]:
    """A message as a JSON object. Raises RequestError."""
    text = message.get("text")
    if text is None:
        raise RequestError("the message is binary: send JSON as text")
    try:
        value = from_json(text)
    except ValueError as error:
        raise RequestError(f"the message is not valid JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise RequestError(f"the message is {shorten(value)}: it must be a JSON object")
    return value

