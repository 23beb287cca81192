"""chat_template in a request: refused by default; where it is allowed, rendered apart from the server, whatever it tries."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from in_process import serving
from processes import HANG_S

pytestmark = pytest.mark.anyio
OWN = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "return_prompt_text": True}
TOOL = {"type": "function", "function": {"name": "look", "description": "looks", "parameters": {"type": "object", "properties": {}}}}


@asynccontextmanager
async def trusting(engine: FakeEngine, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    engine.info.max_model_len = 4096
    async with serving(engine, trust_request_template=True, **options) as client:
        try:
            yield client
        finally:
            await client.app.state.models.host.templates.close()  # type: ignore[attr-defined]


async def chat(client: httpx.AsyncClient, template: str = OWN, **more: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json={**ASK, "chat_template": template, **more}, timeout=HANG_S)


async def test_it_is_refused_by_default(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    calls = {
        "/v1/chat/completions": ASK, "/v1/chat/completions/batch": {**ASK, "messages": [ASK["messages"]]}, "/tokenize": {"messages": ASK["messages"]},
        "/invocations": ASK,
    }  # fmt: skip
    for path, body in calls.items():
        refused = await client.post(path, json={**body, "chat_template": OWN})
        error = refused.json()["error"]
        assert refused.status_code == 400 and error["param"] == "chat_template" and "--trust-request-chat-template" in error["message"], path
    for path in ("/v1/messages", "/v1/messages/count_tokens"):  # which have no such field
        refused = await client.post(path, json={"messages": ASK["messages"], "max_tokens": 2, "chat_template": OWN})
        assert refused.status_code == 400 and "chat_template is no field of this route" in refused.json()["error"]["message"], path
    assert not engine.started_ids and (await client.post("/v1/chat/completions", json={**ASK, "chat_template": None})).status_code == 200


async def test_it_makes_the_prompt(engine: FakeEngine) -> None:
    async with trusting(engine, tool_parser="hermes") as client:
        answer = await chat(client)
        assert answer.status_code == 200, answer.text
        assert answer.json()["prompt_text"] == "<|start|><user>hi<assistant>" and "warning" not in answer.headers
        assert (await client.post("/v1/chat/completions", json=ASK)).json()["prompt_text"] == "user: hi\nassistant: "  # the model's own, as before
        given = await chat(client, "{{ mood }}{{ messages[0].content }}", chat_template_kwargs={"mood": "glad ", "depth": 3})
        assert given.json()["prompt_text"] == "glad hi" and "chat_template_kwargs.depth" in given.headers["warning"] and "mood" not in given.headers["warning"]
        tools = await chat(client, "{{ tools[0].function.name }}:{{ messages[0].content }}", tools=[TOOL])
        assert tools.status_code == 200, tools.text
        assert tools.json()["prompt_text"] == "look:hi"
        described = await chat(client, tools=[TOOL])  # it reads none: they are told in the system message
        assert described.json()["prompt_text"].startswith("<|start|><system>") and "look" in described.json()["prompt_text"]
        tokens = (await client.post("/tokenize", json={"messages": ASK["messages"], "chat_template": "x{{ messages[0].content }}"})).json()["tokens"]
        assert tokens == [*b"xhi"]
        undocumented = await chat(client, documents=[{"text": "x"}])
        assert undocumented.status_code == 400 and undocumented.json()["error"]["param"] == "documents"


WRONG = {
    "no jinja": ("{% for %}", "not valid jinja"),
    "its own words": ("{{ raise_exception('only one message, please') }}", "only one message, please"),
    "out of the sandbox": ("{{ messages.__class__.__mro__ }}", "__class__"),
    "turns": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "template"),
    "memory": ("{% set n = namespace(s='x' * 9999999) %}{% for a in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}", "MemoryError|longer"),
    "time in one expression": ("{% set s = 'ab' * 8000000 %}{% for a in range(9000) %}{% set t = (s | upper | title | reverse) %}{% endfor %}", "template"),
    "length": ("x" * 70_000, "65536"),
    "nesting": ("{{ " + "(" * 30_000 + "1" + ")" * 30_000 + " }}", "template"),
}


async def test_what_a_template_cannot_do(engine: FakeEngine) -> None:
    """And after each the next one is rendered, while the server answers others meanwhile."""
    async with trusting(engine) as client:
        for name, (template, text) in WRONG.items():
            task = asyncio.create_task(chat(client, template))
            turns = 0
            while not task.done():
                assert (await client.get("/health")).status_code == 200
                await asyncio.sleep(0.01)
                turns += 1
            refused = await task
            assert refused.status_code == 400 and refused.json()["error"]["param"] == "chat_template", (name, refused.text)
            assert re.search(text, refused.json()["error"]["message"]), (name, refused.text)
            assert (await chat(client)).json()["prompt_text"] == "<|start|><user>hi<assistant>", name
        assert not any("x" * 100 in one for one in engine.started_ids)


async def test_a_client_that_leaves_and_many_at_once(engine: FakeEngine) -> None:
    async with trusting(engine) as client:
        await chat(client)
        slow = asyncio.create_task(chat(client, WRONG["time in one expression"][0]))
        await asyncio.sleep(0.1)
        slow.cancel()
        answers = await asyncio.gather(*(chat(client, f"{number}{OWN}") for number in range(12)), slow, return_exceptions=True)
        assert [one.json()["prompt_text"].partition("<")[0] for one in answers[:12]] == [str(number) for number in range(12)]  # type: ignore[union-attr]


async def test_a_long_conversation_is_rendered_beside_the_others(engine: FakeEngine) -> None:
    """The model's own template, on a thread where it has much to do."""
    engine.info.max_model_len = 10**7
    begun, loop = asyncio.Event(), asyncio.get_running_loop()
    render = engine.chat_template.render

    def slow(*args: Any, **kwargs: Any) -> str:
        loop.call_soon_threadsafe(begun.set)
        assert asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(HANG_S) is None  # the loop goes on meanwhile
        return render(*args, **kwargs)

    engine.chat_template.render = slow  # type: ignore[method-assign]
    async with serving(engine) as client:
        answer = await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x" * 20_000}], "max_tokens": 2})
        assert answer.status_code == 200 and begun.is_set()
