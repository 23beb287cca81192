"""`llmx run-batch` on a platform that says what it is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from processes import llmx
from tests.cases.echo import install

PLATFORM = ("--platform", "echo", "--max-model-len", "256", "--num-blocks", "40")


def jsonl(*lines: Any) -> str:
    return "".join(json.dumps(one) + "\n" for one in lines)


def line(name: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


LINES = [
    line("chat", "/v1/chat/completions", messages=[{"role": "user", "content": "hello there"}], temperature=0),
    line("text", "/v1/completions", prompt="one two", temperature=0),
    line("response", "/v1/responses", input="three four", temperature=0),
    line("long", "/v1/completions", prompt="x " * 400),
    line("bad", "/v1/images/edits", prompt="x"),
]


def test_a_file_of_requests(tmp_path: Path) -> None:
    """All kinds in one file; what is wrong has a line of its own; half an output goes on with --resume."""
    environ = install(tmp_path)
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(jsonl(*LINES))
    arguments = ("run-batch", "-i", str(source), "-o", str(target), *PLATFORM)
    done = llmx(*arguments, environ=environ)
    assert done.returncode == 0, done.stderr
    assert "5 requests: 3 answered, 2 failed" in done.stdout
    told = {one["custom_id"]: one for one in map(json.loads, target.read_text().splitlines())}
    bodies = {name: one["response"]["body"] for name, one in told.items() if one["response"]}
    assert bodies["chat"]["choices"][0]["message"]["content"] == "hello there" and bodies["text"]["choices"][0]["text"] == "one two"
    assert bodies["response"]["output"][0]["content"][0]["text"] == "three four"
    assert told["long"]["response"]["status_code"] == 400 and told["bad"]["error"]["code"] == "invalid_url"
    refused = llmx(*arguments, environ=environ)
    assert refused.returncode == 2 and "--resume" in refused.stderr
    whole = target.read_text().splitlines(keepends=True)
    target.write_text("".join(whole[:2]) + whole[2][:20])
    served = {"LLMX_API_KEY": "secret", "LLMX_CACHE_SALT_PER_KEY": "true"}  # settings of a server, which mean nothing here
    again = llmx(*arguments, "--resume", environ={**environ, **served})
    assert again.returncode == 0 and "3 requests" in again.stdout and "2 were there already" in again.stdout
    assert {json.loads(one)["custom_id"] for one in target.read_text().splitlines()} == set(told)


@pytest.mark.parametrize(
    ("source", "target", "text"),
    [("none.jsonl", "out.jsonl", "no such file"), ("in.jsonl", "none/out.jsonl", "no such folder"), ("in.jsonl", "in.jsonl", "is the input file")],
)
def test_files_are_checked_before_anything_loads(tmp_path: Path, source: str, target: str, text: str) -> None:
    (tmp_path / "in.jsonl").write_text("x")
    done = llmx("run-batch", "-i", str(tmp_path / source), "-o", str(tmp_path / target))
    assert done.returncode == 2 and text in done.stderr and len(done.stderr.splitlines()) == 1
