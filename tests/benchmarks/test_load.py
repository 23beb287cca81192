"""The load generator against a server of a few lines: what it counts, and that it notices answers that are not whole."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import sleep

import pytest
from benchmarks.load import measure


@pytest.fixture
def serve() -> Iterator[Callable[[int], int]]:
    """Starts a server whose every answer ends after `whole` events (-1: it is whole); gives the port."""
    servers = []

    def start(whole: int) -> int:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                bodies.append(body)
                self.send_response(200)
                self.send_header("Connection", "close")
                self.end_headers()
                for at in range(body["max_tokens"]):
                    if at == whole:
                        return
                    sleep(0.001)
                    self.wfile.write(b'data: {"choices": [{"text": "x"}]}\n\n')
                self.wfile.write(b"data: [DONE]\n\n")

            def log_message(self, *args: object) -> None:
                """Silent."""

        bodies: list[dict[str, object]] = []
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.bodies = bodies  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return int(server.server_address[1])

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_counts_tokens_and_times(serve: Callable[[int], int]) -> None:
    result = measure(serve(-1), "any", 4)
    assert result["requests"] == 4
    assert result["new_tokens_per_s"] == pytest.approx(4 * 128 / result["seconds"], rel=0.01)
    assert result["requests_per_s"] == pytest.approx(4 / result["seconds"], rel=0.01)
    assert 0 < result["first_token_median_s"] <= result["first_token_p99_s"] < result["seconds"]
    assert 0 < result["load_cpu_s"]


def test_mixed_requests_have_the_same_shapes_every_time(serve: Callable[[int], int]) -> None:
    from benchmarks.load import _bodies

    shapes = [[(len(body["prompt"]), body["max_tokens"]) for body in _bodies("any", 64, True)] for _ in range(2)]
    assert shapes[0] == shapes[1] and len(set(shapes[0])) > 32
    assert all(16 <= length <= 256 and 16 <= new <= 128 for length, new in shapes[0])
    assert _bodies("any", 2, True)[0]["prompt"] != _bodies("any", 2, True)[0]["prompt"]  # no prefix cache may answer


def test_an_answer_that_is_cut_off_is_an_error(serve: Callable[[int], int]) -> None:
    with pytest.raises(RuntimeError, match="2 of 2 requests were not answered whole"):
        measure(serve(5), "any", 2)
