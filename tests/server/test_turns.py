"""Turns are fair between owners, and batches of different keys run side by side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from in_process import http_of
from processes import HANG_S

from llmx.config import EngineConfig, SchedulerConfig, ServerConfig
from llmx_server import create_app
from llmx_server.keys import new_key
from llmx_server.limits import Limits
from llmx_server.turns import Turn, Turns

pytestmark = pytest.mark.anyio


async def turn_of(turns: Turns, owner: str, began: list[str]) -> Turn:
    turn = Turn(turns, owner)
    await turn.take()
    began.append(owner)
    return turn


async def test_a_free_place_goes_to_who_has_the_fewest() -> None:
    turns, began = Turns(3), list[str]()
    first = [await turn_of(turns, "a", began) for _ in range(3)]
    waiting = [asyncio.create_task(turn_of(turns, owner, began)) for owner in "aabbcc"]
    await asyncio.sleep(0)
    for turn in first:
        turn.end()
        turn.end()  # once is enough
        await asyncio.sleep(0)
    assert sorted(began[3:]) == ["a", "b", "c"]  # one place each
    (await waiting[2]).end()
    (await waiting[4]).end()
    await asyncio.sleep(0)
    assert sorted(began[6:]) == ["b", "c"]
    for index in (3, 5, 0):
        (await waiting[index]).end()
    assert (await waiting[1]) is not None and len(began) == 9


async def test_who_leaves_the_queue_loses_no_place() -> None:
    turns, began = Turns(1), list[str]()
    first = await turn_of(turns, "a", began)
    gone, given, last = (asyncio.create_task(turn_of(turns, owner, began)) for owner in "bcd")
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    first.end()
    given.cancel()  # in the moment in which it got its place
    await asyncio.gather(gone, given, return_exceptions=True)
    assert await asyncio.wait_for(last, HANG_S) is not None and began == ["a", "d"]


@asynccontextmanager
async def two_keys(engine: FakeEngine, folder: Path, limits: Limits) -> AsyncIterator[tuple[httpx.AsyncClient, dict[str, dict[str, str]], Any]]:
    """(client, headers by name, batches): ann has the limits, ben has none; two lines run at once."""
    made = {"ann": new_key("ann", ("generate", "embed"), limits), "ben": new_key("ben", ("generate", "embed"))}
    (folder / "keys").write_text("".join(f"{line}\n" for _, line in made.values()))
    server = ServerConfig(files_dir=str(folder / "kept"), api_key_file=str(folder / "keys"))
    app = create_app(engine, EngineConfig(scheduler=SchedulerConfig(max_num_seqs=4), server=server))  # type: ignore[arg-type]
    async with http_of(app) as client:
        try:
            yield client, {name: {"authorization": f"Bearer {key}"} for name, (key, _) in made.items()}, app.state.batches
        finally:
            await app.state.batches.close()


async def begin(client: httpx.AsyncClient, headers: dict[str, str], lines: int) -> str:
    requests = [{"custom_id": f"r{at}", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 1}} for at in range(lines)]
    data = "\n".join(map(json.dumps, requests)).encode()
    file = (await client.post("/v1/files", files={"file": ("in.jsonl", data)}, data={"purpose": "batch"}, headers=headers)).json()["id"]
    body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    return str((await client.post("/v1/batches", json=body, headers=headers)).json()["id"])


async def until(client: httpx.AsyncClient, headers: dict[str, str], name: str, completed: int) -> dict[str, Any]:
    for _ in range(HANG_S * 50):
        batch = (await client.get(f"/v1/batches/{name}", headers=headers)).json()
        if batch["request_counts"]["completed"] >= completed:
            return dict(batch)
        await asyncio.sleep(0.01)
    raise AssertionError(batch)


async def test_a_key_at_its_limit_holds_nobody_up(engine: FakeEngine, tmp_path: Path) -> None:
    async with two_keys(engine, tmp_path, Limits(rpm=2)) as (client, headers, _):
        limited = await begin(client, headers["ann"], 9)
        await until(client, headers["ann"], limited, 2)
        other = await begin(client, headers["ben"], 9)
        await until(client, headers["ben"], other, 9)
        assert (await until(client, headers["ann"], limited, 2))["request_counts"] == {"total": 9, "completed": 2, "failed": 0}
        assert "rate_limit_exceeded" not in (await client.get("/metrics", headers=headers["ben"])).text


async def test_a_long_batch_leaves_half_of_the_places_to_another_key(engine: FakeEngine, tmp_path: Path) -> None:
    engine.gate = asyncio.Event()
    async with two_keys(engine, tmp_path, Limits()) as (client, headers, _):
        long, second = await begin(client, headers["ann"], 200), await begin(client, headers["ann"], 1)
        while len(engine.running) < 2:
            await asyncio.sleep(0.01)
        other = await begin(client, headers["ben"], 20)
        engine.gate.set()
        await until(client, headers["ben"], other, 20)
        done = (await until(client, headers["ann"], long, 1))["request_counts"]["completed"]
        assert done < 100, "one place each: about as many lines of either"
        assert (await until(client, headers["ann"], second, 0))["status"] == "validating"  # a key's own come one after the other
        await until(client, headers["ann"], long, 200)
        await until(client, headers["ann"], second, 1)
