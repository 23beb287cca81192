"""gRPC of `llmx serve`, with the embedded model: the example of docs/grpc.md, and memory that is free again when a call is cancelled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from grpc_client import Refused, address_of, client_of, message
from processes import HANG_S, Server, gauges, serve, until
from test_live import ARGUMENTS, MODEL, PLATFORM
from tests.docs.blocks import ROOT, blocks
from two_models import minilm

PAGE = ROOT / "docs" / "grpc.md"


@pytest.fixture(scope="module")
def live() -> Iterator[Server]:
    with serve(*ARGUMENTS, "--grpc-port", "0") as running:
        yield running
        running.process.send_signal(signal.SIGTERM)
        code, err = running.end()
        assert code == 0 and "Traceback" not in err


def test_the_example_of_the_page(live: Server, tmp_path: Path) -> None:
    languages = {language: "".join(block.text for block in blocks(PAGE) if block.language == language) for language in ("bash", "python")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in languages["bash"].splitlines():
        if command.startswith("python "):
            subprocess.run(command, shell=True, check=True, cwd=tmp_path, env={**os.environ, "PATH": path}, timeout=HANG_S)
    code = languages["python"].replace("127.0.0.1:9000", address_of(live))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    assert f"models: ['{MODEL}']" in done.stdout and "tokens: " in done.stdout
    assert "StatusCode.INVALID_ARGUMENT max_tokens is 0: it must be at least 1" in done.stdout
    assert PLATFORM != "cpu" or "Paris" in done.stdout


def test_a_cancelled_call_gives_its_memory_back(live: Server) -> None:
    with client_of(address_of(live)) as client:
        call = client.generate(text="Once upon a time", max_tokens=900, ignore_eos=True)
        next(call)
        assert gauges(live.url)["llmx:num_requests_running"] == 1
        call.cancel()
        until(lambda: gauges(live.url)["llmx:num_requests_running"] == 0)
        until(lambda: gauges(live.url)["llmx:kv_cache_usage_perc"] == 0)


def test_a_schema_is_kept(live: Server) -> None:
    form = '{"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["yes", "no"]}}}'
    with client_of(address_of(live)) as client:
        asked = message("Messages", messages=[message("Message", role="user", content="Is the sky blue?")])
        assert client.text(messages=asked, response_format=form, max_tokens=10) in ('"yes"', '"no"')


@pytest.mark.skipif(PLATFORM != "cpu", reason="needs the CPU platform")
def test_vectors_are_those_of_http() -> None:
    texts = ["paris is the capital", "a"]
    with serve(str(minilm()), "--threads", "1", "--num-blocks", "64", "--grpc-port", "0") as running, client_of(address_of(running)) as client:
        wanted = httpx.post(f"{running.url}/v1/embeddings", json={"input": texts}, timeout=HANG_S).json()
        found = client.one("Embed", texts=texts)
        assert [list(one.values) for one in found.embeddings] == [pytest.approx(one["embedding"], abs=1e-7) for one in wanted["data"]]
        assert found.usage.prompt_tokens == wanted["usage"]["prompt_tokens"] and len(found.embeddings[0].values) == 384
        ids = [message("TokenIds", ids=[101, 3000, 102])]
        assert len(client.one("Embed", token_ids=ids).embeddings) == 1
        with pytest.raises(Refused, match="dimensions") as refused:
            client.one("Embed", texts=["a"], dimensions=100000)
        assert refused.value.about["error-param"] == "dimensions"
