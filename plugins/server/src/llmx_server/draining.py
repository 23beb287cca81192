"""Draining: from the first signal to the end of the server.

The first SIGTERM or SIGINT refuses new requests with 503 while running ones may finish for `server.drain_timeout_s`. The port
stays open meanwhile, so that /health and /ready can say so. What still runs then ends with an error. A second signal ends
everything now.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from llmx_server.served_models import ServedModels

__all__ = ["drain", "signals"]

_POLL_S = 0.02

_log = logging.getLogger("llmx.server")


@contextmanager
def signals(server: uvicorn.Server, models: ServedModels) -> Iterator[asyncio.Event]:
    """Handles the signals; the event is set by the first."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def on_signal(number: int) -> None:
        name = signal.Signals(number).name
        if asked.is_set():
            _log.warning("%s again: ending now", name)
            server.should_exit = server.force_exit = True
            models.kill()
        elif models.host.phase == "loading":
            server.should_exit = True
        else:
            _log.info("%s: no new requests, running ones may finish for %g s; a second one ends them now", name, models.config.server.drain_timeout_s)
            models.host.phase = "draining"
            models.host.leaving.set()
        asked.set()

    handled = (signal.SIGTERM, signal.SIGINT)
    for number in handled:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield asked
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


async def drain(server: uvicorn.Server, models: ServedModels, asked: asyncio.Event) -> None:
    """Wait for the first signal, then for the running requests, then let the server end."""
    await asked.wait()
    limit = models.config.server.drain_timeout_s
    clock = asyncio.get_running_loop().time
    began = clock()
    answering = server.server_state.tasks
    while answering and clock() < began + limit:
        await asyncio.sleep(_POLL_S)
    if answering:
        _log.warning("requests still run after %g s (--shutdown-timeout): ending them", limit)
        await models.close(f"the server is shutting down and has waited {limit:g} s (--shutdown-timeout) for this request")
    server.should_exit = True
