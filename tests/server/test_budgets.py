"""Token budgets of keys: counted to the token, kept over restarts and crashes of the disk, told to clients as OpenAI tells them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fake_engine import FakeEngine
from in_process import serving
from processes import HANG_S, llmx, serve
from tests.cases.echo import install

from llmx.errors import ConfigError
from llmx_server.budgets import Budget, Ledger
from llmx_server.errors import QuotaExceeded
from llmx_server.keys import new_key
from llmx_server.limits import Limits, Meter

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 12, 31, 23, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def usage(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "keys.usage.json").read_text()))


def test_periods_begin_anew(tmp_path: Path) -> None:
    clock = Clock()
    ledger = Ledger(tmp_path / "keys", clock)
    day, month, ever = (Meter(name, Limits(budget=Budget(100, name)), ledger=ledger) for name in ("day", "month", "total"))  # type: ignore[arg-type]
    for meter in (day, month, ever):
        meter.admit(60)
        meter.admit(1)  # something is left: the last one let in may take more
        meter.used(70)
        with pytest.raises(QuotaExceeded, match="100 tokens") as refused:
            meter.check()
        assert refused.value.retry_after_s == (None if meter is ever else 3601)
    assert day.headers() == {
        "x-ratelimit-limit-budget-tokens": "100", "x-ratelimit-remaining-budget-tokens": "0", "x-ratelimit-reset-budget-tokens": "3601s",
    }  # fmt: skip
    ledger.save()
    clock.now = datetime(2027, 1, 1, 0, 0, 1, tzinfo=UTC)
    day.admit(5)
    month.check()
    with pytest.raises(QuotaExceeded, match="in all"):
        ever.check()
    assert day.headers()["x-ratelimit-remaining-budget-tokens"] == "95" and month.headers()["x-ratelimit-reset-budget-tokens"] == f"{31 * 86400}s"
    ledger.save()
    assert usage(tmp_path) == {
        "version": 1,
        "used": {"day": {"period": "2027-01-01", "tokens": 5}, "month": {"period": "2026-12", "tokens": 131}, "total": {"period": "total", "tokens": 131}},
    }


def test_what_is_given_back_counts_in_the_file_too(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "keys")
    meter = Meter("a", Limits(budget=Budget(100)), ledger=ledger)
    meter.admit(40)
    ledger.save()
    meter.used(-30)
    assert meter.headers()["x-ratelimit-remaining-budget-tokens"] == "90"
    ledger.save()
    assert usage(tmp_path)["used"]["a"]["tokens"] == 10


def test_servers_that_share_a_file_count_together(tmp_path: Path) -> None:
    clock = Clock()
    one = [Ledger(tmp_path / "keys", clock) for _ in "ab"]
    first, second = (Meter("a", Limits(budget=Budget(100, "day")), ledger=ledger) for ledger in one)
    first.admit(30)
    second.admit(50)
    for ledger in (*one, one[0]):
        ledger.save()
    assert usage(tmp_path)["used"]["a"]["tokens"] == 80
    first.admit(20)
    with pytest.raises(QuotaExceeded):
        first.check()
    one[0].save()
    clock.now = datetime(2027, 1, 1, 1, 0, tzinfo=UTC)
    first.admit(7)
    one[0].save()
    clock.now = datetime(2026, 12, 31, 23, 30, tzinfo=UTC)  # a machine whose clock is behind
    second.admit(9)
    one[1].save()
    assert usage(tmp_path)["used"]["a"] == {"period": "2027-01-01", "tokens": 7}


@pytest.mark.parametrize("text", ["{", '{"version": 2, "used": {}}', '{"version": 1, "used": {"a": 5}}'])
def test_a_file_that_cannot_be_read_is_not_overwritten(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys.usage.json").write_text(text)
    with pytest.raises(ConfigError, match="keys.usage.json"):
        Ledger(tmp_path / "keys")
    assert (tmp_path / "keys.usage.json").read_text() == text


def test_a_disk_that_fails_later_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "keys")
    ledger.check_writable()
    meter = Meter("a", Limits(budget=Budget(100)), ledger=ledger)

    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("llmx_server.budgets.save_json", full)
        meter.admit(40)
        ledger.save()
        assert "No space left" in caplog.text and meter.headers()["x-ratelimit-remaining-budget-tokens"] == "60"
        with pytest.raises(ConfigError, match="folder that the server may write"):
            ledger.check_writable()
    ledger.save()
    assert usage(tmp_path)["used"]["a"]["tokens"] == 40


@asynccontextmanager
async def budgeted(engine: FakeEngine, folder: Path, tokens: int, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client that shows a key with this budget a day; the file stays for a second server."""
    secret = folder / "secret"
    if not secret.exists():
        key, line = new_key("ann", ("generate", "embed"), Limits(budget=Budget(tokens, "day")))
        secret.write_text(key)
        (folder / "keys").write_text(f"{line}\n")
    async with serving(engine, api_key_file=str(folder / "keys"), **options) as client:
        client.headers["authorization"] = f"Bearer {secret.read_text()}"
        yield client


def left(answer: httpx.Response) -> int:
    return int(answer.headers["x-ratelimit-remaining-budget-tokens"])


async def test_a_used_up_budget_is_told_as_openai_tells_it(engine: FakeEngine, tmp_path: Path) -> None:
    ask = {"prompt": "abc", "max_tokens": 4}
    async with budgeted(engine, tmp_path, 10) as client:
        first = await client.post("/v1/completions", json=ask)
        assert first.json()["usage"]["total_tokens"] == 7 and left(await client.get("/v1/models")) == 3
        assert (await client.post("/v1/completions", json={**ask, "stream": True})).status_code == 200  # 3 are left
        refused = await client.post("/v1/completions", json=ask)
        error = refused.json()["error"]
        assert (refused.status_code, error["type"], error["code"], left(refused)) == (429, "insufficient_quota", "insufficient_quota", 0)
        assert 1 <= int(refused.headers["retry-after"]) <= 86400 and refused.headers["x-should-retry"] == "false"
        assert (await client.post("/v1/messages", json={"messages": [{"role": "user", "content": "a"}], "max_tokens": 4})).status_code == 429
        assert 'reason="insufficient_quota"} 2.0' in (await client.get("/metrics")).text
        key = client.headers["authorization"].removeprefix("Bearer ")
        async with openai.AsyncOpenAI(base_url="http://t/v1", api_key=key, http_client=client) as user:  # with its usual retries
            begun = len(engine.started_ids)
            with pytest.raises(openai.RateLimitError) as raised:
                await user.completions.create(model="fake-model", prompt="abc")
            assert raised.value.code == "insufficient_quota" and len(engine.started_ids) == begun


async def test_a_restart_keeps_what_was_used(engine: FakeEngine, tmp_path: Path) -> None:
    async with budgeted(engine, tmp_path, 100) as client:
        await client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 4})
        client.app.state.callers.save()  # type: ignore[attr-defined]
    assert usage(tmp_path)["used"]["ann"]["tokens"] == 7
    async with budgeted(engine, tmp_path, 100) as client:
        assert left(await client.get("/v1/models")) == 93
        await client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 4})
        async with asyncio.timeout(HANG_S):  # and by itself, without an end
            while usage(tmp_path)["used"]["ann"]["tokens"] != 14:
                await asyncio.sleep(0.05)


async def test_lines_of_a_batch_fail_when_nothing_is_left(engine: FakeEngine, tmp_path: Path) -> None:
    async with budgeted(engine, tmp_path, 10, files_dir=str(tmp_path / "kept")) as client:
        lines = [{"custom_id": f"r{at}", "method": "POST", "url": "/v1/completions", "body": {"prompt": "abc", "max_tokens": 4}} for at in range(80)]
        data = "\n".join(map(json.dumps, lines)).encode()
        file = (await client.post("/v1/files", files={"file": ("in.jsonl", data)}, data={"purpose": "batch"})).json()["id"]
        made = (await client.post("/v1/batches", json={"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"})).json()
        try:
            async with asyncio.timeout(HANG_S):
                while (batch := (await client.get(f"/v1/batches/{made['id']}")).json())["status"] != "completed":
                    await asyncio.sleep(0.02)
            counts = batch["request_counts"]
            assert counts["failed"] > 0 and 0 < counts["completed"] <= 64 and counts["failed"] + counts["completed"] == 80
            errors = (await client.get(f"/v1/files/{batch['error_file_id']}/content")).text.splitlines()
            assert json.loads(errors[0])["response"]["body"]["error"]["code"] == "insufficient_quota"
        finally:
            await client.app.state.batches.close()  # type: ignore[attr-defined]


def test_on_a_server_that_is_ended(tmp_path: Path) -> None:
    """The command line makes the key; what was used is written when the server ends, and the next one knows it."""
    file = str(tmp_path / "keys")
    key = llmx("key", "ann", "--budget-tokens", "30", "--file", file).stdout.split()[1]
    options = ("--platform", "echo", "--max-model-len", "64", "--num-blocks", "40", "--api-key-file", file)
    headers = {"authorization": f"Bearer {key}"}
    ask = {"prompt": "one two three four five", "max_tokens": 4}
    used, environ = 0, install(tmp_path)
    for _ in range(2):
        with serve("smollm2-135m-instruct", *options, environ=environ) as running:
            answer = httpx.post(f"{running.url}/v1/completions", json=ask, headers=headers, timeout=HANG_S)
            used += answer.json()["usage"]["total_tokens"]
            after = httpx.get(f"{running.url}/v1/models", headers=headers, timeout=HANG_S)
            assert left(after) == 30 - used and "x-ratelimit-reset-budget-tokens" not in after.headers
            running.process.terminate()
            assert running.end()[0] == 0
        assert llmx("key", "list", "--file", file).stdout.splitlines()[1].split()[-2:] == ["30/total", str(used)]
