"""AsyncEngine: the engine in a process of its own, seen from asyncio.

One reader task takes the engine's messages and hands them to the request they belong to; a slow consumer gets the sum of
what it missed, so nothing piles up. Leaving a `generate` loop early aborts the request.

When the engine process dies, or hangs and is killed, another is started; `recovery` says what becomes of the requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from llmx.config import Change, EngineConfig
from llmx.engine.bad_words import with_bad_word_ids
from llmx.engine.child import EngineChild, error_of
from llmx.engine.messages import Abort, Add, Controlled, EngineInfo, Failed, FromEngine, GetStats, Outputs, Rejected, Stats, ToEngine
from llmx.engine.model_fetch import TransferLine, fetch_model
from llmx.engine.output_processor import OutputProcessor
from llmx.engine.outputs import EngineStats, RequestOutput
from llmx.engine.questions import NOBODY, Questions
from llmx.engine.recovery import Recovery
from llmx.engine.running import Running, request_error
from llmx.engine.spawn import EngineProcess
from llmx.engine.steering import Steering
from llmx.engine.supervisor import Supervisor
from llmx.engine.texts import Texts, load_texts
from llmx.engine.watchdog import Watchdog, step_limit_s
from llmx.errors import EngineDead, QueueFull, RequestError
from llmx.resolve import resolve
from llmx.sampling_params import SamplingParams
from llmx.tokens.chat_template import ChatTemplate
from llmx.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llmx.executor.base import Progress

__all__ = ["AsyncEngine"]


class AsyncEngine:
    """Use: `engine = AsyncEngine.launch(config)`, `await engine.start()`, `async for output in engine.generate(...)`."""

    info: EngineInfo
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    sampling_defaults: dict[str, Any]  # what the model's generation_config.json sets, by SamplingParams field

    def __init__(self, config: EngineConfig, supervisor: Supervisor) -> None:
        self.config = config
        self._supervisor = supervisor
        self._running: dict[str, Running] = {}
        self._life = Recovery(supervisor, self._running, config.scheduler.recovery_timeout_s)
        self._watchdog = Watchdog(self._ask)
        self._questions = Questions(self._tell)
        self.steering = Steering(supervisor, self._questions, self._running, self._life.check)
        self._reader: asyncio.Task[None] | None = None
        self._draining = False

    @classmethod
    def launch(cls, config: EngineConfig, changes: Iterable[Change] = (), spawned: EngineProcess | None = None) -> AsyncEngine:
        """Start the engine process, or take one that is spawned, and return at once. changes: from resolve; what the user set is not overridden.

        A hub model that is not on this machine is fetched first, with a line about it on stderr.
        """
        with TransferLine(sys.stderr) as line:
            config = fetch_model(config, line.show)
        return cls(config, Supervisor(config, [change.path for change in changes], spawned))

    @classmethod
    def from_engine_args(cls, options: dict[str, Any]) -> AsyncEngine:
        """Like `launch`, from options by name."""
        config, changes = resolve(options)
        return cls.launch(config, changes)

    def another(self) -> AsyncEngine:
        """An engine of the same configuration in a new process, for when this one was closed; `start` it."""
        return AsyncEngine(self.config, self._supervisor.another())

    async def start(self, on_progress: Progress | None = None) -> None:
        """Wait until requests are taken; the tokenizer is loaded meanwhile. Raises what stopped the start."""
        loading: list[asyncio.Task[Texts]] = []
        template = self.config.model.chat_template
        try:
            on_headers = lambda headers: loading.append(asyncio.create_task(asyncio.to_thread(load_texts, headers, template)))  # noqa: E731
            self.info = await self._supervisor.start(on_progress, on_headers)
            self.steering.adapters = {str(one["name"]): one for one in self.info.adapters}
            texts = await loading[0]
        except BaseException:
            self._child.kill()
            await asyncio.gather(*loading, return_exceptions=True)
            raise
        self.tokenizer, self.sampling_defaults, self.chat_template = texts.tokenizer, texts.sampling_defaults, texts.chat_template
        self._reader = asyncio.create_task(self._read(), name="llmx-engine-reader")

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
        lora: str = "",
        timeout_s: float | None = None,
        replay: bool = False,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs as they come, each the state so far with its deltas; the last has finished True.

        cache_salt: prefix-cache entries are shared only between requests with the same one. lora: an adapter's name. timeout_s: seconds until
        RequestTimeout. replay: the caller shows nothing before the end, so outputs may begin anew when the engine died.
        Raises RequestError before the first output, EngineDead when the engine ends first.
        """
        ids = self.tokenizer.encode(prompt, add_special_tokens=add_special_tokens) if isinstance(prompt, str) else list(prompt)
        params.check_vocabulary(self.info.vocab_size)
        params = with_bad_word_ids(params, self.tokenizer)
        text = prompt if isinstance(prompt, str) else None
        fresh = partial(OutputProcessor, request_id, text, ids, params, self.tokenizer)
        message = Add(request_id, ids, params, priority, cache_salt, lora=lora)
        async with contextlib.aclosing(self.follow(message, fresh, timeout_s=timeout_s, replay=replay)) as outputs:
            async for output in outputs:
                yield output

    async def follow(self, message: Add, fresh: Callable[[], Any], *, timeout_s: float | None = None, replay: bool = False) -> AsyncGenerator[Any, None]:
        """Send a request and give its outputs as they come; fresh: makes their empty OutputProcessor or PoolingProcessor. Else as `generate`."""
        if self._draining:
            raise EngineDead("the server is shutting down and takes no new requests")
        self._check_room()
        await self._life.until_up()
        if (request_id := message.id) in self._running:
            raise RequestError(f"a request with id {request_id!r} is running already", field="request_id")
        running = self._running[request_id] = Running(message, fresh, replay=replay)
        if timeout_s is not None:
            running.expire_after(timeout_s)
        try:
            await self._send(running)
            while True:
                await running.wake.wait()
                running.wake.clear()
                if running.error is not None:
                    raise running.error
                running.started = True
                output = running.processor.drain()
                yield output
                if output.finished:
                    return
        finally:
            running.close()
            del self._running[request_id]
            if not running.processor.finished and not running.gone:
                await self.abort(request_id)

    async def abort(self, request_id: str) -> None:
        """End a request; its stream gets a last output with finish_reason "abort". Unknown ids are fine."""
        if self._life.is_up:
            with contextlib.suppress(EngineDead):  # it dies just now: then the request is gone too
                await self._child.send(Abort(request_id))

    @property
    def _child(self) -> EngineChild:
        return self._supervisor.child

    def _check_room(self) -> None:
        """The engine knows its queue best; this bounds what may pile up while it is busy or down."""
        queued = self.config.scheduler.max_queued_requests
        if queued is not None and len(self._running) >= queued + self.config.scheduler.max_num_seqs:
            raise QueueFull(f"{queued} requests are waiting, which is the limit (--max-num-queued-reqs): try again later")

    async def _send(self, running: Running) -> None:
        """Send a request; while the engine is down, or when it dies just now, the recovery will."""
        if self._life.is_up:
            with contextlib.suppress(EngineDead):
                await self._child.send(running.message)

    async def _read(self) -> None:
        while self._life.dead is None:
            watching = asyncio.create_task(self._watch(), name="llmx-engine-watchdog")
            try:
                while True:
                    message = await self._child.receive()
                    self._watchdog.note()
                    await self._dispatch(message)
            except EngineDead as error:
                death = error
            except Exception as error:  # noqa: BLE001 - a broken message must end the streams, not leave them hanging
                death = EngineDead(f"reading from the engine failed: {type(error).__name__}: {error}")
            finally:
                watching.cancel()
            self._questions.fail(str(death))
            self.info = await self._life.replace(death, self._send) or self.info

    async def _watch(self) -> None:
        limit = step_limit_s(self.config.scheduler.step_timeout_s, self.info.step_s)
        if limit > 0:
            await self._watchdog.run(limit)
            self._child.kill(f"the engine hangs: no step has ended for {limit:g} s (--step-timeout), so it was killed")

    async def _tell(self, message: ToEngine) -> None:
        await self._child.send(message)

    async def _ask(self) -> None:
        with contextlib.suppress(EngineDead):
            await self._child.send(GetStats(NOBODY))

    async def _dispatch(self, message: FromEngine) -> None:
        match message:
            case Outputs():
                for item in message.items:
                    running = self._running.get(item.id)
                    if running is not None and (abort := running.take(item)) is not None:
                        await self._child.send(abort)
            case Rejected():
                if (running := self._running.get(message.id)) is not None:
                    running.gone = True
                    running.fail(request_error(message))
            case Stats():
                self._questions.answered(message.token, message.stats)
            case Controlled():
                self._questions.answered(message.token, message)
            case Failed():
                raise error_of(message)
            case _:
                pass

    # -- the whole -----------------------------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        """Requests that have not ended."""
        return len(self._running)

    async def stats(self, *, kv_map: bool = False) -> EngineStats:
        """Counters and gauges; kv_map: and every block's state. Raises EngineDead, also when the engine does not answer in time."""
        self._life.check()
        stats: EngineStats = await self._questions.ask(lambda token: GetStats(token, kv_map))
        return stats

    async def health(self) -> tuple[bool, str]:
        """(True, "ok") while the engine process lives and ends its steps; else False and why, also while another is started.

        It does not wait for the engine: a busy one is healthy, and the watchdog ends one that hangs.
        """
        try:
            self._life.check()
        except EngineDead as error:
            return False, str(error)
        return True, "ok"

    async def drain(self, timeout_s: float) -> None:
        """Take no new requests and wait until the running ones have ended, at most timeout_s seconds."""
        self._draining = True
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._running and self._life.dead is None and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)

    async def close(self, why: str = "the engine was closed") -> None:
        """End the engine process; streams that still run get EngineDead with `why`."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        self._life.end(why)
        self._questions.fail(why)
        await self._supervisor.close()

    def kill(self) -> None:
        """End the engine process at once, from any state, and start no other; for ends that must not wait."""
        self._life.end("the engine was ended")
        self._supervisor.kill()
