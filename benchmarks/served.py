"""Rows that need a server: llmx over HTTP against llmx offline, and against transformers behind FastAPI.

    served32   32 streams of 128 + 128 tokens: new tokens per second over HTTP, as a share of offline batch32 (floor 0.85, aim 0.95)
    mixed64    64 mixed requests: requests per second against the 30-line server (floor 9), and median time to the first token (at most 0.5)

Sides alternate, one server process at a time, as many rounds as the comparison has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.jobs import Peers, run_job
from benchmarks.make_models import make_model
from benchmarks.rows import Job

__all__ = ["measure"]

ROOT = Path(__file__).parents[1]
_START_S = 600


def measure(name: str, peers: Peers, args: argparse.Namespace) -> dict[str, Any]:
    """The row `name`; {"error": why} when it cannot be measured here."""
    try:
        return _served32(peers, args) if name == "served32" else _mixed64(peers, args)
    except (LookupError, RuntimeError, subprocess.SubprocessError, OSError) as error:
        return {"error": f"not measured: {error}"}


def _served32(peers: Peers, args: argparse.Namespace) -> dict[str, Any]:
    model, shares, rates, last, offline = make_model("q4_1", args.models), [], [], {}, 0.0
    for round_ in range(args.rounds):
        for side in ("offline", "served") if round_ % 2 == 0 else ("served", "offline"):
            if side == "offline":
                offline = run_job(Job("llmx", "q4_1"), ["batch32"], peers.python("llmx"), model, args)["batch32"]
            else:
                last = _load(_llmx(model, args), 32, False)
        rates.append(last["new_tokens_per_s"])
        shares.append(round(last["new_tokens_per_s"] / offline, 3))
    return {"share_of_offline": median(shares), "floor": 0.85, "aim": 0.95, "rounds": shares, "new_tokens_per_s": median(rates), "last": last}


def _mixed64(peers: Peers, args: argparse.Namespace) -> dict[str, Any]:
    other, model, ratios, firsts, last = peers.python("transformers"), make_model("bf16", args.models), [], [], {}
    for _ in range(args.rounds):
        last = {"llmx": _load(_llmx(model, args), 64, True), "transformers": _load(_transformers(other, model), 64, True)}
        ratios.append(round(last["llmx"]["requests_per_s"] / last["transformers"]["requests_per_s"], 2))
        firsts.append(round(last["llmx"]["first_token_median_s"] / last["transformers"]["first_token_median_s"], 3))
    result = {"requests_ratio": median(ratios), "floor": 9, "rounds": ratios, "first_token_ratio": median(firsts), "at_most": 0.5}
    return {**result, "first_token_rounds": firsts, "last": last}


def _llmx(model: Path, args: argparse.Namespace) -> Any:
    command = [sys.executable, "-m", "llmx", "serve", str(model), "--threads", str(args.threads), "--port", "{port}"]
    return command, "/ready"


def _transformers(python: Path, model: Path) -> Any:
    return [str(python), str(ROOT / "benchmarks/transformers_server.py"), str(model), "{port}"], "/openapi.json"


def _load(server: Any, requests: int, mixed: bool) -> dict[str, Any]:
    """Start the server, load it once to warm it up and once for real, from a process of its own."""
    with _running(*server) as port:
        command = [sys.executable, "-m", "benchmarks.load", str(port), "--requests", str(requests), *(["--mixed"] if mixed else [])]
        command += ["--model", Path(server[0][server[0].index("serve") + 1]).stem if "serve" in server[0] else "any"]
        subprocess.run([*command[:4], "--requests", "2", *command[6:]], check=True, capture_output=True, cwd=ROOT, timeout=_START_S)
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=3600)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "the load generator failed")
        result: dict[str, Any] = json.loads(done.stdout)
        return result


@contextlib.contextmanager
def _running(command: list[str], ready: str) -> Iterator[int]:
    """A server process on a free port, from when it is ready until the end of the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    process = subprocess.Popen(
        [part.replace("{port}", str(port)) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        deadline = time.monotonic() + _START_S
        while not _answers(port, ready):
            if process.poll() is not None:
                why = (process.stderr.read() if process.stderr else b"").decode().strip().splitlines()
                raise RuntimeError(f"the server ended: {why[-1] if why else process.returncode}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server is not ready after {_START_S} s")
            time.sleep(0.2)
        yield port
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stderr:
            process.stderr.close()


def _answers(port: int, path: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as one:
            one.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            return one.recv(32).startswith(b"HTTP/1.1 200")
    except OSError:
        return False
