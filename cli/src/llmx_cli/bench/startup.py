"""`llmx bench startup`: from the command to a server that is ready, and to its first token."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Annotated, Any

import typer

from llmx.errors import LlmxError
from llmx_cli.bench.report import print_lines, written
from llmx_cli.options import Settings, with_settings

__all__ = ["startup"]

_END_S = 30  # for a server to end after SIGTERM


@with_settings()
def startup(
    settings: Settings,
    num_iters_cold: Annotated[int, typer.Option(min=1, metavar="N", help="Starts with an empty cache folder each.")] = 3,
    num_iters_warm: Annotated[int, typer.Option(min=1, metavar="N", help="Starts with what an earlier start left there.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Start-up time of `llmx serve`: process start to ready, and to the first token. Nothing is compiled, so compilation takes 0 s."""
    import tempfile

    cold, warm = [], []
    with tempfile.TemporaryDirectory(prefix="llmx-bench-") as folder:
        for index in range(num_iters_cold):
            cold.append(_start(settings, f"{folder}/{index}"))
        for _ in range(num_iters_warm):
            warm.append(_start(settings, f"{folder}/0"))  # where a cold start was
    result = {"cold": _summary(cold), "warm": _summary(warm)}
    if written(result, None, as_json=as_json):
        return
    print_lines({
        name: f"ready after {one['total_startup_time']:.2f} s, first token after {one['time_to_first_token']:.2f} s ({len(one['startup_times'])} starts)"
        for name, one in result.items()
    })  # fmt: skip


def _summary(times: list[tuple[float, float]]) -> dict[str, Any]:
    return {
        "total_startup_time": sum(ready for ready, _ in times) / len(times),
        "time_to_first_token": sum(first for _, first in times) / len(times),
        "compilation_time": 0.0,
        "encoder_compilation_time": 0.0,
        "startup_times": [ready for ready, _ in times],
    }


def _start(settings: Settings, cache: str) -> tuple[float, float]:
    """Seconds from the start of the process to ready and to the first token."""
    import asyncio
    import subprocess

    begin = perf_counter()
    command = [sys.executable, "-m", "llmx", "serve", *_arguments(settings), "--host", "127.0.0.1", "--port", "0", "--cache-dir", cache]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            url = next((line.split()[1] for line in process.stdout if line.startswith("ready ")), None)
            ready = perf_counter() - begin
            if url is None:
                raise LlmxError(f"the server did not start: {process.stderr.read().strip()}")
            return ready, asyncio.run(_first_token(url)) - begin
        finally:
            process.terminate()
            try:
                process.communicate(timeout=_END_S)
            except subprocess.TimeoutExpired:
                process.kill()


async def _first_token(url: str) -> float:
    """When the first piece of an answer came."""
    from llmx_cli.bench.client import Client
    from llmx_cli.bench.exchange import PATHS, Exchange, perform

    client, exchange = Client(url, {}), Exchange(0.0)
    body = {"prompt": "Hello", "max_tokens": 1, "stream": True, "ignore_eos": True}
    await perform(client, PATHS["openai"], body, exchange, keep_text=False)
    client.close()
    if exchange.error:
        raise LlmxError(f"the first request failed: {exchange.error}")
    return exchange.first


def _arguments(settings: Settings) -> list[str]:
    """The given options as a command line for `llmx serve`."""
    found = [] if settings.config_file is None else ["--config", settings.config_file]
    for name, value in settings.options.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            found.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            found += [item for one in (value if isinstance(value, list) else [value]) for item in (flag, str(one))]
    return found
