"""/v1/files and /v1/batches with the openai package, over an engine that a test steers; crashes on a live server."""

from __future__ import annotations

import asyncio
import io
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fake_engine import FakeEngine
from processes import HANG_S, llmx, serve, until
from tests.cases.echo import install

from llmx.config import EngineConfig, SchedulerConfig, ServerConfig
from llmx.errors import ConfigError, EngineDead, QueueFull
from llmx_server import create_app
from llmx_server.batch_lines import finished_lines, read_lines
from llmx_server.caller import Caller
from llmx_server.file_store import FileStore

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"


def line(number: int, text: str = "hi", url: str = CHAT, **body: Any) -> dict[str, Any]:
    given = {"input": text} if url == "/v1/responses" else {"prompt": text} if url == "/v1/completions" else {"messages": [{"role": "user", "content": text}]}
    return {"custom_id": f"r{number}", "method": "POST", "url": url, "body": {**given, **body}}


def jsonl(*lines: Any) -> bytes:
    return b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines)


def engine_of(**fields: Any) -> FakeEngine:
    engine = FakeEngine(**fields)
    engine.info.max_model_len = 4096
    return engine


@asynccontextmanager
async def server(folder: Path, engine: FakeEngine, **options: Any) -> AsyncIterator[tuple[openai.AsyncOpenAI, Any]]:
    config = EngineConfig(scheduler=SchedulerConfig(max_num_seqs=8), server=ServerConfig(files_dir=str(folder), **options))
    app = create_app(engine, config)  # type: ignore[arg-type]
    app.state.batches.start()
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app=app, raise_app_exceptions=False), base_url="http://test")
    try:
        async with openai.AsyncOpenAI(base_url="http://test/v1", api_key=(options.get("api_keys") or ["none"])[0], max_retries=0, http_client=http) as client:
            yield client, app
    finally:
        await app.state.batches.close()


async def begun(client: openai.AsyncOpenAI, data: bytes, endpoint: str = CHAT, **fields: Any) -> Any:
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **fields)  # type: ignore[arg-type]


async def ended(client: openai.AsyncOpenAI, batch_id: str, done: Callable[[Any], bool] = lambda batch: bool(batch.status in ("completed", "failed"))) -> Any:
    for _ in range(HANG_S * 5):
        batch = await client.batches.retrieve(batch_id)
        if done(batch):
            return batch
        await asyncio.sleep(0.01)
    raise AssertionError(f"it is {batch.status}")


async def lines_of(client: openai.AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id
    text = (await client.files.content(file_id)).text
    return {one["custom_id"]: one for one in map(json.loads, text.splitlines())}


@pytest.mark.parametrize("endpoint", [CHAT, "/v1/completions", "/v1/responses"])
async def test_a_batch_gives_what_requests_give(tmp_path: Path, endpoint: str) -> None:
    async with server(tmp_path, engine_of(answer=lambda ids: f"{len(ids)} bytes"), api_keys=("secret",)) as (client, _):
        data = jsonl(*(line(number, "x" * (number + 1), endpoint, temperature=0) for number in range(5)))
        batch = await begun(client, data, endpoint, metadata={"k": "v"})
        assert (batch.status, batch.object, batch.completion_window, batch.metadata) == ("validating", "batch", "24h", {"k": "v"})
        batch = await ended(client, batch.id)
        assert batch.status == "completed" and batch.error_file_id is None and batch.errors is None
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (5, 5, 0)
        found = await lines_of(client, batch.output_file_id)
        assert set(found) == {f"r{number}" for number in range(5)} and all(one["error"] is None for one in found.values())
        answers = [found[f"r{number}"]["response"] for number in range(5)]
        assert all(one["status_code"] == 200 and one["request_id"] for one in answers)
        direct = await client.post(endpoint.removeprefix("/v1"), body=line(3, "xxxx", endpoint, temperature=0)["body"], cast_to=object)
        key = {CHAT: "choices", "/v1/completions": "choices"}.get(endpoint)
        assert answers[3]["body"]["usage"] == direct["usage"] and (key is None or answers[3]["body"][key] == direct[key])  # type: ignore[index]
        used = [one["body"]["usage"] for one in answers]
        assert batch.usage.output_tokens == sum(one.get("completion_tokens", one.get("output_tokens")) for one in used)
        assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at < batch.expires_at


async def test_no_line_ends_the_batch(tmp_path: Path) -> None:
    """Each kind of bad line has its own line in the file of errors; the others are answered."""
    bad = [
        b"{not json", b"[1, 2]", {"custom_id": "", "method": "POST", "url": CHAT, "body": {}}, {**line(5), "method": "GET"}, line(6, url="/v1/completions"),
        {**line(7), "body": "text"}, line(8, stream=True), line(0), line(9, temperature=9), line(10, model="other"), line(11, "y" * 5000),
        b'{"custom_id": "deep", "url": "' + CHAT.encode() + b'", "body": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    ]  # fmt: skip
    async with server(tmp_path, engine_of()) as (client, _):
        batch = await ended(client, (await begun(client, jsonl(line(0), *bad, b"", line(1)))).id)
        assert batch.status == "completed" and (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (14, 2, 12)
        assert set(await lines_of(client, batch.output_file_id)) == {"r0", "r1"}
        text = (await client.files.content(batch.error_file_id)).text
        told = sorted(map(json.loads, text.splitlines()), key=lambda one: int(one["id"].rsplit("_", 1)[1]))
        codes = [one["error"]["code"] if one["error"] else one["response"]["status_code"] for one in told]
        kinds = ["invalid_json_line", "invalid_json_line", "missing_custom_id", "invalid_method", "invalid_url", "invalid_body", "invalid_body"]
        assert codes == [*kinds, "duplicate_custom_id", 400, 404, 400, "invalid_json_line"]
        assert told[8]["response"]["body"]["error"]["param"] == "temperature" and "line 2" in told[0]["error"]["message"]


async def test_a_full_queue_and_a_dead_engine_are_waited_for(tmp_path: Path) -> None:
    engine = engine_of(fail_at=0, error=QueueFull("the queue is full (--max-num-queued-reqs)", retry_after_s=0))
    async with server(tmp_path, engine) as (client, _):
        batch = await begun(client, jsonl(line(0), line(1)))
        await asyncio.sleep(0.1)
        assert (await client.batches.retrieve(batch.id)).request_counts.failed == 0 and len(engine.started_ids) > 4
        engine.fail_at = None
        assert (await ended(client, batch.id)).request_counts.completed == 2


async def test_a_line_that_kills_the_engine_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmx_server.errors.RETRY_AFTER_S", 0)
    engine = engine_of(fail_at=0, error=EngineDead("the engine process ended with signal 11"))
    async with server(tmp_path, engine) as (client, _):
        batch = await ended(client, (await begun(client, jsonl(line(0)))).id)
        assert batch.request_counts.failed == 1 and len(engine.started_ids) == 3
        assert (await lines_of(client, batch.error_file_id))["r0"]["response"]["status_code"] == 503


async def test_cancel_keeps_what_is_answered(tmp_path: Path) -> None:
    engine = engine_of()
    async with server(tmp_path, engine) as (client, _):
        batch = await begun(client, jsonl(*(line(number) for number in range(3))))
        await ended(client, batch.id, lambda one: one.request_counts.completed == 3)
        engine.gate = asyncio.Event()
        batch = await begun(client, jsonl(*(line(number) for number in range(200))))
        waiting = await begun(client, jsonl(line(0)))
        until_running = asyncio.create_task(ended(client, batch.id, lambda one: one.status == "in_progress"))
        await until_running
        while not engine.running:
            await asyncio.sleep(0.01)
        engine.gate.set()
        await ended(client, batch.id, lambda one: one.request_counts.completed > 0)
        engine.gate.clear()
        with pytest.raises(openai.BadRequestError, match="cancel that batch first"):
            await client.files.delete(batch.input_file_id)
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        batch = await ended(client, batch.id, lambda one: one.status == "cancelled")
        assert batch.request_counts.completed < 200 and len(await lines_of(client, batch.output_file_id)) == batch.request_counts.completed
        engine.gate.set()
        assert (await ended(client, waiting.id)).status == "completed"  # the next one runs
        with pytest.raises(openai.BadRequestError, match="only one that has not ended"):
            await client.batches.cancel(batch.id)
        assert [one.id async for one in client.batches.list(limit=1)][:2] == [waiting.id, batch.id] and len((await client.batches.list()).data) == 3


async def test_one_that_waits_is_cancelled_at_once(tmp_path: Path) -> None:
    engine = engine_of(gate=asyncio.Event())
    async with server(tmp_path, engine) as (client, _):
        first, second = await begun(client, jsonl(line(0))), await begun(client, jsonl(line(0)))
        await ended(client, first.id, lambda one: one.status == "in_progress")
        cancelled = await client.batches.cancel(second.id)
        assert (cancelled.status, cancelled.output_file_id, cancelled.error_file_id) == ("cancelled", None, None)
        engine.gate.set()  # type: ignore[union-attr]
        assert (await ended(client, first.id)).status == "completed"


async def test_what_broke_off_goes_on(tmp_path: Path) -> None:
    """Closed in the middle, with half a line at the end of what was written: each line has one outcome at the end."""
    engine = engine_of(gate=asyncio.Event())
    async with server(tmp_path, engine) as (client, app):
        batch = await begun(client, jsonl(*(line(number) for number in range(40)), b"no json"))
        await ended(client, batch.id, lambda one: one.request_counts.failed == 1 or one.request_counts.completed > 0 or bool(engine.running))
        engine.gate.set()  # type: ignore[union-attr]
        await ended(client, batch.id, lambda one: one.request_counts.completed >= 5)
        app.state.models.host.phase = "draining"
        await app.state.batches.close()
    answers = next(tmp_path.glob("batches/*.answers"))
    kept = answers.read_bytes().count(b"\n")
    with answers.open("ab") as file:
        file.write(b'{"id":"batch_req_0_41","custom_id":"r')
    again = engine_of()
    async with server(tmp_path, again) as (client, _):
        batch = await ended(client, batch.id)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 40, 1)
        assert len(again.started_ids) == 40 - kept
        assert set(await lines_of(client, batch.output_file_id)) == {f"r{number}" for number in range(40)}
        assert batch.usage.output_tokens == 40 * 12  # those of before the break are counted too
        assert not list(tmp_path.glob("batches/*.answers")) and not list(tmp_path.glob("batches/*.errors"))


async def test_the_window_ends(tmp_path: Path) -> None:
    engine = engine_of(gate=asyncio.Event())
    async with server(tmp_path, engine) as (client, app):
        batches = app.state.batches
        batches.files.clock = lambda: 1_000_000.0
        batch = await begun(client, jsonl(line(0), line(1)))
        batches.get(batch.id, Caller())["expires_at"] = 1_000_000
        batch = await ended(client, batch.id, lambda one: one.status == "expired")
        told = await lines_of(client, batch.error_file_id)
        assert [told[name]["error"]["code"] for name in ("r0", "r1")] == ["batch_expired"] * 2 and batch.request_counts.failed == 2


async def test_files(tmp_path: Path) -> None:
    async with server(tmp_path, engine_of(), files_max_bytes=2000) as (client, app):
        ids = [(await client.files.create(file=(f"{number}.jsonl", b"x" * 10), purpose="batch")).id for number in range(3)]
        shown = await client.files.retrieve(ids[1])
        assert (shown.bytes, shown.filename, shown.purpose, shown.object, shown.status) == (10, "1.jsonl", "batch", "file", "processed")
        assert [one.id async for one in client.files.list(limit=2, order="asc")] == [one["id"] for one in app.state.batches.files.all(Caller())]
        assert (await client.files.content(ids[0])).content == b"x" * 10
        assert (await client.files.delete(ids[0])).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(ids[0])
        with pytest.raises(openai.BadRequestError, match="batches only"):
            await client.files.create(file=b"x", purpose="fine-tune")
        with pytest.raises(openai.APIStatusError, match="files-max-bytes") as full:
            await client.files.create(file=("big", b"x" * 3000), purpose="batch")
        assert full.value.status_code == 507
        lived = await client.files.create(file=("short", b"x"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600})
        assert lived.expires_at == lived.created_at + 3600
        app.state.batches.files.clock = lambda: lived.created_at + 3601.0
        assert lived.id not in [one.id async for one in client.files.list()]
        http = client._client
        for sent in ({"json": {}}, {"data": {"purpose": "batch"}}, {"files": {"other": io.BytesIO(b"x")}, "data": {"purpose": "batch"}}):
            assert (await http.post("/v1/files", **sent)).status_code == 400  # type: ignore[arg-type]
        assert (await http.get("/v1/files/..%2F..%2Flock/content")).status_code == 404


async def test_uploads_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmx_server.routes.files.MAX_FILE_BYTES", 1000)
    async with server(tmp_path, engine_of()) as (client, _):

        async def endless() -> AsyncIterator[bytes]:
            yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
            while True:
                yield b"x" * 10_000

        answer = await client._client.post("/v1/files", content=endless(), headers={"content-type": "multipart/form-data; boundary=b"})
        assert answer.status_code == 413 and answer.json()["error"]["code"] == "body_too_large"
        with pytest.raises(openai.APIStatusError) as caught:
            await client.files.create(file=("f", b"x" * 1001), purpose="batch")
        assert caught.value.status_code == 413


async def test_what_cannot_be_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmx_server.batches.MAX_LINES", 3)
    async with server(tmp_path, engine_of()) as (client, _):
        for data, code in ((b"\n\n", "empty_file"), (jsonl(*map(line, range(4))), "too_many_requests")):
            batch = await ended(client, (await begun(client, data)).id)
            assert batch.status == "failed" and batch.errors.data[0].code == code and batch.failed_at
        for fields in ({"endpoint": "/v1/images/edits"}, {"completion_window": "1h"}, {"metadata": {"k": "v" * 600}}):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.batches.create(**{"input_file_id": "file-x", "endpoint": CHAT, "completion_window": "24h", **fields})  # type: ignore[arg-type]
            assert caught.value.param == next(iter(fields))
        with pytest.raises(openai.NotFoundError) as missing:
            await client.batches.create(input_file_id="file-x", endpoint=CHAT, completion_window="24h")  # type: ignore[arg-type]
        assert missing.value.param == "input_file_id"


async def test_off_by_default(client: httpx.AsyncClient) -> None:
    for path in ("/v1/files", "/v1/batches", "/v1/batches/b"):
        answer = await client.get(path)
        assert answer.status_code == 404 and "--files-dir" in answer.json()["error"]["message"]


def test_one_server_per_folder(tmp_path: Path) -> None:
    first = FileStore(str(tmp_path), 1000)
    with pytest.raises(ConfigError, match="another server uses"):
        FileStore(str(tmp_path), 1000)
    first.close()
    FileStore(str(tmp_path), 1000).close()
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot be used"):
        FileStore(str(tmp_path / "file"), 1000)


def test_an_upload_that_broke_off_is_removed(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path), 1000)
    kept = store.upload(io.BytesIO(b"x"), "f", "batch", None)
    (tmp_path / "files/file-half.data").write_bytes(b"half")
    store.close()
    store = FileStore(str(tmp_path), 1000)
    assert [one["id"] for one in store.all(Caller())] == [kept["id"]] and store.size == 1
    assert not (tmp_path / "files/file-half.data").exists()
    store.close()


def test_a_line_that_is_too_long_is_skipped_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmx_server.batch_lines.MAX_BODY_BYTES", 300)
    found = list(read_lines(io.BytesIO(jsonl(line(0), line(1, "x" * 1000), line(2))), CHAT))
    assert [one.fault and one.fault[0] for one in found] == [None, "line_too_long", None] and found[2].custom_id == "r2"
    assert finished_lines(io.BytesIO(b"")) == (set(), [])


def test_a_killed_server_loses_nothing(tmp_path: Path) -> None:
    """kill -9 in the middle of a batch, which the next server ends; a second one on the folder is refused meanwhile."""
    environ = install(tmp_path)
    folder = tmp_path / "files"
    arguments = ("--platform", "echo", "--max-model-len", "512", "--num-blocks", "80", "--max-num-seqs", "2", "--files-dir", str(folder))
    data = jsonl(*(line(number, f"say {number} " * 6, temperature=0, max_tokens=20) for number in range(12)))
    with serve(*arguments, environ=environ) as running, openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", timeout=HANG_S) as client:
        second = llmx("serve", "--port", "0", *arguments, environ=environ)
        assert second.returncode == 2 and "another server uses" in second.stderr and str(running.process.pid) in second.stderr
        file = client.files.create(file=("in.jsonl", data), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        until(lambda: client.batches.retrieve(batch.id).request_counts.completed >= 3)  # type: ignore[union-attr]
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
    before = next(folder.glob("batches/*.answers")).read_bytes().count(b"\n")
    assert 3 <= before < 12
    with serve(*arguments, environ=environ) as running, openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", timeout=HANG_S) as client:
        until(lambda: client.batches.retrieve(batch.id).status == "completed")
        done = client.batches.retrieve(batch.id)
        told = [json.loads(one) for one in client.files.content(str(done.output_file_id)).text.splitlines()]
    assert len(told) == 12 and {one["custom_id"] for one in told} == {f"r{number}" for number in range(12)}
    for one in told:
        assert one["response"]["body"]["choices"][0]["message"]["content"].startswith(f"say {one['custom_id'][1:]} ")
