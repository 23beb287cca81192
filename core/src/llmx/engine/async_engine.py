"""AsyncEngine: the engine in a process of its own, seen from asyncio.

One reader task takes the engine's messages and hands them to the request they belong to; a slow consumer gets the sum of
what it missed, so nothing piles up. Leaving a `generate` loop early aborts the request.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from llmx import errors
from llmx.config import Change, EngineConfig
from llmx.engine.child import EngineChild, error_of
from llmx.engine.messages import Abort, Add, EngineInfo, Failed, FromEngine, GetStats, Outputs, Rejected, Stats
from llmx.engine.output_processor import OutputProcessor
from llmx.engine.outputs import EngineStats, RequestOutput
from llmx.errors import EngineDead, RequestError
from llmx.executor.base import Progress
from llmx.hooks.loader import PluginLoader
from llmx.models.load import ModelSummary, read_model_info
from llmx.models.plugin import CoreModels, registry_from
from llmx.resolve import resolve
from llmx.sampling_params import SamplingParams, sampling_defaults
from llmx.tokens.chat_template import ChatTemplate
from llmx.tokens.tokenizer import Tokenizer

__all__ = ["AsyncEngine"]

_STATS_TIMEOUT_S = 10.0  # longer than any step; an engine that does not answer by then hangs


class _Running:
    """A request in flight: its processor and the flag that wakes its consumer."""

    __slots__ = ("error", "processor", "wake")

    def __init__(self, processor: OutputProcessor) -> None:
        self.processor = processor
        self.wake = asyncio.Event()
        self.error: Exception | None = None


class AsyncEngine:
    """Use: `engine = AsyncEngine.launch(config)`, `await engine.start()`, `async for output in engine.generate(...)`."""

    info: EngineInfo
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    sampling_defaults: dict[str, Any]  # what the model's generation_config.json sets, by SamplingParams field

    def __init__(self, config: EngineConfig, child: EngineChild) -> None:
        self.config = config
        self._child = child
        self._running: dict[str, _Running] = {}
        self._waiting_stats: dict[int, asyncio.Future[EngineStats]] = {}
        self._tokens = itertools.count()
        self._reader: asyncio.Task[None] | None = None
        self._dead: str | None = None
        self._draining = False

    @classmethod
    def launch(cls, config: EngineConfig, changes: Iterable[Change] = ()) -> AsyncEngine:
        """Start the engine process and return at once. changes: from resolve; what the user set is not overridden."""
        return cls(config, EngineChild(config, [change.path for change in changes]))

    @classmethod
    def from_engine_args(cls, options: dict[str, Any]) -> AsyncEngine:
        """Like `launch`, from options by name."""
        config, changes = resolve(options)
        return cls.launch(config, changes)

    async def start(self, on_progress: Progress | None = None) -> None:
        """Wait until requests are taken; the tokenizer is loaded meanwhile. Raises what stopped the start."""
        loading = asyncio.get_running_loop().run_in_executor(None, self._load_tokenizer)
        try:
            self.info = await self._child.ready(on_progress)
            await loading
        except BaseException:
            self._child.kill()
            await self._child.close()
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
        self, prompt: str | list[int], params: SamplingParams, request_id: str, *, priority: int = 0, add_special_tokens: bool = True
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs as they come, each the state so far with its deltas; the last has finished True.

        Raises RequestError before the first output, EngineDead when the engine ends first.
        """
        self.check_alive()
        if self._draining:
            raise EngineDead("the server is shutting down and takes no new requests")
        ids = self.tokenizer.encode(prompt, add_special_tokens=add_special_tokens) if isinstance(prompt, str) else list(prompt)
        params.check_vocabulary(self.info.vocab_size)
        if request_id in self._running:
            raise RequestError(f"a request with id {request_id!r} is running already", field="request_id")
        running = _Running(OutputProcessor(request_id, prompt if isinstance(prompt, str) else None, ids, params, self.tokenizer))
        self._running[request_id] = running
        try:
            await self._child.send(Add(request_id, ids, params, priority))
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
            if not running.processor.finished and running.error is None and self._dead is None:
                await self._child.send(Abort(request_id))

    async def abort(self, request_id: str) -> None:
        """End a request; its stream gets a last output with finish_reason "abort". Unknown ids are fine."""
        if self._dead is None:
            await self._child.send(Abort(request_id))

    async def _read(self) -> None:
        try:
            while True:
                await self._dispatch(await self._child.receive())
        except EngineDead as error:
            self._fail_all(str(error))
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - a broken message must end the streams, not leave them hanging
            self._fail_all(f"reading from the engine failed: {type(error).__name__}: {error}")

    async def _dispatch(self, message: FromEngine) -> None:
        match message:
            case Outputs():
                for item in message.items:
                    running = self._running.get(item.id)
                    if running is not None:
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
                self._fail_all(str(error_of(message)))
            case _:
                pass

    def _fail_all(self, reason: str) -> None:
        self._dead = self._dead or reason
        for running in self._running.values():
            running.error = EngineDead(reason)
            running.wake.set()
        for future in self._waiting_stats.values():
            if not future.done():
                future.set_exception(EngineDead(reason))
        self._waiting_stats.clear()

    # -- the whole -----------------------------------------------------------------------------------------------------

    def check_alive(self) -> None:
        """Raise EngineDead when the engine has ended."""
        if self._dead is None and self._child.process.poll() is not None:
            self._fail_all(f"the engine process ended with status {self._child.process.returncode}")
        if self._dead is not None:
            raise EngineDead(self._dead)

    @property
    def num_running(self) -> int:
        """Requests that have not ended."""
        return len(self._running)

    async def stats(self) -> EngineStats:
        """Counters and gauges. Raises EngineDead, also when the engine does not answer in time."""
        self.check_alive()
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
        """(True, "ok") while the engine process lives and answers; else False and why."""
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
        await self._child.close()

    def kill(self) -> None:
        """End the engine process at once, from any state; for exits on the way to a start."""
        self._child.kill()


def _request_error(message: Rejected) -> RequestError:
    if message.kind == "QueueFull":
        return errors.QueueFull(message.message, retry_after_s=message.retry_after_s)
    kind = getattr(errors, message.kind, RequestError)
    return kind(message.message, field=message.field) if issubclass(kind, RequestError) else RequestError(message.message)
