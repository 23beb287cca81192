"""The engine in a process of its own: streams, aborts, refusals, death. On the null platform."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from llmx import AsyncEngine, SamplingParams
from llmx.engine.supervisor import MAX_RESTARTS
from llmx.errors import ConfigError, EngineDead, ModelError, QueueFull, RequestError

PARAMS = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=7000, ignore_eos=True)


def run(test: Callable[[AsyncEngine], Awaitable[None]], **options: object) -> None:
    """Run one test against a fresh engine process; it and its folder must be gone afterwards."""

    async def main() -> None:
        engine = AsyncEngine.from_engine_args({"platform": "null", "num_blocks": 3000, "recovery_timeout": 60, **options})
        await engine.start()
        try:
            await asyncio.wait_for(test(engine), 60)
        finally:
            await engine.close()
        assert engine._child.process.poll() is not None
        assert not Path(engine._child._folder).exists()

    asyncio.run(main())


async def collect(engine: AsyncEngine, name: str, prompt: str = "hello", params: SamplingParams = PARAMS) -> tuple[str, str | None]:
    text, reason = "", None
    async for output in engine.generate(prompt, params, name):
        text += output.outputs[0].text_delta
        reason = output.outputs[0].finish_reason
    return text, reason


def test_streams_run_together_and_equal_a_lone_one() -> None:
    async def test(engine: AsyncEngine) -> None:
        lone = await collect(engine, "lone")
        many = await asyncio.gather(*(collect(engine, f"r{index}") for index in range(20)))
        assert set(many) == {lone} and lone[1] == "length"
        stats = await engine.stats()
        assert stats.kv_blocks_used == 0 and stats.requests_finished == {"length": 21} and engine.num_running == 0

    run(test)


def test_leaving_a_stream_or_cancelling_it_aborts_the_request() -> None:
    async def test(engine: AsyncEngine) -> None:
        stream = engine.generate("hello", LONG, "left")
        await anext(stream)
        await stream.aclose()
        task = asyncio.create_task(collect(engine, "cancelled", params=LONG))
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for _ in range(200):
            stats = await engine.stats()
            if stats.kv_blocks_used == 0:
                break
            await asyncio.sleep(0.01)
        assert stats.kv_blocks_used == 0 and stats.requests_finished == {"abort": 2}

    run(test)


def test_abort_by_id_ends_the_stream_with_that_reason() -> None:
    async def test(engine: AsyncEngine) -> None:
        task = asyncio.create_task(collect(engine, "victim", params=LONG))
        await asyncio.sleep(0.2)
        await engine.abort("victim")
        assert (await task)[1] == "abort"
        await engine.abort("never heard of")

    run(test)


def test_a_slow_consumer_gets_the_sum() -> None:
    async def test(engine: AsyncEngine) -> None:
        whole = await collect(engine, "fast")
        text, outputs = "", 0
        async for output in engine.generate("hello", PARAMS, "slow"):
            text, outputs = text + output.outputs[0].text_delta, outputs + 1
            await asyncio.sleep(0.2)
        assert text == whole[0] and outputs < 10

    run(test)


def test_refusals_come_back_as_their_class() -> None:
    async def test(engine: AsyncEngine) -> None:
        with pytest.raises(RequestError, match="no tokens"):
            await collect(engine, "empty", "")
        with pytest.raises(RequestError, match="vocabulary"):
            await collect(engine, "bias", params=SamplingParams(logit_bias={49152: 1.0}))
        blockers = [asyncio.create_task(collect(engine, f"b{index}", params=LONG)) for index in range(3)]
        await asyncio.sleep(0.3)
        with pytest.raises(QueueFull) as caught:
            await collect(engine, "late")
        assert caught.value.retry_after_s >= 1 and caught.value.status == 503
        for blocker in blockers:
            blocker.cancel()
        await asyncio.gather(*blockers, return_exceptions=True)

    run(test, max_num_seqs=1, max_num_queued_reqs=2)


async def _kill(engine: AsyncEngine) -> None:
    """SIGKILL the engine process and wait until it was noticed."""
    child = engine._child.process
    os.kill(child.pid, signal.SIGKILL)
    while engine._life.is_up and engine._child.process is child:
        await asyncio.sleep(0.01)


def test_when_the_engine_dies_started_streams_end_and_waiting_ones_are_sent_again() -> None:
    async def test(engine: AsyncEngine) -> None:
        lone = await collect(engine, "lone")
        started = engine.generate("hello", LONG, "started")
        await anext(started)
        waiting = [asyncio.create_task(collect(engine, f"waiting{index}")) for index in range(3)]
        await asyncio.sleep(0.2)
        await _kill(engine)
        assert (await engine.health())[0] is False
        with pytest.raises(EngineDead, match="-9"):
            async with asyncio.timeout(2):
                while True:
                    await anext(started)
        late = asyncio.create_task(collect(engine, "late"))  # comes while the engine is down: it waits
        assert set(await asyncio.wait_for(asyncio.gather(*waiting, late), 60)) == {lone}
        assert await engine.health() == (True, "ok")
        assert (await engine.stats()).kv_blocks_used == 0 and engine.num_running == 0

    run(test, max_num_seqs=1)


def test_an_engine_that_dies_again_and_again_stays_down() -> None:
    async def test(engine: AsyncEngine) -> None:
        for _ in range(MAX_RESTARTS):
            await _kill(engine)
            assert (await collect(engine, "again"))[1] == "length"
        waiting = engine.generate("hello", LONG, "last")
        await anext(waiting)
        await _kill(engine)
        while engine._life.dead is None:
            await asyncio.sleep(0.01)
        with pytest.raises(EngineDead):
            await asyncio.wait_for(collect(engine, "after"), 1)
        ok, why = await engine.health()
        assert not ok and "4 times within 60 s" in why
        await waiting.aclose()

    run(test)


def test_signals_to_the_group_leave_the_engine_to_its_parent() -> None:
    async def test(engine: AsyncEngine) -> None:
        task = asyncio.create_task(collect(engine, "running", params=SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)))
        await asyncio.sleep(0.1)
        for group_signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(engine._child.process.pid, group_signal)
        assert (await task)[1] == "length"

    run(test)


def test_drain_waits_and_refuses_new_requests() -> None:
    async def test(engine: AsyncEngine) -> None:
        task = asyncio.create_task(collect(engine, "running", params=SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)))
        await asyncio.sleep(0.1)
        await engine.drain(30)
        assert (await task)[1] == "length"
        with pytest.raises(EngineDead, match="shutting down"):
            await collect(engine, "new")

    run(test)


@pytest.mark.parametrize(("options", "error"), [({"model": "/no/such.gguf"}, ModelError), ({"num_blocks": 20}, ConfigError)])
def test_a_failed_start_raises_its_own_error_and_leaves_nothing(options: dict[str, object], error: type[Exception]) -> None:
    async def main() -> None:
        engine = AsyncEngine.from_engine_args({"platform": "null", **options})
        with pytest.raises(error):
            await engine.start()
        assert engine._child.process.poll() is not None and not Path(engine._child._folder).exists()

    asyncio.run(main())
