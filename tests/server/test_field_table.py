"""The table of body fields against the request models, the behaviour of the routes, and docs/api-fields.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmx_server.protocol.api_fields import CHAT, COMPLETIONS, FIELDS, RESPONSES, ApiField, Route
from llmx_server.protocol.chat import ChatRequest
from llmx_server.protocol.completions import CompletionRequest
from llmx_server.protocol.responses import ResponsesRequest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/api-fields.md"
MODELS = {CHAT: ChatRequest, COMPLETIONS: CompletionRequest, RESPONSES: ResponsesRequest}
BODIES: dict[Route, dict[str, Any]] = {CHAT: {"messages": [{"role": "user", "content": "hi"}]}, COMPLETIONS: {"prompt": "hi"}, RESPONSES: {"input": "hi"}}
HEAD = """# Body fields

What `POST /v1/chat/completions`, `POST /v1/completions` and `POST /v1/responses` do with each field that clients of such servers send. This page is made from
[api_fields.py](../plugins/server/src/llmx_server/protocol/api_fields.py) by `python -m pytest tests/server/test_field_table.py --write-docs`.

- **works**: it does what the line says; a value out of range is a 400 that names the field, the value and the range.
- **refused**: a 400 that says what to do instead, unless the value asks for nothing.
- **ignored**: the answer is the same without it, and the response has a `Warning` header that says so. A field that is not in the
  table is ignored and named there as well.

`null` is the same as leaving a field out. Fields that OpenAI's API has mean here what they mean there.

| field | chat | completions | responses | what |
|---|---|---|---|---|
"""


def page() -> str:
    names = dict.fromkeys(field.name for field in FIELDS)
    lines = []
    for name in names:
        mine = {route: field for field in FIELDS if field.name == name for route in field.routes}
        what = " / ".join(dict.fromkeys(_what(field) for field in mine.values()))
        lines.append(f"| `{name}` | {' | '.join(_state(mine.get(route)) for route in MODELS)} | {what} |\n")
    return HEAD + "".join(lines)


def _state(field: ApiField | None) -> str:
    return field.state if field else "-"


def _what(field: ApiField) -> str:
    neutral = f" (taken without a word: {', '.join(f'`{json.dumps(value)}`' for value in field.neutral)})" if field.neutral else ""
    return field.what.replace("|", "\\|") + neutral


def said(answer: dict[str, Any]) -> Any:
    return answer["choices"] if "choices" in answer else [item["content"] for item in answer["output"]]


def cases(state: str) -> list[Any]:
    return [pytest.param(route, field, id=f"{field.name}-{route}") for field in FIELDS if field.state == state for route in field.routes]


def test_the_page_is_the_table(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--write-docs"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("route", MODELS)
def test_the_models_have_what_works_and_nothing_else(route: Route) -> None:
    works = {field.name for field in FIELDS if field.state == "works" and route in field.routes}
    assert set(MODELS[route].model_fields) == works


def test_each_field_stands_once_per_route() -> None:
    seen = [(route, field.name) for field in FIELDS for route in field.routes]
    assert len(seen) == len(set(seen)) and all(field.what for field in FIELDS)


@pytest.mark.anyio
@pytest.mark.parametrize(("route", "field"), cases("refused"))
async def test_refused_says_what_to_do(client: httpx.AsyncClient, route: Route, field: ApiField) -> None:
    response = await client.post(route, json={**BODIES[route], field.name: ["no such value"]})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == field.name and field.name in error["message"] and field.what in error["message"]
    for value in (None, *field.neutral):
        response = await client.post(route, json={**BODIES[route], field.name: value})
        assert response.status_code == 200 and "warning" not in response.headers, value


@pytest.mark.anyio
@pytest.mark.parametrize(("route", "field"), cases("ignored"))
async def test_ignored_says_so(client: httpx.AsyncClient, route: Route, field: ApiField) -> None:
    plain = (await client.post(route, json=BODIES[route])).json()
    response = await client.post(route, json={**BODIES[route], field.name: {"some": "value"}})
    assert response.status_code == 200 and said(response.json()) == said(plain)
    assert response.headers["warning"] == f'299 llmx "ignored: {field.name} ({field.what})"'
    for value in (None, *field.neutral):
        assert "warning" not in (await client.post(route, json={**BODIES[route], field.name: value})).headers
