"""docs/api.md: every route of the application stands there with its scopes and an example, and the examples are answered 2xx in their order."""

from __future__ import annotations

import json
import re
import string
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import HANG_S, Server, serve
from test_default_deny import OPEN, all_routes, wanted
from test_live import PRESENT
from tests.docs.blocks import blocks, commands
from tests.lora.adapters import smollm2_adapter
from two_models import minilm

from llmx_server.protocol.anthropic import MessagesRequest
from llmx_server.protocol.tokenize import DetokenizeRequest, TokenizeRequest

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
LOCAL = "http://127.0.0.1:8000"
LINES = {
    (method, path): scope
    for method, path, scope in re.findall(r"^\| `([A-Z]+) (/[^`]*)` \| ([a-z ]+) \| .+ \| .+ \|$", PAGE.read_text(), re.MULTILINE)
}
MADE = {"/v1/responses": "RESPONSE", "/v1/files": "FILE", "/v1/batches": "BATCH"}  # what is made there, as the page calls it
EXAMPLES = [words for block in blocks(PAGE) if block.language == "bash" for words in commands(block) if words[0] == "curl"]


def filled(path: str) -> str:
    return re.sub(r"\{[^}]+\}", "x", path)


def test_every_route_has_a_line_with_its_scopes() -> None:
    routes = {(method, "/web/x" if path.startswith("/web/") else path) for method, path in all_routes() if method != "HEAD"}
    assert {(method, filled(path)) for method, path in LINES} == routes
    for (_, path), scope in LINES.items():
        asked = "open" if path in OPEN or path.startswith("/web/") else " and ".join(sorted(wanted(path), reverse=True)) or "any key"
        assert scope == asked, path


def test_the_fields_that_stand_on_the_page_are_all() -> None:
    text = PAGE.read_text()
    for model in (MessagesRequest, TokenizeRequest, DetokenizeRequest):
        assert [name for name in model.model_fields if f"`{name}`" not in text] == [], model


def asked_by(words: list[str]) -> tuple[str, str]:
    """(method, path) of a curl command."""
    (url,) = [word for word in words if word.startswith(LOCAL)]
    body = {"--json", "-F"} & set(words)
    method = words[words.index("-X") + 1] if "-X" in words else "POST" if body else "GET"
    return method, url.removeprefix(LOCAL).partition("?")[0]


def test_every_route_has_an_example() -> None:
    missing = set(LINES) - {("WS", "/v1/chat/ws")}  # a Python block of docs/websocket.md, which tests/docs runs
    for words in EXAMPLES:
        method, path = asked_by(words)
        missing -= {line for line in LINES if line[0] == method and re.fullmatch(re.sub(r"\{[^}]+\}", "[^/]+", line[1]), path)}
    assert missing == set()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the examples name."""
    from tests.pooling.checkpoints import write  # needs transformers

    made = tmp_path_factory.mktemp("api")
    (made / "all-MiniLM-L6-v2").mkdir()
    for one in minilm().iterdir():  # a link to the folder would have that folder's name
        (made / "all-MiniLM-L6-v2" / one.name).symlink_to(one)
    write(made / "classifier", "bert_labels")
    smollm2_adapter(made / "adapter")
    line = {"method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 200, "ignore_eos": True}}
    (made / "requests.jsonl").write_text("\n".join(json.dumps({**line, "custom_id": str(number)}) for number in range(300)))
    return made


@pytest.fixture(scope="module")
def live(folder: Path) -> Iterator[Server]:
    limits = ("--platform", "cpu", "--threads", "1", "--max-model-len", "512", "--num-blocks", "128", "--files-dir", str(folder / "files"))
    limits += ("--profile-dir", str(folder / "profiles"), "--enable-lora")
    with serve("smollm2-135m-instruct", str(folder / "all-MiniLM-L6-v2"), *limits) as running:
        yield running


@pytest.mark.skipif("cpu" not in PRESENT, reason="the CPU platform is not installed")
def test_the_examples_are_answered(live: Server, folder: Path) -> None:
    known: dict[str, str] = {}
    for words in EXAMPLES:
        given = [string.Template(word).safe_substitute(known).replace(LOCAL, live.url).replace('"./', f'"{folder}/') for word in words]
        done = subprocess.run([*given, "-sS", "--fail-with-body"], capture_output=True, text=True, timeout=HANG_S, cwd=folder)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert done.stdout
        method, path = asked_by(words)
        if method == "POST" and path in MADE:
            known[MADE[path]] = json.loads(done.stdout)["id"]
