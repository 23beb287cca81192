"""llmx-otel: what the spans of a server hold, and that they reach a collector."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from in_process import http_of
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from processes import HANG_S, llmx, serve

from llmx.config import EngineConfig
from llmx.errors import ConfigError
from llmx_server import create_app

pytestmark = pytest.mark.anyio

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACED = EngineConfig(plugins={"otel": {"traces_endpoint": "http://collector:4318"}})


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What a server that is made from now on would send."""
    memory = InMemorySpanExporter()

    def opened(endpoint: str, service_name: str, sample: float) -> TracerProvider:
        assert (endpoint, service_name, sample) == ("http://collector:4318/v1/traces", "llmx", 1.0)
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(memory))
        return provider

    monkeypatch.setattr("llmx_otel.provider.open_provider", opened)
    return memory


async def test_a_request_is_a_span_with_a_span_for_each_prompt(spans: InMemorySpanExporter) -> None:
    body = {"prompt": ["secret one", "secret"], "max_tokens": 3, "temperature": 0.5, "n": 2}
    async with http_of(create_app(FakeEngine(), TRACED)) as client:  # type: ignore[arg-type]
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
        assert (await client.post("/v1/completions", json=body, headers=headers)).status_code == 200
    found = spans.get_finished_spans()
    request = next(one for one in found if one.name == "POST /v1/completions")
    assert request.parent is not None and (f"{request.context.trace_id:032x}", f"{request.parent.span_id:016x}") == (TRACE, PARENT)
    assert {"http.route": "/v1/completions", "http.response.status_code": 200, "llmx.request_id": "mine"}.items() <= dict(request.attributes or {}).items()
    prompts = [one for one in found if one.name == "text_completion fake-model"]
    assert len(prompts) == 2
    for one in prompts:
        assert one.parent is not None and one.parent.span_id == request.context.span_id and one.context.trace_id == request.context.trace_id
        facts = dict(one.attributes or {})
        wanted = {"gen_ai.request.model": "fake-model", "gen_ai.request.max_tokens": 3, "gen_ai.request.temperature": 0.5, "gen_ai.request.n": 2}
        assert wanted.items() <= facts.items() and facts["gen_ai.response.finish_reasons"] == ("length", "length")
        assert facts["gen_ai.usage.output_tokens"] == 6 and facts["gen_ai.usage.input_tokens"] in (6, 10)
        assert 0 <= facts["gen_ai.latency.time_to_first_token"] <= facts["gen_ai.latency.e2e"]  # type: ignore[operator]
        assert [event.name for event in one.events] == ["first token"]
    assert "secret" not in "".join(one.to_json() for one in found)


async def test_streams_errors_and_probes(spans: InMemorySpanExporter) -> None:
    async with http_of(create_app(FakeEngine(), TRACED)) as client:  # type: ignore[arg-type]
        for path in ("/health", "/metrics", "/"):
            await client.get(path)
        assert spans.get_finished_spans() == ()
        chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "stream": True}
        assert "[DONE]" in (await client.post("/v1/chat/completions", json=chat)).text
        assert (await client.post("/v1/completions", json={"prompt": 5})).status_code == 400
    names = [one.name for one in spans.get_finished_spans()]
    assert sorted(names) == ["POST /v1/chat/completions", "POST /v1/completions", "chat fake-model"]
    refused = next(one for one in spans.get_finished_spans() if one.name == "POST /v1/completions")
    assert dict(refused.attributes or {})["http.response.status_code"] == 400 and refused.status.status_code is StatusCode.UNSET


async def test_an_engine_that_dies_is_an_error(spans: InMemorySpanExporter) -> None:
    async with http_of(create_app(FakeEngine(fail_at=0), TRACED)) as client:  # type: ignore[arg-type]
        assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code >= 500
    prompt, request = spans.get_finished_spans()
    assert (prompt.name, request.name) == ("text_completion fake-model", "POST /v1/completions")
    assert prompt.status.status_code is request.status.status_code is StatusCode.ERROR
    assert dict(prompt.attributes or {})["error.type"] == "engine_dead" and dict(request.attributes or {})["error.type"].startswith("50")  # type: ignore[union-attr]


async def test_two_models_are_in_one_trace(spans: InMemorySpanExporter) -> None:
    other = FakeEngine()
    other.info.served_names = ["second"]
    app = create_app(FakeEngine(), TRACED, others=[(other, TRACED)])  # type: ignore[arg-type,list-item]
    async with http_of(app) as client:
        for model in ("fake-model", "second"):
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            body = {"model": model, "prompt": "x", "max_tokens": 2}
            assert (await client.post("/v1/completions", json=body, headers=headers)).status_code == 200
    found = spans.get_finished_spans()
    assert {one.name for one in found} >= {"text_completion fake-model", "text_completion second"}
    assert {f"{one.context.trace_id:032x}" for one in found} == {TRACE}


async def test_what_goes_on_in_the_background_is_in_its_trace(spans: InMemorySpanExporter) -> None:
    engine = FakeEngine(gate=asyncio.Event())
    async with http_of(create_app(engine, TRACED)) as client:  # type: ignore[arg-type]
        made = (await client.post("/v1/responses", json={"input": "x", "background": True}, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})).json()
        (request,) = spans.get_finished_spans()
        assert request.name == "POST /v1/responses" and made["status"] in ("queued", "in_progress") and engine.gate is not None
        engine.gate.set()
        while (await client.get(f"/v1/responses/{made['id']}")).json()["status"] != "completed":
            await asyncio.sleep(0.01)
    prompt = next(one for one in spans.get_finished_spans() if one.name == "chat fake-model")
    assert prompt.parent is not None and prompt.parent.span_id == request.context.span_id and f"{prompt.context.trace_id:032x}" == TRACE


async def test_a_websocket_is_a_span(spans: InMemorySpanExporter) -> None:
    told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    scope = {"type": "websocket", "path": "/v1/chat/ws", "headers": [(b"host", b"test")], "query_string": b"", "subprotocols": []}
    running = asyncio.create_task(create_app(FakeEngine(), TRACED)(scope, told.get, said.put))  # type: ignore[arg-type]
    await told.put({"type": "websocket.connect"})
    for _ in range(2):
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        await told.put({"type": "websocket.receive", "text": json.dumps(body)})
        while json.loads((await said.get()).get("text", "{}")).get("type") != "done":
            assert not running.done()
    assert [one.name for one in spans.get_finished_spans()] == ["chat fake-model"] * 2
    await told.put({"type": "websocket.disconnect", "code": 1000})
    await running
    connection = spans.get_finished_spans()[-1]
    assert connection.name == "WEBSOCKET /v1/chat/ws" and dict(connection.attributes or {})["http.response.status_code"] == 101


def test_off_nothing_is_read_and_a_wrong_endpoint_is_refused() -> None:
    code = "import llmx_otel.plugin, sys; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANG_S).stdout == "[]\n"
    for endpoint in ("localhost:4317", "grpc://x:4317"):
        with pytest.raises(ConfigError, match="--otlp-traces-endpoint is .*4318"):
            create_app(FakeEngine(), EngineConfig(plugins={"otel": {"traces_endpoint": endpoint}}))  # type: ignore[arg-type]
    for given, said in (("--otel-steps", "--otlp-traces-endpoint says where"), ("--otlp-traces-endpoint=localhost:4317", "4318")):
        refused = llmx("serve", "--platform", "null", "--port", "0", given)  # the engine is still starting then, and must not hold up the end
        assert refused.returncode == 2 and said in refused.stderr


class _Collector(BaseHTTPRequestHandler):
    """Takes OTLP over HTTP, and decodes it."""

    def do_POST(self) -> None:
        body = ExportTraceServiceRequest.FromString(_plain(self.rfile.read(int(self.headers["content-length"])), self.headers.get("content-encoding")))
        self.server.taken.append((self.path, body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Nothing."""


def _plain(body: bytes, encoding: str | None) -> bytes:
    return gzip.decompress(body) if encoding == "gzip" else body


@pytest.fixture
def collector() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Collector)
    server.taken = []  # type: ignore[attr-defined]
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_traces_of_a_real_server_reach_a_collector(collector: Any) -> None:
    arguments = ("--platform", "null", "--num-blocks", "600", "--otlp-traces-endpoint", f"http://127.0.0.1:{collector.server_port}")
    with serve(*arguments, "--otel-steps", "--otel-service-name", "under-test", environ={"OTEL_BSP_SCHEDULE_DELAY": "100"}) as server:
        body = {"prompt": "one two three", "max_tokens": 20, "ignore_eos": True}
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        assert httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=HANG_S).status_code == 200
        server.process.terminate()
        assert server.end()[0] == 0
    end = time.monotonic() + HANG_S
    while len(_spans(collector)) < 25 and time.monotonic() < end:
        time.sleep(0.05)
    spans = _spans(collector)
    mine = {span.name: span for span in spans if span.trace_id.hex() == TRACE}
    assert sorted(mine) == ["POST /v1/completions", "decode", "prefill", "queue", "text_completion smollm2-135m-instruct"]
    prompt = mine["text_completion smollm2-135m-instruct"]
    assert mine["POST /v1/completions"].parent_span_id.hex() == PARENT and prompt.parent_span_id == mine["POST /v1/completions"].span_id
    assert {mine[name].parent_span_id for name in ("queue", "prefill", "decode")} == {prompt.span_id}
    marks = [(mine[name].start_time_unix_nano, mine[name].end_time_unix_nano) for name in ("queue", "prefill", "decode")]
    assert marks == sorted(marks) and marks[0][1] == marks[1][0] and marks[1][1] == marks[2][0]
    facts = {one.key: one.value for one in prompt.attributes}
    assert facts["gen_ai.usage.output_tokens"].int_value == 20 and facts["gen_ai.latency.time_in_model_decode"].double_value > 0
    steps = [span for span in spans if span.name == "llmx.step"]
    assert len(steps) == 20 and {one.key for one in steps[0].attributes} >= {"llmx.step.prefill_tokens", "llmx.step.kv_blocks_used"}
    resources = [part.resource for _, body in collector.taken for part in body.resource_spans]
    services = {one.value.string_value for resource in resources for one in resource.attributes if one.key == "service.name"}
    assert services == {"under-test"} and {path for path, _ in collector.taken} == {"/v1/traces"}


def _spans(collector: Any) -> list[Any]:
    return [span for _, body in collector.taken for part in body.resource_spans for scope in part.scope_spans for span in scope.spans]
