#!/usr/bin/env python3
"""A lean load generator: streams of POST /v1/completions over raw sockets in one thread, so that it takes little of the machine it measures.

    python -m benchmarks.load PORT [--requests 32] [--mixed]      prints a JSON object

Every request has random token ids as its prompt, greedy, end-of-text ignored, streamed. Plain: 128 tokens in, 128 out. --mixed: 16 to
256 in, 16 to 128 out, drawn from a fixed seed. All are sent at once. The time runs from the first byte sent to the last received; the
time to the first token to the first event with text. `load_cpu_s` is the generator's own processor time.
"""

from __future__ import annotations

import argparse
import json
import random
import selectors
import socket
import time
from statistics import median
from typing import Any

__all__ = ["measure"]


class _Stream:
    """One request: its socket, and when its first and last bytes came."""

    def __init__(self, port: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.message = head.encode() + data
        self.first = self.last = 0.0
        self.tail = self.head = b""

    def take(self, data: bytes, now: float) -> None:
        """More of the answer."""
        if len(self.head) < 4096:
            self.head += data
        if not self.first and b'"text"' in self.head:
            self.first = now
        self.tail, self.last = (self.tail + data)[-64:], now

    @property
    def complete(self) -> bool:
        """The answer is 200 and ends as a stream of events does."""
        return self.head.startswith(b"HTTP/1.1 200") and b"[DONE]" in self.tail


def _bodies(model: str, requests: int, mixed: bool) -> list[dict[str, Any]]:
    draw, shape = random.Random(time.time_ns()), random.Random(0)
    bodies = []
    for _ in range(requests):
        length, new = (shape.randrange(16, 257), shape.randrange(16, 129)) if mixed else (128, 128)
        prompt = [draw.randrange(100, 40000) for _ in range(length)]
        bodies.append({"model": model, "prompt": prompt, "max_tokens": new, "temperature": 0, "stream": True, "ignore_eos": True})
    return bodies


def measure(port: int, model: str, requests: int, mixed: bool = False) -> dict[str, Any]:
    """One load. Raises RuntimeError when a request was not answered whole."""
    bodies = _bodies(model, requests, mixed)
    streams = [_Stream(port, body) for body in bodies]
    cpu, began = time.process_time(), time.perf_counter()
    for stream in streams:
        stream.socket.sendall(stream.message)
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            stream.socket.setblocking(False)
            selector.register(stream.socket, selectors.EVENT_READ, stream)
        while selector.get_map():
            for key, _ in selector.select(timeout=600):
                data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                if data:
                    key.data.take(data, time.perf_counter())
                else:
                    selector.unregister(key.fileobj)
    cpu = time.process_time() - cpu
    for stream in streams:
        stream.socket.close()
    broken = [stream for stream in streams if not stream.complete]
    if broken:
        raise RuntimeError(f"{len(broken)} of {requests} requests were not answered whole; the first begins {broken[0].head[:200]!r}")
    took = max(stream.last for stream in streams) - began
    first = sorted(stream.first - began for stream in streams)
    new = sum(body["max_tokens"] for body in bodies)
    return {
        "requests": requests,
        "seconds": round(took, 3),
        "requests_per_s": round(requests / took, 3),
        "new_tokens_per_s": round(new / took, 1),
        "first_token_median_s": round(median(first), 3),
        "first_token_p99_s": round(first[min(len(first) - 1, int(0.99 * len(first)))], 3),
        "load_cpu_s": round(cpu, 3),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("--model", default="")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--mixed", action="store_true")
    args = parser.parse_args()
    print(json.dumps(measure(args.port, args.model, args.requests, args.mixed)))


if __name__ == "__main__":
    main()
