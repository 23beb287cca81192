"""The load generator: sends requests at their times, at most so many at once, and measures each."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Callable, Sequence
from time import perf_counter, process_time
from typing import Any

import msgspec

from llmx.errors import RequestError
from llmx.record import record
from llmx_cli.bench.client import Client, HttpFailure
from llmx_cli.bench.datasets import Sample
from llmx_cli.bench.exchange import Exchange, perform

__all__ = ["Load", "first_model", "run_load", "wait_until_ready"]

_POLL_S = 0.2


@record
class Load:
    """A load and what it measured. cpu_s: processor time that this client took for it."""

    exchanges: list[Exchange]
    duration: float
    cpu_s: float


async def wait_until_ready(client: Client, timeout_s: float) -> bytes:
    """The server's list of models, asked for until it answers. Raises RequestError after timeout_s, or at once for a refusal."""
    end = perf_counter() + timeout_s
    while True:
        try:
            return await client.request("/v1/models")
        except HttpFailure as error:
            if "answered 4" in str(error):
                raise RequestError(f"{error}{'; here that is the option --api-key' if 'answered 401' in str(error) else ''}") from error
            if perf_counter() + _POLL_S > end:
                raise RequestError(f"the server is not ready: {error}") from error
        await asyncio.sleep(_POLL_S)


def first_model(listed: bytes) -> str:
    """Name of the first model that a server lists. Raises RequestError."""
    try:
        return str(msgspec.json.decode(listed)["data"][0]["id"])
    except (msgspec.DecodeError, KeyError, IndexError, TypeError) as error:
        raise RequestError("the server lists no model: name one with --model") from error


async def run_load(
    client: Client,
    path: str,
    make_body: Callable[[Sample], dict[str, Any]],
    samples: Sequence[Sample],
    times: Sequence[float],
    *,
    max_concurrency: int | None = None,
    keep_text: bool = False,
    show: bool = False,
) -> Load:
    """Send samples[i] times[i] seconds from now; ends when all are answered or have failed."""
    _allow_connections(min(len(samples), max_concurrency or len(samples)))
    places = asyncio.Semaphore(max_concurrency) if max_concurrency else None
    done = 0

    async def one(sample: Sample, exchange: Exchange) -> None:
        nonlocal done
        if places is not None:
            await places.acquire()
        try:
            await perform(client, path, make_body(sample), exchange, keep_text=keep_text)
        finally:
            if places is not None:
                places.release()
        done += 1
        if show:
            sys.stderr.write(f"\r{done}/{len(samples)} requests, {perf_counter() - begin:.0f} s")
            sys.stderr.flush()

    cpu, begin = process_time(), perf_counter()
    exchanges, tasks = [], []
    for sample, at in zip(samples, times, strict=True):
        wait = begin + at - perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        exchanges.append(Exchange(due=begin + at))
        tasks.append(asyncio.create_task(one(sample, exchanges[-1])))
    try:
        await asyncio.gather(*tasks)
    finally:
        if show:
            sys.stderr.write("\r\x1b[K")
    return Load(exchanges, perf_counter() - begin, process_time() - cpu)


def _allow_connections(count: int) -> None:
    """Raise the soft limit of open files, which is 1024 in most shells, as far as it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard) if hard != resource.RLIM_INFINITY else wanted, hard))
