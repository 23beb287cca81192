"""Fields of both generation routes: limits, types, unsupported and unknown fields, bodies that are no sane JSON."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fake_engine import EOS, VOCAB, FakeEngine

from llmx_server.body import MAX_BODY_BYTES

pytestmark = pytest.mark.anyio

ROUTES = {"/v1/completions": {"prompt": "hi"}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]}}
JSON = {"content-type": "application/json"}


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> httpx.Response:
    return await client.post(path, json={**ROUTES[path], **body})


async def post_raw(client: httpx.AsyncClient, path: str, extra: str) -> httpx.Response:
    """The route's minimal body with raw JSON text added."""
    text = json.dumps(ROUTES[path])[:-1] + ", " + extra + "}"
    return await client.post(path, content=text.encode(), headers=JSON)


async def refused(client: httpx.AsyncClient, response: httpx.Response, field: str | None = None) -> str:
    """The message of a 400; afterwards the server must still answer."""
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    if field:
        assert error["param"] == field and field in error["message"]
    assert (await post(client, "/v1/completions")).status_code == 200
    return str(error["message"])


@pytest.mark.parametrize("path", ROUTES)
async def test_every_field_reaches_the_engine(client: httpx.AsyncClient, engine: FakeEngine, path: str) -> None:
    given = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "presence_penalty": 1.0, "frequency_penalty": -1, "repetition_penalty": 1.2,
        "seed": 42, "n": 2, "stop_token_ids": [1, 2], "ignore_eos": True, "min_tokens": 1, "max_tokens": 9,
        "include_stop_str_in_output": True, "skip_special_tokens": False, "allowed_token_ids": [5, 6], "bad_words": ["x"],
        "spaces_between_special_tokens": False, "truncate_prompt_tokens": 200, "truncation_side": "right",
    }  # fmt: skip
    response = await post(client, path, **given, stop=["a", "b"], logit_bias={"5": -100, "256": 1.5})
    assert response.status_code == 200 and "warning" not in response.headers
    (params,) = engine.params
    for name, value in given.items():
        assert getattr(params, name) == (tuple(value) if isinstance(value, list) else value), name
    assert params.stop == ("a", "b") and params.logit_bias == {5: -100, EOS: 1.5}


@pytest.mark.parametrize("path", ROUTES)
async def test_the_models_defaults_fill_what_is_left_out(client: httpx.AsyncClient, engine: FakeEngine, path: str) -> None:
    engine.sampling_defaults = {"temperature": 0.25, "top_k": 5}
    await post(client, path)
    await post(client, path, temperature=0.75)
    assert [(params.temperature, params.top_k) for params in engine.params] == [(0.25, 5), (0.75, 5)]


@pytest.mark.parametrize("path", ROUTES)
async def test_zero_is_a_value_and_null_is_none(client: httpx.AsyncClient, engine: FakeEngine, path: str) -> None:
    await post(client, path, temperature=0, top_k=0, min_p=0, presence_penalty=0, seed=0, min_tokens=0)
    assert engine.params[0].temperature == 0 and engine.params[0].seed == 0
    names = "stop logit_bias tools tool_choice response_format n seed user foo stream stream_options model temperature"
    response = await post(client, path, **dict.fromkeys(names.split()))
    assert response.status_code == 200 and "warning" not in response.headers
    assert engine.params[1].temperature == 1.0 and engine.params[1].n == 1


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", 2.1), ("temperature", "1"), ("temperature", True), ("temperature", [1]),
        ("top_p", 0), ("top_p", 1.1), ("top_p", -1), ("min_p", 1.5), ("min_p", -0.1),
        ("top_k", -2), ("top_k", 0.01), ("top_k", "5"),
        ("presence_penalty", 2.5), ("frequency_penalty", -2.5), ("repetition_penalty", 0), ("repetition_penalty", -1),
        ("n", 0), ("n", -1), ("n", 10**6), ("n", 1.5), ("n", "2"),
        ("seed", 2**63), ("seed", 1.5), ("min_tokens", -1), ("min_tokens", 10**30), ("max_tokens", "5"), ("max_tokens", 10**30), ("max_tokens", -1),
        ("stop", ""), ("stop", [""]), ("stop", ["a"] * 5), ("stop", 5), ("stop", [5]),
        ("stop_token_ids", [VOCAB]), ("stop_token_ids", [-1]), ("stop_token_ids", ["1"]), ("stop_token_ids", 3),
        ("allowed_token_ids", []), ("allowed_token_ids", [VOCAB]), ("logit_bias", {"1": 101}), ("logit_bias", {"1": "x"}), ("logit_bias", [1]),
        ("logit_bias", {str(VOCAB): 5}), ("logit_bias", {"-1": 5}), ("logit_bias", {"1e3": 5}), ("logit_bias", {"abc": 5}), ("logit_bias", {"": 5}),
        ("logit_bias", {"9" * 40: 5}), ("prompt_logprobs", 21), ("prompt_logprobs", -1), ("ignore_eos", "yes"), ("stream", "true"),
        ("stream_options", {"include_usage": True}), ("priority", 3), ("model", 5), ("skip_special_tokens", 1),
        ("bad_words", [""]), ("bad_words", "x"), ("bad_words", ["x"] * 129), ("truncate_prompt_tokens", 0), ("truncate_prompt_tokens", -2),
        ("truncation_side", "left"), ("truncation_side", "up"), ("stream_interval", 0), ("stream_interval", 1.5), ("request_id", ""), ("request_id", "a b"),
        ("request_id", "x" * 129), ("service_tier", "gold"), ("return_token_ids", 1), ("return_tokens_as_token_ids", "yes"), ("echo", "yes"),
        ("cache_salt", "x" * 129),
    ],
)  # fmt: skip
async def test_bad_value_is_named(client: httpx.AsyncClient, path: str, field: str, value: Any) -> None:
    await refused(client, await post(client, path, **{field: value}), field)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", '"NaN"', "1e999"])
async def test_numbers_that_are_none(client: httpx.AsyncClient, path: str, field: str, value: str) -> None:
    await refused(client, await post_raw(client, path, f'"{field}": {value}'), field)


async def test_nan_as_a_bias_and_huge_numbers(client: httpx.AsyncClient) -> None:
    await refused(client, await post_raw(client, "/v1/completions", '"logit_bias": {"1": NaN}'), "logit_bias")
    await refused(client, await post_raw(client, "/v1/completions", f'"seed": {"9" * 4000}'))
    await refused(client, await post_raw(client, "/v1/completions", f'"seed": {"9" * 9000}'))


@pytest.mark.parametrize("field", ["logprobs", "best_of"])
async def test_limits_of_completions_only(client: httpx.AsyncClient, field: str) -> None:
    bad = {"logprobs": [21, -1, True, "1"], "best_of": [0, 129, 1.5]}[field]
    for value in bad:
        await refused(client, await post(client, "/v1/completions", **{field: value}), field)
    await refused(client, await post(client, "/v1/completions", n=3, best_of=2), "best_of")
    assert (await post(client, "/v1/completions", n=2, best_of=2)).status_code == 200
    await refused(client, await post(client, "/v1/completions", suffix="end"), "suffix")
    await refused(client, await post(client, "/v1/completions", max_tokens=0), "max_tokens")


async def test_top_k_above_the_vocabulary_is_off(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    for value in (-1, VOCAB, 10**12):
        assert (await post(client, "/v1/completions", top_k=value)).status_code == 200
    assert [params.top_k for params in engine.params] == [-1, 0, 0]


async def test_priority_is_taken_where_it_is_heeded() -> None:
    from llmx.config import EngineConfig, SchedulerConfig
    from llmx_server import create_app

    engine = FakeEngine()
    app = create_app(engine, EngineConfig(scheduler=SchedulerConfig(policy="priority")))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://t") as client:
        assert (await post(client, "/v1/completions", priority=-3)).status_code == 200
    assert engine.params[0].priority == -3


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]), ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}), ("guided_json", {"type": "object"}), ("guided_regex", "a"),
        ("functions", [{"name": "f"}]), ("modalities", ["text", "audio"]), ("watermarking", True), ("store", True),
        ("max_new_tokens", 5), ("prediction", {}), ("verbosity", "low"), ("kv_transfer_params", {}), ("tools", True),
    ],
)  # fmt: skip
async def test_known_but_unsupported_is_refused(client: httpx.AsyncClient, path: str, field: str, value: Any) -> None:
    await refused(client, await post(client, path, **{field: value}), field)


@pytest.mark.parametrize("path", ROUTES)
async def test_neutral_values_are_accepted(client: httpx.AsyncClient, path: str) -> None:
    body = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"], "store": False, "metadata": {}}
    response = await post(client, path, **body, service_tier="auto", parallel_tool_calls=True)
    assert response.status_code == 200 and "warning" not in response.headers


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
async def test_unknown_fields_are_named_in_a_header(client: httpx.AsyncClient, path: str, stream: bool) -> None:
    response = await post(client, path, foo=1, **{'b"\r\nX-Evil: é': {}}, stream=stream)
    assert response.status_code == 200
    warning = response.headers["warning"]
    assert warning.startswith('299 llmx "ignored: foo (unknown), ') and "x-evil" not in response.headers
    many = await post(client, path, **{f"f{i}": 1 for i in range(500)})
    assert "and 490 more" in many.headers["warning"] and len(many.headers["warning"]) < 1000


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7", b'"x"', b"null", b"\xff", b'{"prompt": "\\ud800"}', b"{'prompt': 1}"])
async def test_bodies_that_are_no_json_object(client: httpx.AsyncClient, path: str, body: bytes) -> None:
    await refused(client, await client.post(path, content=body, headers=JSON))


@pytest.mark.parametrize("depth", [300, 4000, 100_000])
async def test_deep_nesting(client: httpx.AsyncClient, depth: int) -> None:
    for field in ("tools", "foo"):
        nested = "[" * depth + "]" * depth
        await refused(client, await post_raw(client, "/v1/completions", f'"{field}": {nested}'))


async def test_body_limit(client: httpx.AsyncClient) -> None:
    big = b'{"prompt": "' + b"x" * MAX_BODY_BYTES + b'"}'

    async def chunks() -> Any:
        for at in range(0, len(big), 1 << 20):
            yield big[at : at + (1 << 20)]

    for content in (big, chunks()):
        response = await client.post("/v1/completions", content=content, headers=JSON)
        assert response.status_code == 413 and response.json()["error"]["code"] == "body_too_large"
    words = "lorem ipsum " * 5000
    assert (await post(client, "/v1/completions", prompt=words)).json()["error"]["code"] == "context_length_exceeded"


async def test_content_type(client: httpx.AsyncClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        message = await refused(client, await client.post("/v1/completions", content=b'{"prompt":"x"}', headers={"content-type": kind}))
        assert "application/json" in message
    utf8 = {"content-type": "application/json; charset=utf-8"}
    assert (await client.post("/v1/completions", content=b'{"prompt":"x"}', headers=utf8)).status_code == 200


@pytest.mark.parametrize("path", [*ROUTES, "/tokenize", "/detokenize"])
async def test_model_names(client: httpx.AsyncClient, path: str) -> None:
    body = ROUTES.get(path) or ({"prompt": "x"} if path == "/tokenize" else {"tokens": [65]})
    response = await client.post(path, json={**body, "model": "nope"})
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["code"] == "model_not_found" and error["param"] == "model" and "fake-model" in error["message"] and "alias/with.dots" in error["message"]
    response = await client.post(path, json={**body, "model": "alias/with.dots"})
    assert response.status_code == 200 and response.json().get("model", "alias/with.dots") == "alias/with.dots"


@pytest.mark.parametrize("path", ROUTES)
async def test_what_has_no_effect_is_named(client: httpx.AsyncClient, path: str) -> None:
    for field, value in (("user", "me"), ("metadata", {"a": "b"}), ("safety_identifier", "x"), ("prompt_cache_key", "k"), ("session_id", "s")):
        response = await post(client, path, **{field: value})
        assert response.status_code == 200 and response.headers["warning"].startswith(f'299 llmx "ignored: {field} ('), field
    for body in ({"service_tier": "flex"}, {"stream": True, "stream_options": {"include_obfuscation": True}}, {"stream": True, "stream_options": {"foo": 3}}):
        response = await post(client, path, **body)
        assert response.status_code == 200 and next(iter(body.get("stream_options", body))) in response.headers["warning"]
    for body in ({"service_tier": "auto"}, {"stream": True, "stream_options": {"include_obfuscation": False, "include_usage": True}}):
        assert "warning" not in (await post(client, path, **body)).headers


async def test_fields_of_the_other_route_are_named(client: httpx.AsyncClient) -> None:
    for path, field, value in (("/v1/completions", "top_logprobs", 3), ("/v1/chat/completions", "best_of", 2), ("/v1/chat/completions", "prompt", "x")):
        response = await post(client, path, **{field: value})
        assert response.status_code == 200 and f"{field} (not a field of this route)" in response.headers["warning"]


async def test_template_variables_that_nothing_reads_are_named(client: httpx.AsyncClient) -> None:
    path = "/v1/chat/completions"
    response = await post(client, path, chat_template_kwargs={"mood": "glad", "tone": 1}, reasoning_effort="low")
    assert "mood" not in response.headers["warning"]
    assert "chat_template_kwargs.tone (" in response.headers["warning"] and "reasoning_effort (" in response.headers["warning"]
    told = await client.post("/tokenize", json={**ROUTES[path], "chat_template_kwargs": {"tone": 1}})
    assert "chat_template_kwargs.tone (" in told.headers["warning"]


async def test_missing_required_fields(client: httpx.AsyncClient) -> None:
    for path, field in (("/v1/completions", "prompt"), ("/v1/chat/completions", "messages"), ("/detokenize", "tokens")):
        response = await client.post(path, json={})
        assert response.status_code == 400 and response.json()["error"]["param"] == field


@pytest.mark.parametrize("path", ROUTES)
async def test_whole_numbers_may_be_written_with_a_point(client: httpx.AsyncClient, engine: FakeEngine, path: str) -> None:
    text = '"max_tokens": 9.0, "n": 2.0, "seed": 4e1, "top_k": 7.0, "stop_token_ids": [1, 2.0], "allowed_token_ids": [5.0, 6], "temperature": 1'
    assert (await post_raw(client, path, text)).status_code == 200
    (params,) = engine.params
    got = (params.max_tokens, params.n, params.seed, params.top_k, *params.stop_token_ids, *params.allowed_token_ids)
    assert got == (9, 2, 40, 7, 1, 2, 5, 6) and all(type(value) is int for value in got)
    wrong = {"max_tokens": "16.5", "n": '"2.0"', "stop_token_ids": "[1.0, 2.5]", "seed": "true"}
    for field, value in wrong.items():
        await refused(client, await post_raw(client, path, f'"{field}": {value}'), field)
    await refused(client, await post_raw(client, path, '"max_tokens": 9.0, "stop_token_ids": [1.5]'), "stop_token_ids")  # one is fine, the other not


async def test_token_ids_may_be_written_with_a_point(client: httpx.AsyncClient) -> None:
    for prompt, status in (([104.0, 105], 200), ([[104], [105.0]], 200), ([104.5], 400), ([104, 105.5], 400)):
        answer = await client.post("/v1/completions", json={"prompt": prompt})
        assert answer.status_code == status, answer.text
    assert (await client.post("/detokenize", json={"tokens": [104.0, 105.0]})).json() == {"prompt": "hi"}


async def test_every_route_takes_whole_numbers_with_a_point(client: httpx.AsyncClient) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/messages": {**chat, "max_tokens": 4.0, "top_k": 3.0},
        "/v1/messages/count_tokens": {**chat, "top_k": 3.0},
        "/v1/responses": {"input": "hi", "max_output_tokens": 4.0, "top_k": 3.0, "top_logprobs": 2.0},
        "/v1/chat/completions/batch": {"messages": [chat["messages"]], "max_completion_tokens": 4.0},
        "/invocations": {**chat, "max_tokens": 4.0},
    }
    for path, body in bodies.items():
        answer = await client.post(path, json=body)
        assert answer.status_code == 200, f"{path}: {answer.text}"
