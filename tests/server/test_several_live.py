"""`llmx serve A B C` as a user starts it: two models that give text and one that gives vectors, each in its own engine process."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from processes import HANG_S, Server, children, llmx, serve, until
from tests.cases.echo import install
from tests.pooling.checkpoints import write
from websockets.sync.client import connect

MODEL = "smollm2-135m-instruct"
NAMES = ("a", "b", "vectors")
OPTIONS = ("--platform", "cpu", "--threads", "1", "--max-model-len", "64", "--kv-cache-memory-bytes", "72Mi", "--recovery-timeout", "60")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("bert")
    write(folder, "bert", "mean_tokens")
    file = folder / "models.yaml"
    text = {"model": MODEL, "max_model_len": 1024}
    file.write_text(json.dumps({"models": [{**text, "served_model_name": ["a"]}, {**text, "served_model_name": ["b"]},
                                           {"model": str(folder), "served_model_name": ["vectors"]}]}))  # fmt: skip
    with serve("--config", str(file), *OPTIONS) as running:
        yield running
        running.process.send_signal(signal.SIGTERM)
        code, err = running.end()
        assert code == 0 and "Traceback" not in err


@pytest.fixture
def client(live: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=HANG_S) as client:
        yield client


def test_the_start_tells_of_each_model_and_the_split_of_memory(live: Server) -> None:
    assert [line.split()[1] for line in live.summary.splitlines() if line.startswith("model ")] == list(NAMES)
    assert live.summary.count("set       --kv-cache-memory-bytes 25165824 (its share among 3 models)") == 1
    assert "MiB in all (24 + 24 + " in live.summary and '"model": "a"' in live.summary


def test_all_engines_share_one_budget_of_threads(live: Server) -> None:
    assert "at most 1 compute, all models together (1 + 1 + 1): they take turns" in live.summary
    infos = [httpx.get(f"{live.url}/engine/state", params={"model": name}).json()["info"] for name in NAMES]
    assert [(info["threads"], info["thread_budget"]) for info in infos] == [(1, 1)] * 3
    opened = [list(Path(f"/proc/{engine}/fd").iterdir()) for engine in children(live.process)]
    files = [{os.stat(link).st_ino for link in links if "llmx-threads" in os.readlink(link)} for links in opened]
    assert len(files) == 3 and all(files) and len(set.union(*files)) == 1, "one file, open in every engine"


def test_the_openai_package_asks_all_of_them_at_once(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == list(NAMES)
    texts: dict[str, str] = {}

    def generate(name: str) -> None:
        body = {"model": name, "messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 24}
        with client.chat.completions.create(**body, stream=True) as stream:  # type: ignore[call-overload]
            texts[name] = "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    threads = [threading.Thread(target=generate, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    vectors = client.embeddings.create(model="vectors", input=["paris is the capital", "a"], encoding_format="float")
    for thread in threads:
        thread.join(HANG_S)
    assert "Paris" in texts["a"] and texts["a"] == texts["b"]
    assert [len(one.embedding) for one in vectors.data] == [32, 32] and vectors.model == "vectors"
    with pytest.raises(openai.NotFoundError, match="available are a, b, vectors") as unknown:
        client.embeddings.create(model="none", input="x")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="this model gives vectors"):
        client.completions.create(model="vectors", prompt="x")
    with pytest.raises(openai.BadRequestError, match="text"):
        client.embeddings.create(model="a", input="x")


def test_a_socket_asks_one_after_the_other(live: Server) -> None:
    with connect(live.url.replace("http", "ws") + "/v1/chat/ws") as socket:
        assert json.loads(socket.recv(HANG_S))["type"] == "ready"
        for name in ("a", "b", "vectors"):
            socket.send(json.dumps({"model": name, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}))
            told = [json.loads(socket.recv(HANG_S))]
            while told[-1].get("type") != "done":
                told.append(json.loads(socket.recv(HANG_S)))
            assert told[0]["model"] == name if name != "vectors" else told[0]["error"]["message"].startswith("this model gives vectors")


def test_an_idle_engine_takes_no_processor_time(live: Server) -> None:
    def ticks() -> int:
        return sum(sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])) for pid in children(live.process))

    time.sleep(0.5)  # what the tests before have asked for is over
    before, began = ticks(), time.monotonic()
    time.sleep(2)
    share = (ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began) / len(NAMES)
    assert share < 0.05  # of one processor, for each engine


def test_a_killed_engine_takes_no_other_with_it(live: Server) -> None:
    """Engine b is killed while a and b stream: b's stream ends with an error, a's goes on, and b alone is started again."""
    before = sorted(children(live.process))
    assert len(before) == len(NAMES)
    lines: dict[str, list[str]] = {"a": [], "b": []}

    def stream(name: str) -> None:
        body = {"model": name, "prompt": "Once", "max_tokens": 300, "ignore_eos": True, "stream": True, "temperature": 0}
        with httpx.stream("POST", f"{live.url}/v1/completions", json=body, timeout=HANG_S) as response:
            lines[name].extend(line for line in response.iter_lines() if line)

    def counted(name: str) -> int:
        return int(httpx.get(f"{live.url}/engine/state?model={name}", timeout=HANG_S).json()["engine"]["tokens"]["generated"])

    begun = {name: counted(name) for name in lines}
    threads = [threading.Thread(target=stream, args=(name,)) for name in lines]
    for thread in threads:
        thread.start()
    until(lambda: all(counted(name) > begun[name] + 3 for name in lines))
    os.kill(before[1], signal.SIGKILL)
    until(lambda: httpx.get(f"{live.url}/health?model=b", timeout=HANG_S).status_code == 503)
    health = httpx.get(f"{live.url}/health", timeout=HANG_S)
    assert health.status_code == 200 and health.json()["models"]["a"] == "ok"
    for thread in threads:
        thread.join(HANG_S)
    assert lines["a"][-1] == "data: [DONE]" and '"finish_reason":"length"' in lines["a"][-2]
    assert "engine_dead" in lines["b"][-1] or "engine_dead" in lines["b"][-2]
    until(lambda: httpx.get(f"{live.url}/health", timeout=HANG_S).json()["status"] == "ok")
    after = sorted(children(live.process))
    assert len(after) == len(NAMES) and set(before) - set(after) == {before[1]}
    answer = httpx.post(f"{live.url}/v1/completions", json={"model": "b", "prompt": "x", "max_tokens": 2}, timeout=HANG_S)
    assert answer.status_code == 200


def test_a_file_of_requests_for_two_models(tmp_path: Path) -> None:
    names = ("--served-model-name", "a", "--served-model-name", "b")
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {"model": name, "prompt": f"I am {name}"}} for name in ("a", "b", "c")]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ("--platform", "echo", "--max-model-len", "64", "--num-blocks", "40")
    done = llmx("run-batch", MODEL, MODEL, *names, "-i", str(source), "-o", str(target), *options, environ=install(tmp_path))
    assert done.returncode == 0 and "2 answered, 1 failed" in done.stdout, done.stderr
    told = {one["custom_id"]: one["response"] for one in map(json.loads, target.read_text().splitlines())}
    assert {name: told[name]["body"]["choices"][0]["text"] for name in "ab"} == {"a": "I am a", "b": "I am b"}
    assert told["a"]["body"]["model"] == "a" and told["c"]["status_code"] == 404


def test_one_model_twice_needs_two_names() -> None:
    refused = llmx("serve", MODEL, MODEL, "--port", "0")
    assert refused.returncode == 2 and "--served-model-name" in refused.stderr and "Traceback" not in refused.stderr
