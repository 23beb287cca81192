"""response_format and structured_outputs: what reaches the engine, and what is refused with which words."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

ROUTES = {"/v1/completions": {"prompt": "hi"}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]}}
CLOSED = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}}
TAG = {"type": "structural_tag", "structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<a>"]}


def schema(body: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "t", "schema": body, **more}}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("body", "form", "value"),
    [
        ({"response_format": {"type": "text"}}, None, None),
        ({"response_format": {"type": "text"}, "structured_outputs": {"choice": ["a"]}}, "choice", ("a",)),
        ({"response_format": {"type": "json_object"}}, "json_object", True),
        ({"response_format": schema(CLOSED, strict=True, description="d")}, "json", CLOSED),
        ({"response_format": schema(OPEN)}, "json", OPEN),
        ({"response_format": schema(OPEN, strict=False)}, "json", OPEN),
        ({"response_format": TAG}, "structural_tag", TAG),
        ({"structured_outputs": {}}, None, None),
        ({"structured_outputs": {"json": OPEN, "regex": None}}, "json", OPEN),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"grammar": "start: A"}}, "grammar", "start: A"),
        ({"structured_outputs": {"structural_tag": TAG}}, "structural_tag", TAG),
    ],
)
async def test_what_reaches_the_engine(client: httpx.AsyncClient, engine: FakeEngine, path: str, body: Any, form: str | None, value: Any) -> None:
    response = await client.post(path, json={**ROUTES[path], **body})
    assert response.status_code == 200 and "warning" not in response.headers, response.text
    wanted = engine.params[0].structured_outputs
    if form is None:
        assert wanted is None
    else:
        assert wanted is not None and wanted.form == form
        given = getattr(wanted, form)
        assert (json.loads(given) if form in ("json", "structural_tag") else given) == value
        assert wanted.field_name in body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"response_format": {"type": "xml"}}, ("'xml'", "json_schema")),
        ({"response_format": {}}, ("type",)),
        ({"response_format": {"type": "json_object", "schema": {}}}, ("schema", "json_schema.schema")),
        ({"response_format": {"type": "json_schema"}}, ("name and schema",)),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "t"}}}, ("schema",)),
        ({"response_format": schema(OPEN, strict="yes")}, ("strict", "boolean")),
        ({"response_format": schema(OPEN, extra=1)}, ("extra",)),
        ({"response_format": schema(OPEN, strict=True)}, ("additionalProperties",)),
        ({"response_format": schema({**OPEN, "additionalProperties": False}, strict=True)}, ("require", "'a'")),
        ({"response_format": schema({"type": "array"}, strict=True)}, ("object",)),
        ({"response_format": schema({**CLOSED, "properties": {"a": OPEN}}, strict=True)}, ("#/properties/a",)),
        ({"response_format": schema(CLOSED), "structured_outputs": {"regex": "a"}}, ("both",)),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, ("exactly one", "regex, choice")),
        ({"structured_outputs": {"guided_json": {}}}, ("guided_json",)),
        ({"structured_outputs": {"disable_any_whitespace": True}}, ("exactly one",)),
        ({"structured_outputs": {"choice": "abc"}}, ("list",)),
        ({"structured_outputs": {"json": "{"}}, ("JSON",)),
    ],
)
async def test_what_is_refused(client: httpx.AsyncClient, engine: FakeEngine, body: Any, words: tuple[str, ...]) -> None:
    for path, base in ROUTES.items():
        for stream in (False, True):
            response = await client.post(path, json={**base, **body, "stream": stream})
            error = response.json()["error"]
            assert response.status_code == 400 and error["param"] in body, response.text
            assert all(word in error["message"] for word in words), error["message"]
    assert engine.params == []
