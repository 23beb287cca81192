"""Pause, reset of the prefix cache and profiles of a living engine process. On the null platform."""

from __future__ import annotations

import asyncio
import json
import os
import pstats
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from llmx import AsyncEngine, SamplingParams
from llmx.errors import Conflict, QueueTimeout, RequestAborted, RequestFailed
from tests.engine.test_async_engine import LONG, collect, run

SOME = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
PROMPT = "many words " * 30


async def steps_of(engine: AsyncEngine) -> int:
    return (await engine.stats()).steps


async def begun(engine: AsyncEngine, name: str) -> asyncio.Task[Any]:
    task = asyncio.create_task(collect(engine, name, params=SOME))
    while not (await engine.stats()).requests_running:
        await asyncio.sleep(0.01)
    return task


def test_a_pause_keeps_what_is_there_and_new_requests_wait() -> None:
    async def test(engine: AsyncEngine) -> None:
        alone = await collect(engine, "alone", params=SOME)
        task = await begun(engine, "running")
        await engine.steering.pause()
        before = await steps_of(engine)
        late = asyncio.create_task(collect(engine, "late"))
        gone = engine.generate("x", LONG, "gone")
        leaving = asyncio.ensure_future(anext(gone))
        await asyncio.sleep(0.2)
        leaving.cancel()  # a client that leaves meanwhile
        stats = await engine.stats()
        assert before <= stats.steps <= before + 2 and (stats.requests_running, stats.requests_waiting) == (1, 2) and not late.done() and engine.steering.paused
        await asyncio.sleep(0.1)
        assert await steps_of(engine) == stats.steps  # those that had begun have ended, and no other begins
        assert (await engine.health())[0]
        await engine.steering.pause()  # a second time changes nothing
        await engine.steering.resume()
        assert await task == alone and (await late)[1] == "length" and not engine.steering.paused
        await asyncio.gather(leaving, return_exceptions=True)
        assert (await engine.stats()).kv_blocks_used == 0

    run(test)


def test_requests_that_wait_in_a_pause_have_the_limit_of_the_queue() -> None:
    async def test(engine: AsyncEngine) -> None:
        await engine.steering.pause()
        with pytest.raises(QueueTimeout, match="0.3 s"):
            await collect(engine, "late")
        await engine.steering.resume()
        assert (await collect(engine, "after"))[1] == "length"

    run(test, queue_timeout=0.3)


def test_a_pause_can_let_requests_end_first() -> None:
    async def test(engine: AsyncEngine) -> None:
        first, second = await begun(engine, "first"), asyncio.create_task(collect(engine, "second"))  # one runs, one waits
        await asyncio.sleep(0.05)
        pausing = asyncio.create_task(engine.steering.pause("wait"))
        await asyncio.sleep(0)
        late = asyncio.create_task(collect(engine, "late"))
        await pausing
        assert (await first)[1] == (await second)[1] == "length" and not late.done()
        before = await steps_of(engine)
        await asyncio.sleep(0.1)
        assert await steps_of(engine) == before and not late.done()
        await engine.steering.resume()
        assert (await late)[1] == "length"

    run(test, max_num_seqs=1)


def test_a_pause_can_end_requests() -> None:
    async def test(engine: AsyncEngine) -> None:
        task = await begun(engine, "running")
        await engine.steering.pause("abort")
        with pytest.raises(RequestAborted, match="send the request again"):
            await task
        assert (await engine.stats()).kv_blocks_used == 0
        await engine.steering.resume()
        assert (await collect(engine, "after"))[1] == "length"

    run(test)


def test_an_engine_that_is_started_again_is_still_paused() -> None:
    async def test(engine: AsyncEngine) -> None:
        await engine.steering.pause()
        late = asyncio.create_task(collect(engine, "late"))
        await asyncio.sleep(0.1)
        child = engine._child.process
        os.kill(child.pid, signal.SIGKILL)
        while engine._child.process is child or not engine._life.is_up:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert await steps_of(engine) == 0 and not late.done()
        await engine.steering.resume()
        assert (await late)[1] == "length"

    run(test)


def test_the_prefix_cache_is_forgotten_also_of_blocks_in_use() -> None:
    async def test(engine: AsyncEngine) -> None:
        async def cached() -> int:
            asked = engine.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True), "ask")
            return [output.num_cached_tokens async for output in asked][-1]

        assert await cached() == 0 and (full := await cached()) > 0
        held = (await engine.stats()).kv_blocks_cached
        assert await engine.steering.reset_prefix_cache() == {"blocks_dropped": held, "blocks_in_use": 0} and held > 0
        assert await cached() == 0 and await cached() == full
        stream = engine.generate(PROMPT, LONG, "uses them")
        await anext(stream)
        await engine.steering.pause()
        facts = await engine.steering.reset_prefix_cache()
        assert facts["blocks_in_use"] == (await engine.stats()).kv_blocks_used > 0
        await engine.steering.resume()
        assert await cached() == 0  # of blocks that a request still holds
        await stream.aclose()

    run(test)


def test_requests_can_be_computed_again_after_a_reset() -> None:
    async def test(engine: AsyncEngine) -> None:
        alone = await collect(engine, "alone", params=SOME)
        task = await begun(engine, "running")
        assert (await engine.steering.reset_prefix_cache(reset_running_requests=True))["blocks_in_use"] == 0
        assert await task == alone and (await engine.stats()).preemptions == 1

    run(test)


def test_a_profile_has_every_step_and_the_functions(tmp_path: Path) -> None:
    async def test(engine: AsyncEngine) -> None:
        await collect(engine, "before")
        with pytest.raises(Conflict, match="no profile is being recorded"):
            await engine.steering.stop_profile()
        await engine.steering.start_profile(str(tmp_path / "new"))
        with pytest.raises(Conflict, match="already"):
            await engine.steering.start_profile(str(tmp_path))
        before = await steps_of(engine)
        await asyncio.gather(*(collect(engine, f"r{index}") for index in range(3)))
        taken = await steps_of(engine) - before
        found = await engine.steering.stop_profile()
        trace, functions = (Path(name) for name in found["files"])
        assert trace.parent == functions.parent == tmp_path / "new" and found["steps"] == taken > 0
        text = trace.read_text()
        assert "hello" not in text
        events = [one for one in json.loads(text)["traceEvents"] if one["ph"] == "X"]
        counts = Counter(one["name"] for one in events)
        assert counts["add"] == 3 and counts["collect"] == counts["update"] == counts["submit"] == taken
        steps = [one for one in events if one["name"] == "step"]
        parts = [one for one in events if one["name"] in ("collect", "update")]
        for part in parts:  # each inside a step
            assert any(step["ts"] <= part["ts"] and part["ts"] + part["dur"] <= step["ts"] + step["dur"] for step in steps)
        shapes = [one["args"] for one in events if one["name"] == "schedule" and "args" in one]
        assert sum(one["tokens"] for one in shapes) >= 3 * 9 and all(one["rows"] >= 1 for one in shapes)
        called = {name for _, _, name in pstats.Stats(str(functions)).stats}  # type: ignore[attr-defined]
        assert {"update", "collect"} <= called
        await collect(engine, "after")
        assert (await engine.steering.start_profile(str(tmp_path))) == {}
        last = await engine.steering.stop_profile()
        assert last["steps"] == 0 and last["files"] != found["files"]

    run(test)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    async def test(engine: AsyncEngine) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(RequestFailed, match="start_profile"):
            await engine.steering.start_profile(str(tmp_path / "file"))
        await engine.steering.start_profile(str(tmp_path))
        await engine.steering.stop_profile()

    run(test)
