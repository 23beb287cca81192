"""Every example runs, in a process of its own, on the real model."""

from __future__ import annotations

import ast
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
HANG_S = 120  # a hang guard


def run(*arguments: str, text: str = "", environment: dict[str, str] | None = None) -> str:
    """Standard output of one example."""
    done = subprocess.run([sys.executable, *arguments], input=text, capture_output=True, text=True, timeout=HANG_S, cwd=EXAMPLES, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """URL of a live server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "llmx", "serve", "--port", str(port), "--max-model-len", "2048", "--num-blocks", "256"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + HANG_S
        while not ready(url):
            assert process.poll() is None, process.communicate()[0][-4000:]
            assert time.monotonic() < deadline, "the server is not ready"
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.communicate(timeout=60)


def ready(url: str) -> bool:
    """True when the server says so."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def test_every_example_is_run() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    names = {path.name for path in EXAMPLES.iterdir() if path.suffix == ".py" or (path / "pyproject.toml").exists()}
    assert len(names) >= 3
    assert [name for name in sorted(names) if name not in here] == []


def test_offline_generate() -> None:
    lines = run("offline_generate.py").splitlines()
    assert len(lines) == 3
    assert "Paris" in lines[0]
    assert all(re.search(r"\((stop|length), \d+ tokens\)$", line) for line in lines)


def test_chat() -> None:
    out = run("chat.py", text="What is the capital of France?\nAnd of Italy?\n")
    assert "Paris" in out
    cached = [int(n) for n in re.findall(r"(\d+) of them cached", out)]
    assert len(cached) == 2
    assert cached[1] > 0  # the second turn starts with the first one


def test_chat_batch() -> None:
    out = run("chat_batch.py")
    assert "<|im_start|>user\nWhat is the capital of France?<|im_end|>" in out
    assert out.count("Generated text: 'The capital of France is Paris.'") == 3


def test_seeds_and_n() -> None:
    lines = run("seeds_and_n.py").splitlines()
    assert [line[:4] for line in lines] == ["1.0:", "1.1:", "1.2:", "2.0:", "2.1:", "2.2:"]
    first, again = [line[4:] for line in lines[:3]], [line[4:] for line in lines[3:]]
    assert first == again
    assert len(set(first)) == 3


def test_logprobs() -> None:
    lines = run("logprobs.py").splitlines()
    shares = [[float(share) for share in re.findall(r"' (0\.\d+)", line)] for line in lines if line.startswith("answer")]
    assert len(shares) == 4
    assert all(row == sorted(row, reverse=True) and sum(row) <= 1.001 for row in shares)
    assert lines[4].startswith("answer ' Paris' of ' Paris'")
    assert "rank 1" in lines[1]


def test_prefix_caching() -> None:
    lines = run("prefix_caching.py").splitlines()
    assert all(re.match(r"48 of 6\d tokens cached -> '", line) for line in lines[:4])
    assert lines[4:] == ["after a reset: 0"]


def test_beam_search() -> None:
    scores = [float(line[:7]) for line in run("beam_search.py").splitlines()]
    assert len(scores) == 6
    assert scores[:3] == sorted(scores[:3], reverse=True)
    assert scores[3:] == sorted(scores[3:], reverse=True)


def test_async_streaming() -> None:
    lines = sorted(run("async_streaming.py").splitlines())
    assert lines[0] == "long: abort"
    assert [re.sub(r"'.*'|\".*\"", "TEXT", line) for line in lines[1:]] == [f"stream-{n}: TEXT in 12 pieces" for n in range(3)]


def test_engine_loop() -> None:
    done = {line[0]: len(ast.literal_eval(line[2:])) for line in run("engine_loop.py").splitlines()}
    assert done == {"0": 1, "1": 1, "2": 2}


def test_stream_openai(server: str) -> None:
    out = run("stream_openai.py", "--url", f"{server}/v1")
    assert "Paris" in out
    assert re.search(r"\[\d+ tokens\]$", out.strip())


def installed(name: str, folder: Path) -> dict[str, str]:
    """The environment of a process in which the example plugin `name` is installed, in `folder`."""
    install = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(folder), f"./{name}"]
    subprocess.run([sys.executable, "-m", *install], check=True, timeout=HANG_S, cwd=EXAMPLES)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def test_hooks_plugin(tmp_path: Path) -> None:
    """Installed beside llmx, the plugin changes what an engine does, and says so; what the user sets wins."""
    environment = installed("hooks_plugin", tmp_path)
    script = "from llmx import LLM; llm = LLM(platform='null'{}); print(llm.info.max_num_seqs); llm.close()"
    assert run("-c", script.format(""), environment=environment) == "4\n"  # the null platform has one compute unit
    assert run("-c", script.format(", max_num_seqs=7"), environment=environment) == "7\n"
    assert run("-c", script.format("")) == "256\n"


def test_logits_plugin(tmp_path: Path) -> None:
    """Installed beside llmx, the processor is there by its name: no pair of tokens comes twice. Without the plugin the name is refused."""
    environment = installed("logits_plugin", tmp_path)
    script = """from llmx import LLM, SamplingParams
with LLM(model="smollm2-135m-instruct", threads=1, max_model_len=256, num_blocks=40) as llm:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logits_processors=[{"name": "no_repeat", "args": {"size": 2}}])
    ids = llm.generate("one two one two one two", params, use_tqdm=False)[0].outputs[0].token_ids
print(len(ids), len(set(zip(ids, ids[1:]))))"""
    assert run("-c", script, environment=environment) == "24 23\n"
    refused = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S)
    assert refused.returncode != 0 and "no_repeat" in refused.stderr
