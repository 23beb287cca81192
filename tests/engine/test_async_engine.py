"""The engine in a process of its own: streams, aborts, refusals, death. On the null platform."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from llmx import AsyncEngine, SamplingParams
from llmx.engine.messages import SeqOutput
from llmx.engine.output_processor import OutputProcessor
from llmx.engine.supervisor import MAX_RESTARTS
from llmx.engine.watchdog import Watchdog
from llmx.errors import ConfigError, EngineDead, ModelError, QueueFull, RequestError, RequestFailed, RequestTimeout
from llmx.structured_params import ReasoningSpan, StructuredOutputsParams

PARAMS = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
BUDGET = SamplingParams(
    temperature=0.0, max_tokens=10, ignore_eos=True, structured_outputs=StructuredOutputsParams(after=ReasoningSpan("<think>", "</think>", True, 2))
)
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
        assert not Path(engine._child._spawned.folder).exists()

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


def test_b102_two_hundred_requests_cancelled_at_random_moments() -> None:
    async def test(engine: AsyncEngine) -> None:
        unhandled: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
        dice = random.Random(5)
        short = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)

        async def one(number: int) -> str:
            task = asyncio.create_task(collect(engine, f"r{number}", params=short))
            if number % 4 == 0:  # just as it finishes
                await engine.abort(f"r{number}") if dice.random() < 0.3 else None
                done, _ = await asyncio.wait([task], timeout=30)
                task.cancel()
            else:
                await asyncio.sleep(dice.random() * 2.0)
                await engine.abort(f"r{number}") if number % 4 == 1 else task.cancel()
            return str((await asyncio.gather(task, return_exceptions=True))[0])

        results = await asyncio.gather(*(one(number) for number in range(200)))
        assert all("abort" in result or "length" in result or not result for result in results), results
        assert (await collect(engine, "alive"))[1] == "length"
        stats = await engine.stats()
        while stats.kv_blocks_used or stats.requests_running or stats.requests_waiting:
            await asyncio.sleep(0.01)
            stats = await engine.stats()
        assert engine.num_running == 0 and not unhandled
        known = sum(stats.requests_finished.values())
        assert known <= 201 and set(stats.requests_finished) <= {"abort", "length"} and known + sum(not result for result in results) >= 201

    run(test, max_num_seqs=16)


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


@pytest.mark.parametrize("params", [PARAMS, BUDGET], ids=["plain", "thinking budget"])
def test_when_the_engine_dies_started_streams_end_and_waiting_ones_are_sent_again(params: SamplingParams) -> None:
    async def test(engine: AsyncEngine) -> None:
        lone = await collect(engine, "lone", params=params)
        assert ("</think>" in lone[0]) == (params is BUDGET)
        started = engine.generate("hello", LONG, "started")
        await anext(started)
        waiting = [asyncio.create_task(collect(engine, f"waiting{index}", params=params)) for index in range(3)]
        await asyncio.sleep(0.2)
        await _kill(engine)
        assert (await engine.health())[0] is False
        with pytest.raises(EngineDead, match="-9"):
            async with asyncio.timeout(2):
                while True:
                    await anext(started)
        late = asyncio.create_task(collect(engine, "late", params=params))  # comes while the engine is down: it waits
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


def test_a_restart_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(engine: AsyncEngine) -> None:
        make, failures = tempfile.mkdtemp, [OSError(errno.ENOSPC, "No space left on device")]
        monkeypatch.setattr(tempfile, "mkdtemp", lambda **names: (_ for _ in ()).throw(failures.pop()) if failures else make(**names))
        await _kill(engine)
        assert (await asyncio.wait_for(collect(engine, "after"), 60))[1] == "length"
        assert not failures

    run(test)


def test_an_engine_that_hangs_is_ended_and_its_waiting_requests_are_served() -> None:
    async def test(engine: AsyncEngine) -> None:
        first, begun = engine._child.process, engine.generate("hello", LONG, "begun")
        await anext(begun)
        os.kill(first.pid, signal.SIGSTOP)
        waiting = asyncio.create_task(collect(engine, "waiting"))
        with pytest.raises(EngineDead, match=r"hangs: no step has ended for 1 s \(--step-timeout\)"):
            async for _ in begun:
                pass
        assert (await waiting)[1] == "length" and first.poll() is not None and await engine.health() == (True, "ok")

    run(test, step_timeout=1.0)


def test_time_in_which_this_process_did_not_run_is_no_hang() -> None:
    async def test() -> None:
        asked = 0

        async def ask() -> None:
            nonlocal asked
            asked += 1

        dog = Watchdog(ask)
        watching = asyncio.create_task(dog.run(0.4))
        for _ in range(3):
            await asyncio.sleep(0.05)
            dog.note()
        time.sleep(0.5)  # longer than the limit: the whole process, its event loop too
        await asyncio.sleep(0.05)
        dog.note()
        assert not watching.done() and asked > 0
        await asyncio.wait_for(watching, 10)  # nothing more is said: a hang

    asyncio.run(test())


def test_an_answer_under_way_is_made_anew_when_nothing_of_it_was_shown() -> None:
    async def test(engine: AsyncEngine) -> None:
        some = SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True)
        lone = await collect(engine, "lone", params=some)
        texts = []

        async def whole() -> None:
            async for output in engine.generate("hello", some, "whole", replay=True):
                texts.append(output.outputs[0].text)

        task = asyncio.create_task(whole())
        while not texts:
            await asyncio.sleep(0.01)
        await _kill(engine)
        await asyncio.wait_for(task, 60)
        assert texts[-1] == lone[0]

    run(test)


def test_requests_end_at_their_timeout_and_free_everything() -> None:
    async def test(engine: AsyncEngine) -> None:
        with pytest.raises(RequestTimeout, match=r"not answered within 0.3 s, the limit of this server \(--request-timeout\)") as caught:
            async for _ in engine.generate("hello", LONG, "long", timeout_s=0.3):
                pass
        assert caught.value.status == 408 and engine.num_running == 0
        while (await engine.stats()).kv_blocks_used:
            await asyncio.sleep(0.01)

    run(test)


def test_an_error_in_one_request_is_that_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    take = OutputProcessor.take

    def broken(self: OutputProcessor, item: SeqOutput) -> object:
        if item.id == "victim":
            raise ValueError("a fault")
        return take(self, item)

    async def test(engine: AsyncEngine) -> None:
        monkeypatch.setattr(OutputProcessor, "take", broken)
        results = await asyncio.gather(collect(engine, "victim", params=LONG), collect(engine, "other"), return_exceptions=True)
        assert isinstance(results[0], RequestFailed) and results[0].status == 500 and results[1][1] == "length"
        while (await engine.stats()).kv_blocks_used:
            await asyncio.sleep(0.01)

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
        assert engine._child.process.poll() is not None and not Path(engine._child._spawned.folder).exists()

    asyncio.run(main())
