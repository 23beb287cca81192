"""logits_processors over HTTP: the example plugin, installed beside a live server that says what it is told."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import Server, serve
from tests.cases.echo import install

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/logits_plugin"
TEXT = "so so so so so so"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("echo")
    environ = install(folder)
    (folder / "llmx_no_repeat").symlink_to(EXAMPLE / "src/llmx_no_repeat")
    (point,) = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]["llmx.plugins"].items()
    info = folder / "llmx_no_repeat-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llmx-no-repeat\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[llmx.plugins]\n{} = {}\n".format(*point))
    with serve("--platform", "echo", "--max-model-len", "512", "--num-blocks", "200", environ=environ) as running:
        yield running


def post(live: Server, path: str, **fields: Any) -> httpx.Response:
    asked: dict[str, Any] = {"temperature": 0, "ignore_eos": True, **fields}
    return httpx.post(f"{live.url}{path}", json=asked, timeout=60)


def bodies(processors: Any) -> list[tuple[str, dict[str, Any]]]:
    messages = [{"role": "user", "content": TEXT}]
    named = {"logits_processors": processors}
    return [
        ("/v1/completions", {"prompt": TEXT, "max_tokens": 8, **named}),
        ("/v1/chat/completions", {"messages": messages, "max_tokens": 8, **named}),
        ("/v1/responses", {"input": TEXT, "max_output_tokens": 8, **named}),
    ]


def test_a_processor_holds_on_every_route_for_text(live: Server) -> None:
    for path, body in bodies([{"name": "no_repeat", "args": {"size": 1}}]):
        answer = post(live, path, **body)
        assert answer.status_code == 200 and "warning" not in answer.headers, answer.text
        plain = post(live, path, **{**body, "logits_processors": []})
        assert plain.text.count(" so so so") > answer.text.count(" so so so")
    once = [{"name": "no_repeat", "args": {"size": 1}}]
    answer = post(live, "/v1/completions", prompt=TEXT, max_tokens=12, return_token_ids=True, logits_processors=once)
    assert len(set(answer.json()["choices"][0]["token_ids"])) == 12


@pytest.mark.parametrize(
    ("processors", "says"),
    [
        (["os.system"], "no plugin has; there are no_repeat"),
        ([{"name": "no_repeat", "args": {"size": "x"}}], "it takes size"),
        ([{"nome": "a"}], "each must be a name"),
    ],
)
def test_what_is_not_there_or_not_taken_is_400(live: Server, processors: Any, says: str) -> None:
    for path, body in bodies(processors):
        for stream in (False, True):
            answer = post(live, path, **body, stream=stream)
            assert answer.status_code == 400 and says in answer.json()["error"]["message"], answer.text
            assert answer.json()["error"]["param"] == "logits_processors"
