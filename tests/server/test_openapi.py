"""/openapi.json against the server that it describes: schemathesis makes requests from it, and every answer is held against it."""

from __future__ import annotations

import collections
import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from processes import HANG_S
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from llmx_server.scopes import scopes_of

CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
ANSWERED = 0.25  # of all requests, at least so many have status 2xx; the others are refused for good reasons
LEAN, FULL = 130, 2000  # requests
OPEN = ("/health", "/ready", "/version")  # need no key; what else needs the scope admin loads, unloads and stops models, and is left alone
HERE = Path(__file__).parent
MUST = ("/completions", "/batch", "/messages", "/responses", "/embeddings", "/pooling", "/embed", "/files", "tokenize")  # have answers
LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hi", "max_tokens": 2}}


class Described:
    """A server of two models, what it says of itself, and how it answered."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.document: dict[str, Any] = httpx.get(f"{url}/openapi.json", timeout=HANG_S).json()
        schema = schemathesis.openapi.from_dict(closed(self.document))
        found = [one.ok() for one in schema.get_all_operations()]
        self.operations = {one.label: one for one in found if one.path in OPEN or scopes_of(one.path) != frozenset({"admin"})}
        self.statuses: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)

    def try_out(self, label: str, mode: GenerationMode, count: int) -> None:
        """So many requests to one operation, made to fit the document, or not to. Each answer is as the document says."""
        kept = {name: self.keep(name) for name in ("response_id", "file_id", "batch_id") if name in label}
        strategy = self.operations[label].as_strategy(generation_mode=mode, **({"path_parameters": kept} if kept else {}))
        quiet = list(hypothesis.HealthCheck)
        phases = [hypothesis.Phase.generate]

        @hypothesis.settings(max_examples=count, database=None, deadline=None, derandomize=True, suppress_health_check=quiet, phases=phases)
        @hypothesis.given(case=strategy)
        def once(case: Any) -> None:
            case.body = light(label, case.body)
            response = case.call(base_url=self.url, timeout=HANG_S)
            self.statuses[label][response.status_code] += 1
            assert response.status_code < 500, (label, case.body, response.text)
            case.validate_response(response, checks=CHECKS)

        with contextlib.suppress(hypothesis.errors.Unsatisfiable):  # nothing could be wrong about such a request
            once()

    def keep(self, name: str) -> str:
        """The id of a new response, file or batch."""
        if name == "response_id":
            made = httpx.post(f"{self.url}/v1/responses", json={"input": "hi", "background": True, "max_output_tokens": 2}, timeout=HANG_S)
        else:
            files = {"file": ("a.jsonl", json.dumps(LINE).encode())}
            made = httpx.post(f"{self.url}/v1/files", files=files, data={"purpose": "batch"}, timeout=HANG_S)
        if name == "batch_id":
            body = {"input_file_id": made.json()["id"], "endpoint": LINE["url"], "completion_window": "24h"}
            made = httpx.post(f"{self.url}/v1/batches", json=body, timeout=HANG_S)
        return str(made.json()["id"])


def closed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with answers that hold nothing but what is described, so that a field without a description is found."""
    schemas = {
        name: {**({} if name.startswith("Body_") else {"additionalProperties": "properties" not in schema}), **schema}
        for name, schema in document["components"]["schemas"].items()
    }
    return {**document, "components": {"schemas": schemas}}


def light(label: str, body: Any) -> Any:
    """Two choices of eight tokens at most: what counts here is the shape of answers, not how much work a server bears."""
    if not isinstance(body, dict):
        return body
    most = {"n": 2, "best_of": 2, "max_tokens": 8, "max_completion_tokens": 8, "max_output_tokens": 8}
    found = {name: min(value, most[name]) if name in most and type(value) is int else value for name, value in body.items()}
    limit = "max_output_tokens" if label == "POST /v1/responses" else "max_tokens"
    asks = label.startswith(("POST /v1/chat", "POST /v1/responses")) and not any(found.get(name) for name in most if "tokens" in name)
    return {**found, limit: 8} if asks else found


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Described]:
    command = [sys.executable, str(HERE / "two_models.py"), str(tmp_path_factory.mktemp("files")), "max_model_len=512", "num_blocks=512"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline()
            assert line.startswith("ready "), process.stderr.read()
            yield Described(line.split()[1])
            assert process.poll() is None
        finally:
            process.terminate()


def test_everything_is_typed(described: Described) -> None:
    """Each body and each answer has a type; a new route gets its line in llmx_server/openapi/document.py."""
    for label, operation in described.operations.items():
        raw = described.document["paths"][operation.path][operation.method]
        content = raw["responses"]["200"]["content"]
        typed = [part.get("schema") or part.get("itemSchema") for part in content.values()]
        assert all(typed) or label == "POST /invocations", f"{label}: its answer has no type"
        assert "4XX" in raw["responses"] and "422" not in raw["responses"], label
        if operation.method in ("post", "put") and label not in ("POST /ping",) and not label.endswith("/cancel"):
            assert all(part["schema"] for part in raw["requestBody"]["content"].values()), label


def varies(operation: dict[str, Any]) -> bool:
    """Whether requests can differ in more than an id."""
    return "requestBody" in operation or any(not one["name"].endswith("_id") for one in operation.get("parameters", ()))


def _all(described: Described, count: int) -> None:
    """`count` requests or more, a quarter of them meant to be refused. A fifth more are asked for: some operations have not so many different ones."""
    described.statuses.clear()
    varied = [label for label, one in described.operations.items() if varies(one.definition.raw)]
    for label in described.operations:
        if label in varied:
            share = 1.2 * count / len(varied)
            described.try_out(label, GenerationMode.POSITIVE, max(2, math.ceil(share * 0.75)))
            described.try_out(label, GenerationMode.NEGATIVE, max(1, math.ceil(share * 0.25)))
        else:
            described.try_out(label, GenerationMode.POSITIVE, 1)
    total = sum(described.statuses.values(), collections.Counter())
    fine = sum(number for status, number in total.items() if status < 300)
    print({label: dict(found) for label, found in described.statuses.items()}, total)
    assert total.total() >= count and fine >= ANSWERED * total.total(), total
    answer = httpx.post(f"{described.url}/v1/completions", json={"prompt": "hi", "max_tokens": 4}, timeout=HANG_S)
    assert answer.status_code == 200 and httpx.get(f"{described.url}/health", timeout=HANG_S).status_code == 200


def test_a_few_requests_of_each_kind(described: Described) -> None:
    _all(described, LEAN)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_thousand_requests(described: Described) -> None:
    _all(described, FULL)
    never = [label for label, found in described.statuses.items() if label.endswith(MUST) and not any(status < 300 for status in found)]
    assert never == []
