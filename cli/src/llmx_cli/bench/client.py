"""A lean HTTP/1.1 client for load: raw asyncio protocols, connections kept open, events handed on as their bytes arrive.

A general client spends several times the processor time per event, and what the load generator takes the server does not have.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping
from time import perf_counter
from urllib.parse import urlsplit

from llmx.errors import ConfigError
from llmx_cli.error_body import error_message

__all__ = ["Client", "HttpFailure", "OnEvent"]

OnEvent = Callable[[bytes, float], None]  # the data of one server-sent event, and when it came

_MAX_BODY = 1 << 20  # bytes kept of an answer that is no stream


class HttpFailure(Exception):
    """A request that was not answered 200, or not to its end; the message says why."""


class Client:
    """Requests to one server. base_url: with or without /v1."""

    def __init__(self, base_url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(base_url.rstrip("/").removesuffix("/v1"))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--base-url is {base_url!r}: it must be like http://127.0.0.1:8000", field="base_url")
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname, parts.port or (443 if self._ssl else 80)
        self._prefix = parts.path
        host = f"[{self._host}]" if ":" in self._host else self._host
        self._head = "".join(f"{name}: {value}\r\n" for name, value in {"Host": f"{host}:{self._port}", "Accept": "*/*", **headers}.items())
        self._idle: list[_Connection] = []
        self.connections = 0  # opened so far

    async def request(self, path: str, body: bytes | None = None, on_event: OnEvent | None = None) -> bytes:
        """The answer's body; a stream's events go to on_event instead. Raises HttpFailure."""
        connection = self._reuse() or await self._connect()
        method = "GET" if body is None else "POST"
        size = "" if body is None else f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        try:
            answer = await connection.exchange(f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._head}{size}\r\n".encode() + (body or b""), on_event)
        except BaseException:
            connection.close()
            raise
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """Closes what is idle."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _reuse(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(_Connection, self._host, self._port, ssl=self._ssl)
        except OSError as error:
            raise HttpFailure(f"{self._host}:{self._port} cannot be reached: {os.strerror(error.errno) if error.errno else error}") from error
        self.connections += 1
        return connection


class _Connection(asyncio.Protocol):
    """One connection: one exchange at a time."""

    def __init__(self) -> None:
        self.reusable = False
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[bytes] | None = None
        self._on_event: OnEvent | None = None
        self._reset()

    def _reset(self) -> None:
        self._buffer = b""
        self._text = b""  # of the body: an event that is not whole yet, or all of it
        self._status = 0  # 0: the head has not come
        self._left = -1  # bytes of the body still to come; -1: until the connection ends
        self._chunked = False
        self._streams = False
        self._keeps = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready for an exchange."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.reusable = transport, True

    async def exchange(self, message: bytes, on_event: OnEvent | None) -> bytes:
        """Send a request; the body of its answer."""
        assert self._transport is not None
        self._reset()
        self.reusable = False
        self._on_event, self._done = on_event, asyncio.get_running_loop().create_future()
        self._transport.write(message)
        return await self._done

    def close(self) -> None:
        """Ends the connection."""
        self.reusable = False
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the exchange that runs, if one does."""
        self.reusable = False
        if self._done is None or self._done.done():
            return
        if self._status == 200 and not self._chunked and self._left == -1 and exc is None:
            self._keeps = False
            self._finish()
        else:
            self._done.set_exception(HttpFailure(f"the connection ended before the answer did{f': {exc}' if exc else ''}"))

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer: head, then body, chunked or not."""
        now = perf_counter()
        self._buffer = self._buffer + data if self._buffer else data
        if not self._status and not self._read_head():
            return
        if self._chunked:
            self._read_chunks(now)
            return
        body, self._buffer = self._buffer, b""
        self._take(body, now)
        if self._left >= 0:
            self._left -= len(body)
            if self._left <= 0:
                self._finish()

    def _read_head(self) -> bool:
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return False
        lines = head.decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        self._status = int(lines[0].split(" ", 2)[1])
        self._chunked = "chunked" in fields.get("transfer-encoding", "")
        self._left = int(fields.get("content-length", -1))
        self._streams = self._status == 200 and fields.get("content-type", "").startswith("text/event-stream")
        self._keeps = fields.get("connection", "").lower() != "close"
        self._buffer = rest
        return True

    def _read_chunks(self, now: float) -> None:
        data, at = self._buffer, 0
        while True:
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            size = int(data[at:end].partition(b";")[0], 16)
            if len(data) < end + 2 + size + 2:
                break
            if size == 0:
                self._buffer = b""
                self._finish()
                return
            self._take(data[end + 2 : end + 2 + size], now)
            at = end + 2 + size + 2
        self._buffer = data[at:]

    def _take(self, body: bytes, now: float) -> None:
        self._text = self._text + body if self._text else body
        if not self._streams or self._on_event is None:
            self._text = self._text[:_MAX_BODY]
            return
        *events, self._text = self._text.replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            if event.startswith(b"data:"):
                self._on_event(event[5:].strip(), now)

    def _finish(self) -> None:
        assert self._done is not None
        self.reusable = self._keeps
        if self._done.done():
            return
        if self._status == 200:
            self._done.set_result(self._text)
        else:
            self._done.set_exception(HttpFailure(f"answered {self._status}: {error_message(self._text)}"))
