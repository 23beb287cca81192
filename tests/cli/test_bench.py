"""`llmx bench`: the load generator against a server that is known to the token, arrivals, figures, data sets, and the offline benchmarks."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean

import pytest

from llmx.errors import ConfigError
from llmx_cli.bench.arrivals import arrival_times, check_arrivals
from llmx_cli.bench.client import Client, HttpFailure
from llmx_cli.bench.datasets import DatasetOptions, Sample, samples
from llmx_cli.bench.exchange import Exchange
from llmx_cli.bench.figures import load_figures, parse_goodput
from llmx_cli.bench.load import run_load
from llmx_cli.bench.metrics import percentile
from tests.cli.conftest import Ran

GAP = 0.02  # seconds between the pieces that the server below sends


@asynccontextmanager
async def _server(answer: Callable[[str, bytes], list[bytes]]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A bare HTTP server; answer(path, body) gives what is written, piece by piece. Gives its URL and the bodies that came."""
    bodies: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = re.search(rb"Content-Length: (\d+)", head)
                bodies.append(await reader.readexactly(int(size[1]) if size else 0))
                for piece in answer(head.split()[1].decode(), bodies[-1]):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(GAP)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", bodies


def _stream(*events: object, cut: int = 0) -> list[bytes]:
    """A chunked event stream; cut > 0: also in pieces of so many bytes, which no border respects."""
    data = [f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode() for event in (*events, "[DONE]")]
    chunks = [f"{len(one):x}\r\n".encode() + one + b"\r\n" for one in data]
    whole = [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n"]
    text = b"".join(whole)
    return [text[at : at + cut] for at in range(0, len(text), cut)] if cut else whole


def _text(text: str) -> dict[str, object]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": None}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}


@pytest.mark.parametrize("cut", [0, 29])
def test_one_request_is_measured_as_defined(cut: int) -> None:
    async def measure() -> tuple[list[Exchange], int]:
        async with _server(lambda path, body: _stream(_text("a"), _text("b"), _text("c"), USAGE, cut=cut)) as (url, _):
            client = Client(url + "/v1", {})
            wanted = [Sample("x", 3)] * 2
            load = await run_load(client, "/v1/completions", lambda sample: {"prompt": sample.prompt}, wanted, [0.0, 0.0], max_concurrency=1, keep_text=True)
            client.close()
            return load.exchanges, client.connections

    (first, second), connections = asyncio.run(measure())
    assert connections == 1  # kept open
    for one in (first, second):
        assert (one.error, one.input_tokens, one.output_tokens, one.counted, "".join(one.text)) == ("", 7, 3, True, "abc")
        assert one.sent < one.first <= one.last and len(one.gaps) == 2 and one.last - one.first == pytest.approx(sum(one.gaps))
        if not cut:
            assert all(gap > 0.7 * GAP for gap in one.gaps)
    assert second.sent > first.last and second.due < first.last  # it waited for its place


def test_chat_counts_only_pieces_with_text() -> None:
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    piece = {"choices": [{"index": 0, "delta": {"content": "hi"}}]}

    async def measure() -> Exchange:
        async with _server(lambda path, body: _stream(role, piece, piece)) as (url, _):
            load = await run_load(Client(url, {}), "/v1/chat/completions", lambda sample: {}, [Sample("x", 2)], [0.0])
            return load.exchanges[0]

    one = asyncio.run(measure())
    assert one.output_tokens == 2 and not one.counted and one.first - one.sent > 0.7 * GAP


def _plain(status: str, body: bytes) -> list[bytes]:
    return [f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body]


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        (_plain("503 Busy", b'{"error":{"message":"try later"}}'), "answered 503: try later"),
        (_plain("404 No", b"<html>"), "answered 404: <html>"),
        (_stream(_text("a"), {"error": {"message": "the engine died"}}), "the engine died"),
        (_stream(_text("a"))[:2] + [b"zz"], "ended before"),
        (_stream({"choices": []}), "no text"),
        (_stream("{not json"), "malformed"),
    ],
)
def test_failures_are_told_and_counted(pieces: list[bytes], says: str) -> None:
    async def measure() -> Exchange:
        async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.writelines(pieces)
            writer.close()

        async with await asyncio.start_server(ends, "127.0.0.1", 0) as server:
            client = Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {})
            load = await run_load(client, "/v1/completions", lambda sample: {}, [Sample("x", 2)], [0.0])
            return load.exchanges[0]

    one = asyncio.run(measure())
    assert says in one.error, one.error
    figures = load_figures([one], 1.0, ["ttft"], [99], {})
    assert (figures["completed"], figures["failed"], figures["total_output_tokens"]) == (0, 1, 0)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(HttpFailure, match="cannot be reached"):
        asyncio.run(Client("http://127.0.0.1:1", {}).request("/v1/models"))
    with pytest.raises(ConfigError, match="like http://"):
        Client("127.0.0.1:8000", {})


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_arrivals_have_the_rate_and_the_burstiness(burstiness: float) -> None:
    times = list(arrival_times(20_000, 50.0, burstiness, random.Random(1)))
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    mean = fmean(gaps)
    spread = fmean((gap - mean) ** 2 for gap in gaps) ** 0.5
    assert mean == pytest.approx(1 / 50, rel=0.05) and spread / mean == pytest.approx(burstiness**-0.5, rel=0.05)


def test_arrivals_all_at_once_and_with_a_growing_rate() -> None:
    assert set(arrival_times(5, float("inf"), 1.0, random.Random(0))) == {0.0}
    for ramp in ("linear", "exponential"):
        times = list(arrival_times(4_000, float("inf"), 1.0, random.Random(0), ramp, 10.0, 100.0))
        first, last = times[400] - times[0], times[-1] - times[-401]
        assert first / last > 3
    with pytest.raises(ConfigError, match="leave --request-rate out"):
        check_arrivals(5.0, 1.0, "linear", 1.0, 2.0)
    with pytest.raises(ConfigError, match="ramp-up-strategy linear"):
        check_arrivals(5.0, 1.0, None, 1.0, 2.0)


def _exchange(sent: float, ttft: float, gaps: list[float], tokens: int | None = None) -> Exchange:
    pieces = [sent + ttft]
    for gap in gaps:
        pieces.append(pieces[-1] + gap)
    return Exchange(sent - 0.5, sent, pieces[0], pieces[-1], gaps, pieces, [], 10, tokens or len(pieces))


def test_figures_follow_their_definitions() -> None:
    done = [_exchange(1.0, 0.1, [0.01] * 9), _exchange(1.5, 0.3, [0.02] * 9), _exchange(3.0, 0.2, [])]
    metrics = ["ttft", "tpot", "itl", "e2el", "client_queue_time"]
    result = load_figures(done, 4.0, metrics, [50, 99.9], {"ttft": 250.0, "tpot": 15.0})
    assert result["mean_ttft_ms"] == pytest.approx(200) and result["p50_ttft_ms"] == pytest.approx(200)
    assert result["mean_tpot_ms"] == pytest.approx(15) and result["mean_itl_ms"] == pytest.approx(15)  # one token has no time per token
    assert result["mean_e2el_ms"] == pytest.approx((190 + 480 + 200) / 3) and "p99.9_e2el_ms" in result
    assert result["mean_client_queue_time_ms"] == pytest.approx(500)
    assert result["request_goodput"] == pytest.approx(2 / 4) and result["request_throughput"] == pytest.approx(3 / 4)
    assert result["total_token_throughput"] == pytest.approx((30 + 21) / 4) and result["max_concurrent_requests"] == 1
    assert result["max_output_tokens_per_s"] == 20
    assert percentile([1, 2, 3, 4], 50) == 2.5 and percentile([5], 99) == 5
    assert parse_goodput(["ttft:100 tpot:5", "e2el:9"]) == {"ttft": 100, "tpot": 5, "e2el": 9}


def test_datasets(tmp_path: Path) -> None:
    asked = DatasetOptions(num_prompts=200, random_input_len=20, random_output_len=10, random_range_ratio=0.5, random_prefix_len=3)
    varied = samples(asked, None, as_text=True)
    words = [str(one.prompt).split() for one in varied]
    assert {len(one) - 3 for one in words} == set(range(10, 31)) and len({tuple(one[:3]) for one in words}) == 1
    shared = samples(DatasetOptions("prefix_repetition", num_prompts=40, prefix_repetition_num_prefixes=4), None, as_text=True)
    starts = {tuple(str(one.prompt).split()[:256]) for one in shared}
    assert len(starts) == 4 and len({one.prompt for one in shared}) == 40
    file = tmp_path / "lines.jsonl"
    file.write_text('{"prompt": "a b", "output_tokens": 3}\n\n{"prompt": "c"}\n')
    custom = samples(DatasetOptions("custom", str(file), num_prompts=4), None, as_text=True)
    assert sorted((str(one.prompt), one.output_len) for one in custom) == [("a b", 3), ("a b", 3), ("c", 256), ("c", 256)]
    talk = [{"conversations": [{"value": "one two three four five six"}, {"value": "yes " * 9}]}, {"conversations": [{"value": "short"}]}]
    file.write_text(json.dumps(talk))
    (chat,) = samples(DatasetOptions("sharegpt", str(file), num_prompts=1), None, as_text=True)
    assert chat.output_len == 12 and str(chat.prompt).startswith("one")
    for text, says in (('{"text": 1}\n', "entry 1 has no"), ("nonsense", "neither a JSON list")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=says):
            samples(DatasetOptions("custom", str(file)), None, as_text=True)


def test_bench_serve_as_a_command(llmx: Callable[..., Ran], tmp_path: Path) -> None:
    """The whole command against the bare server: keys of the result, files, headers, exit code."""
    import threading

    models = _plain("200 OK", b'{"data": [{"id": "echo"}]}')
    url: list[str] = []
    bodies: list[list[bytes]] = []
    ready, end = threading.Event(), threading.Event()

    async def main() -> None:
        def answer(path: str, body: bytes) -> list[bytes]:
            return models if path == "/v1/models" else _stream(_text("a"), _text("b"), USAGE)

        async with _server(answer) as (where, seen):
            url.append(where)
            bodies.append(seen)
            ready.set()
            while not end.is_set():
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert ready.wait(20)
        sizes = ("--num-prompts", "4", "--random-input-len", "5", "--random-output-len", "2", "--num-warmups", "1", "--max-concurrency", "2")
        options = ("--goodput", "ttft:9000", "--percentile-metrics", "ttft,e2el", "--metric-percentiles", "50,99", "--metadata", "machine=test")
        files = ("--save-detailed", "--result-dir", str(tmp_path / "new"), "--result-filename", "r.json", "--extra-body", '{"user": "me"}', "--ignore-eos")
        ran = llmx("bench", "serve", "--base-url", url[0], "--json", *sizes, *options, *files)
        assert llmx("bench", "serve", "--base-url", url[0], "--tokenizer", "smollm2-135m-instruct", *sizes).code == 0
    finally:
        end.set()
        thread.join()
    result = ran.json()
    assert ran.code == 0 and (result["completed"], result["failed"], result["model_id"], result["machine"]) == (4, 0, "echo", "test")
    assert result["total_input_tokens"] == 28 and result["total_output_tokens"] == 12 and result["request_goodput"] > 0
    named = {f"{kind}_{metric}_ms" for kind in ("mean", "median", "std", "p50", "p99") for metric in ("ttft", "e2el")}
    keys = """date backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency duration completed failed total_input_tokens
        total_output_tokens request_throughput request_goodput output_throughput total_token_throughput max_output_tokens_per_s max_concurrent_requests
        input_lens output_lens ttfts itls start_times generated_texts errors client_cpu_s""".split()
    assert named | set(keys) <= set(result) and result["generated_texts"] == ["ab"] * 4 and result["max_concurrent_requests"] <= 2
    assert json.loads((tmp_path / "new/r.json").read_text()) == result
    sent = [json.loads(body) for body in bodies[0] if body]
    assert all(one["user"] == "me" and one["ignore_eos"] and one["max_tokens"] == 2 and one["model"] == "echo" for one in sent[:5])
    assert len(sent) == 10 and isinstance(sent[0]["prompt"], str) and len(sent[-1]["prompt"]) == 5  # words without a tokenizer, ids with one
    assert "the server is not ready" in llmx("bench", "serve", "--port", "1", "--ready-check-timeout-sec", "0").err


def test_bench_latency_and_throughput(llmx: Callable[..., Ran], tmp_path: Path) -> None:
    null = ("--platform", "null", "--num-blocks", "600")
    sizes = ("--input-len", "4", "--output-len", "3", "--batch-size", "2", "--num-iters", "3", "--num-iters-warmup", "1")
    result = llmx("bench", "latency", "--json", "--output-json", str(tmp_path / "r.json"), *sizes, *null).json()
    assert len(result["latencies"]) == 3 and result["avg_latency"] == pytest.approx(fmean(result["latencies"]))
    assert list(result["percentiles"]) == ["10", "25", "50", "75", "90", "99"] and json.loads((tmp_path / "r.json").read_text()) == result
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "hello", "output_tokens": 3}\n')
    custom = llmx("bench", "throughput", "--json", "--num-prompts", "3", "--dataset-name", "custom", "--dataset-path", str(file), *null).json()
    assert custom["num_requests"] == 3 and custom["output_tokens_per_second"] == pytest.approx(9 / custom["elapsed_time"])


def test_bench_startup(llmx: Callable[..., Ran]) -> None:
    one = ("--num-iters-cold", "1", "--num-iters-warm", "1")
    result = llmx("bench", "startup", "--json", *one, "--platform", "null", "--num-blocks", "600", "--max-num-seqs", "4", "--no-interactive").json()
    for kind in ("cold", "warm"):
        assert 0 < result[kind]["total_startup_time"] < result[kind]["time_to_first_token"] and result[kind]["compilation_time"] == 0
    assert "did not start" in llmx("bench", "startup", "/no/such.gguf", *one).err
