"""EngineChild: starts and ends the engine process and owns the sockets to it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import zmq
import zmq.asyncio

from llmx import errors
from llmx.config import EngineConfig
from llmx.engine.messages import Configure, EngineInfo, Failed, FromEngine, Headers, Progress, Ready, Shutdown, ToEngine, decoder, encode
from llmx.engine.spawn import EngineProcess
from llmx.errors import EngineDead, LlmxError

if TYPE_CHECKING:
    from llmx.executor.base import Progress as OnProgress

__all__ = ["EngineChild", "error_of"]

_TERMINATE_S = 10.0  # from the Shutdown message to SIGKILL
_ALIVE_POLL_S = 0.2


class EngineChild:
    """One engine process. `start` it early: it works while the caller imports the rest of the server. spawned: one that runs already.

    Raises EngineDead when the process cannot be started, for instance because the disk is full.
    """

    def __init__(self, config: EngineConfig, user_set: list[str], spawned: EngineProcess | None = None) -> None:
        self._why: str | None = None  # why this side ended it
        self._closed = self._was_ready = False
        self._spawned = spawned or EngineProcess()
        self._context = zmq.asyncio.Context()
        try:
            self._to, self._from = self._context.socket(zmq.PUSH), self._context.socket(zmq.PULL)
            for socket in (self._to, self._from):
                socket.set_hwm(0)
            self._to.bind(self._spawned.requests)
            self._from.bind(self._spawned.outputs)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            self._spawned.kill()
            raise EngineDead(f"the engine process cannot be started: {error}") from error
        self.process = self._spawned.process
        self._decoder = decoder(FromEngine)
        self._spawned.configure(encode(Configure(config, user_set)))  # by its standard input: ZMQ sends when this side's event loop runs, which is later

    async def ready(self, on_progress: OnProgress | None = None, on_headers: Callable[[Headers], None] | None = None) -> EngineInfo:
        """Wait until the engine takes requests. on_headers: told of the model's headers, once. Raises the error that stopped it."""
        while True:
            message = await self.receive()
            match message:
                case Ready():
                    self._was_ready = True
                    self._spawned.forget()  # both sides are connected: a kill must not leave it behind
                    return message.info
                case Failed():
                    raise error_of(message)
                case Headers() if on_headers is not None:
                    on_headers(message)
                case Progress() if on_progress is not None:
                    on_progress(message.what, message.fraction)
                case _:
                    pass

    async def send(self, message: ToEngine) -> None:
        """Queue a message to the engine. Raises EngineDead when it has ended."""
        if self.process.poll() is not None:
            raise self._death()
        await self._to.send(encode(message))

    async def receive(self) -> FromEngine:
        """The next message. Raises EngineDead when the process ends first."""
        while True:
            if await self._from.poll(int(_ALIVE_POLL_S * 1000)):
                return self._decoder.decode(await self._from.recv())  # type: ignore[no-any-return]
            if self.process.poll() is not None and not await self._from.poll(0):
                raise self._death()

    async def close(self) -> None:
        """End the process: politely, then not. Idempotent."""
        if not self._was_ready:  # it does not listen yet, and may end by itself without ever taking a message
            self.kill()
        elif self.process.poll() is None:
            with contextlib.suppress(EngineDead):
                await self.send(Shutdown())
            for _ in range(int(_TERMINATE_S / 0.02)):
                if self.process.poll() is not None:
                    break
                await asyncio.sleep(0.02)
            else:
                self.kill()
        self._release()

    def kill(self, why: str | None = None) -> None:
        """End the process now and remove its sockets' folder; `close` frees the sockets. why: what `receive` then says."""
        if self.process.poll() is None:
            self._why = why
        self._spawned.kill()

    def _death(self) -> EngineDead:
        status = self.process.returncode
        hint = " (SIGKILL: the kernel does that too, when memory runs out)" if status == -signal.SIGKILL else ""
        return EngineDead(self._why or f"the engine process ended with status {status}{hint}")

    def _release(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._to.close(linger=0)
        self._from.close(linger=0)
        self._context.term()
        self._spawned.forget()


def error_of(message: Failed) -> LlmxError:
    """The error that the engine process reported, of the same class where llmx has it."""
    kind = getattr(errors, message.kind, None)
    if kind is None or not issubclass(kind, LlmxError):
        return EngineDead(f"the engine failed: {message.message}", detail=message.detail)
    error: LlmxError = kind.__new__(kind)
    Exception.__init__(error, message.message)
    for name in ("field", "path", "plugin"):
        setattr(error, name, None)
    return error
