"""AsyncEngine: the engine in a process of its own, seen from asyncio.

One reader task takes the engine's messages and hands them to the request they belong to; a slow consumer gets the sum of
what it missed, so nothing piles up. Leaving a `generate` loop early aborts the request.

When the engine process dies the supervisor starts another. Streams that had a token end with EngineDead; requests that had
none are sent once more; new ones wait up to RECOVERY_S for the engine to be back.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from llmx import errors
from llmx.config import Change, EngineConfig
from llmx.engine.bad_words import with_bad_word_ids
from llmx.engine.child import EngineChild, error_of
from llmx.engine.messages import Abort, Add, EngineInfo, Failed, FromEngine, GetStats, Outputs, Rejected, Stats
from llmx.engine.model_store import TransferLine, fetch_model
from llmx.engine.output_processor import OutputProcessor
from llmx.engine.outputs import EngineStats, RequestOutput
from llmx.engine.supervisor import Supervisor
from llmx.errors import EngineDead, LlmxError, RequestError
from llmx.executor.base import Progress
from llmx.hooks.loader import PluginLoader
from llmx.models.load import ModelSummary, read_model_info
from llmx.models.plugin import CoreModels, registry_from
from llmx.resolve import resolve
from llmx.sampling_params import SamplingParams, sampling_defaults
from llmx.tokens.chat_template import ChatTemplate
from llmx.tokens.tokenizer import Tokenizer

__all__ = ["RECOVERY_S", "AsyncEngine"]

_STATS_TIMEOUT_S = 10.0  # longer than any step; an engine that does not answer by then hangs
RECOVERY_S = 10.0  # how long requests wait for an engine that is being started again


class _Running:
    """A request in flight: what was sent for it, its processor, and the flag that wakes its consumer."""

    __slots__ = ("error", "message", "processor", "retried", "started", "wake")

    def __init__(self, message: Add, processor: OutputProcessor) -> None:
        self.message = message
        self.processor = processor
        self.wake = asyncio.Event()
        self.error: Exception | None = None
        self.started = False  # news came: what the client may have seen cannot be taken back
        self.retried = False

    def fail(self, reason: str) -> None:
        """Wake the consumer with EngineDead."""
        self.error = EngineDead(reason)
        self.wake.set()


class AsyncEngine:
    """Use: `engine = AsyncEngine.launch(config)`, `await engine.start()`, `async for output in engine.generate(...)`."""

    info: EngineInfo
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    sampling_defaults: dict[str, Any]  # what the model's generation_config.json sets, by SamplingParams field

    def __init__(self, config: EngineConfig, supervisor: Supervisor) -> None:
        self.config = config
        self._supervisor = supervisor
        self._running: dict[str, _Running] = {}
        self._waiting_stats: dict[int, asyncio.Future[EngineStats]] = {}
        self._tokens = itertools.count()
        self._reader: asyncio.Task[None] | None = None
        self._dead: str | None = None  # why it is down for good
        self._down: str | None = None  # why it is down now, while another is started
        self._back = asyncio.Event()
        self._draining = False

    @classmethod
    def launch(cls, config: EngineConfig, changes: Iterable[Change] = ()) -> AsyncEngine:
        """Start the engine process and return at once. changes: from resolve; what the user set is not overridden.

        A hub model that is not on this machine is fetched first, with a line about it on stderr.
        """
        with TransferLine(sys.stderr) as line:
            config = fetch_model(config, line.show)
        return cls(config, Supervisor(config, [change.path for change in changes]))

    @classmethod
    def from_engine_args(cls, options: dict[str, Any]) -> AsyncEngine:
        """Like `launch`, from options by name."""
        config, changes = resolve(options)
        return cls.launch(config, changes)

    async def start(self, on_progress: Progress | None = None) -> None:
        """Wait until requests are taken; the tokenizer is loaded meanwhile. Raises what stopped the start."""
        loading = asyncio.get_running_loop().run_in_executor(None, self._load_tokenizer)
        try:
            self.info = await self._supervisor.start(on_progress)
            await loading
        except BaseException:
            self._child.kill()
            await asyncio.gather(loading, return_exceptions=True)
            raise
        self._reader = asyncio.create_task(self._read(), name="llmx-engine-reader")

    def _load_tokenizer(self) -> None:
        manager = PluginLoader.discover(self.config.platform).activate(None, builtin=[CoreModels()])
        summary: ModelSummary = read_model_info(self.config.model, registry_from(manager))
        self.tokenizer = Tokenizer.load(summary.tokenizer)
        self.sampling_defaults = sampling_defaults(summary.generation)
        self.chat_template = ChatTemplate.load(summary.tokenizer, self.tokenizer.names, self.config.model.chat_template)

    # -- requests ------------------------------------------------------------------------------------------------------

    async def generate(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        add_special_tokens: bool = True,
        cache_salt: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs as they come, each the state so far with its deltas; the last has finished True.

        cache_salt: prefix-cache entries are shared only between requests with the same one.
        Raises RequestError before the first output, EngineDead when the engine ends first.
        """
        self.check_alive()
        if self._draining:
            raise EngineDead("the server is shutting down and takes no new requests")
        if self._down is not None:
            await self._wait_until_back()
        ids = self.tokenizer.encode(prompt, add_special_tokens=add_special_tokens) if isinstance(prompt, str) else list(prompt)
        params.check_vocabulary(self.info.vocab_size)
        params = with_bad_word_ids(params, self.tokenizer)
        if request_id in self._running:
            raise RequestError(f"a request with id {request_id!r} is running already", field="request_id")
        processor = OutputProcessor(request_id, prompt if isinstance(prompt, str) else None, ids, params, self.tokenizer)
        running = _Running(Add(request_id, ids, params, priority, cache_salt), processor)
        self._running[request_id] = running
        try:
            await self._send(running)
            while True:
                await running.wake.wait()
                running.wake.clear()
                if running.error is not None:
                    raise running.error
                output = running.processor.drain()
                yield output
                if output.finished:
                    return
        finally:
            del self._running[request_id]
            if not running.processor.finished and running.error is None:
                await self.abort(request_id)

    async def abort(self, request_id: str) -> None:
        """End a request; its stream gets a last output with finish_reason "abort". Unknown ids are fine."""
        if self._dead is None and self._down is None:
            with contextlib.suppress(EngineDead):  # it dies just now: then the request is gone too
                await self._child.send(Abort(request_id))

    @property
    def _child(self) -> EngineChild:
        return self._supervisor.child

    async def _send(self, running: _Running) -> None:
        """Send a request; while the engine is down, or when it dies just now, `_recover` will."""
        if self._down is None:
            with contextlib.suppress(EngineDead):
                await self._child.send(running.message)

    async def _wait_until_back(self) -> None:
        try:
            await asyncio.wait_for(self._back.wait(), RECOVERY_S)
        except TimeoutError:
            raise EngineDead(f"{self._down}; it was not back within {RECOVERY_S:.0f} s") from None
        self.check_alive()

    async def _read(self) -> None:
        while self._dead is None:
            try:
                while True:
                    await self._dispatch(await self._child.receive())
            except EngineDead as error:
                reason = str(error)
            except Exception as error:  # noqa: BLE001 - a broken message must end the streams, not leave them hanging
                reason = f"reading from the engine failed: {type(error).__name__}: {error}"
            await self._recover(reason)

    async def _recover(self, reason: str) -> None:
        """Fail the streams that had news, start another engine, and send the other requests once more."""
        self._down = reason
        self._back.clear()
        self._fail_stats(reason)
        for running in self._running.values():
            if running.started or running.retried:
                running.fail(reason)
            running.retried = True
        loop = asyncio.get_running_loop()
        expiry = loop.call_later(RECOVERY_S, self._expire, reason)
        try:
            self.info = await self._supervisor.restart()
        except LlmxError as error:
            self._fail_all(f"{reason}; {error}")
            return
        finally:
            expiry.cancel()
        self._down = None
        self._back.set()
        for running in list(self._running.values()):
            if running.error is None:
                await self._send(running)

    def _expire(self, reason: str) -> None:
        for running in self._running.values():
            running.fail(f"{reason}; it was not back within {RECOVERY_S:.0f} s")

    async def _dispatch(self, message: FromEngine) -> None:
        match message:
            case Outputs():
                for item in message.items:
                    running = self._running.get(item.id)
                    if running is not None:
                        running.started = True
                        abort = running.processor.take(item)
                        running.wake.set()
                        if abort is not None:
                            await self._child.send(abort)
            case Rejected():
                running = self._running.get(message.id)
                if running is not None:
                    running.error = _request_error(message)
                    running.wake.set()
            case Stats():
                future = self._waiting_stats.pop(message.token, None)
                if future is not None and not future.done():
                    future.set_result(message.stats)
            case Failed():
                raise EngineDead(str(error_of(message)))
            case _:
                pass

    def _fail_all(self, reason: str) -> None:
        self._dead = self._dead or reason
        self._back.set()
        for running in self._running.values():
            running.fail(reason)
        self._fail_stats(reason)

    def _fail_stats(self, reason: str) -> None:
        for future in self._waiting_stats.values():
            if not future.done():
                future.set_exception(EngineDead(reason))
        self._waiting_stats.clear()

    # -- the whole -----------------------------------------------------------------------------------------------------

    def check_alive(self) -> None:
        """Raise EngineDead when the engine is down for good."""
        if self._dead is not None:
            raise EngineDead(self._dead)

    @property
    def num_running(self) -> int:
        """Requests that have not ended."""
        return len(self._running)

    async def stats(self) -> EngineStats:
        """Counters and gauges. Raises EngineDead, also when the engine does not answer in time."""
        self.check_alive()
        if self._down is not None:
            raise EngineDead(f"{self._down}; another is being started")
        token = next(self._tokens)
        future: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._waiting_stats[token] = future
        await self._child.send(GetStats(token))
        try:
            return await asyncio.wait_for(future, _STATS_TIMEOUT_S)
        except TimeoutError:
            raise EngineDead(f"the engine has not answered for {_STATS_TIMEOUT_S:.0f} s") from None
        finally:
            self._waiting_stats.pop(token, None)

    async def health(self) -> tuple[bool, str]:
        """(True, "ok") while the engine process lives and answers; else False and why, also while another is started."""
        try:
            await self.stats()
        except EngineDead as error:
            return False, str(error)
        return True, "ok"

    async def drain(self, timeout_s: float) -> None:
        """Take no new requests and wait until the running ones have ended, at most timeout_s seconds."""
        self._draining = True
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._running and self._dead is None and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """End the engine process; streams that still run get EngineDead."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        self._fail_all("the engine was closed")
        await self._supervisor.close()

    def kill(self) -> None:
        """End the engine process at once, from any state; for exits on the way to a start."""
        self._child.kill()


def _request_error(message: Rejected) -> RequestError:
    if message.kind == "QueueFull":
        return errors.QueueFull(message.message, retry_after_s=message.retry_after_s)
    kind = getattr(errors, message.kind, RequestError)
    return kind(message.message, field=message.field) if issubclass(kind, RequestError) else RequestError(message.message)
