"""Live servers for the cases: `echo` says what it is told (see echo.py), `real` is SmolLM2 on the CPU platform."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))

from processes import serve  # noqa: E402

from tests.cases.echo import install  # noqa: E402

VOCAB = 49152
CONTEXT = 256


class Api:
    """One server: posts, streams, and the check that it is still alive."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60)

    def close(self) -> None:
        self.http.close()

    def post(self, path: str, body: dict[str, Any] | bytes) -> httpx.Response:
        if isinstance(body, bytes):
            return self.http.post(path, content=body, headers={"Content-Type": "application/json"})
        return self.http.post(path, json=body)

    def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        answer = self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **fields})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def chat(self, text: str, **fields: Any) -> dict[str, Any]:
        answer = self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """All chunks; checks that the stream ends with [DONE] and that every line is strict JSON."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as answer:
            assert answer.status_code == 200, answer.read()
            lines = [line for line in answer.iter_lines() if line]
        assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
        return [strict(line.removeprefix("data: ")) for line in lines[:-1]]

    def alive(self) -> None:
        assert self.http.get("/health").status_code == 200
        answer = self.complete("a b c d", max_tokens=4)
        assert answer["usage"]["completion_tokens"] >= 1


def strict(text: str) -> dict[str, Any]:
    """JSON without NaN and Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return dict(json.loads(text, parse_constant=refuse))


def texts(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """The joined text of one choice, of completions or chat."""
    pieces = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] == index:
                pieces.append(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
    return "".join(pieces)


@pytest.fixture(scope="session")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    environ = install(tmp_path_factory.mktemp("echo"))
    with serve("--platform", "echo", "--max-model-len", str(CONTEXT), "--num-blocks", "200", environ=environ) as running:
        with closing(Api(running.url)) as api:
            yield api


@pytest.fixture(scope="session")
def real() -> Iterator[Api]:
    with serve("--platform", "cpu", "--threads", "1", "--max-model-len", str(CONTEXT), "--num-blocks", "400") as running, closing(Api(running.url)) as api:
        yield api
