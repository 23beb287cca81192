"""openai's Node package against `llmx serve`: `npm i openai` into a folder of its own, then node_client.mjs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from processes import HANG_S, serve
from test_live import ARGUMENTS, MODEL


@pytest.mark.slow
def test_the_node_package(tmp_path: Path) -> None:
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are needed (Debian, Ubuntu: apt-get install nodejs npm)")
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "openai@6.49.0"], cwd=tmp_path, check=True, capture_output=True, timeout=2 * HANG_S)
    shutil.copy(Path(__file__).with_name("node_client.mjs"), tmp_path)
    with serve(*ARGUMENTS) as server:
        done = subprocess.run(["node", "node_client.mjs", server.url], cwd=tmp_path, capture_output=True, text=True, timeout=2 * HANG_S)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["models"] == [MODEL] and told["usage"][0] == told["usage"][1]
    assert told["text"] == told["streamed"] == told["helper"] == told["response"]
    assert told["reason"] == "tool_calls" and json.loads(told["call"]["arguments"])["city"] in ("Paris", "Rome")
    assert told["parsed"]["city"] in ("Paris", "Rome")
    assert (told["kinds"][0], told["kinds"][-1]) == ("response.created", "response.incomplete")
    assert told["error"][:3] == ["BadRequestError", 400, "temperature"] and told["missing"] == "NotFoundError"
