"""Running the server: it listens at once, is ready when the engine is, and drains on SIGTERM.

The first SIGTERM or SIGINT stops accepting and lets running requests finish for `server.drain_timeout_s`; what still runs
then is answered with an error. The second signal ends everything now. All are a clean end.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

from llmx.config import EngineConfig
from llmx_server.app import create_app
from llmx_server.listen import BACKLOG, bind
from llmx_server.serving import Serving

if TYPE_CHECKING:
    from llmx.engine.async_engine import AsyncEngine

__all__ = ["serve"]

_KEEP_ALIVE_S = 75  # idle connections: longer than common clients and proxies keep theirs, so that they close first

_CUT_GRACE_S = 5  # for error answers to reach their clients once the drain time is over

_log = logging.getLogger("llmx.server")


async def serve(
    engine: AsyncEngine,
    config: EngineConfig,
    *,
    sock: socket.socket | None = None,
    on_ready: Callable[[str], None] | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> None:
    """Serves until a signal; owns the engine from now on and closes it.

    The engine may still be starting: /health and /ready answer 503 until `engine.start()` returns, then on_ready gets the
    server's URL. on_progress is told how far the start is. Raises what `engine.start()` raises, and ConfigError when the port cannot be had.
    """
    try:
        sock = sock or bind(config.server.host, config.server.port)
        app = create_app(engine, config, phase="loading")
        server = _Server(_uvicorn_config(app, config))
        with _signals(server, app.state.serving) as draining:
            starting = asyncio.create_task(engine.start(on_progress))
            cutting = asyncio.create_task(_cut(engine, draining, config.server.drain_timeout_s))
            try:
                await _run(server, sock, starting, app.state.serving, on_ready)
            finally:
                cutting.cancel()
                await asyncio.gather(cutting, return_exceptions=True)
    finally:
        await engine.close()


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: it would raise the signal again at the end and lose the exit code."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Does nothing."""
        yield


async def _run(server: _Server, sock: socket.socket, starting: asyncio.Task[None], serving: Serving, on_ready: Callable[[str], None] | None) -> None:
    listening = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        await asyncio.wait((listening, starting), return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and not server.should_exit:
            starting.result()
            serving.metrics.name_model(serving.model_names[0])
            serving.phase = "ready"
            if on_ready:
                on_ready(_url(sock, serving.config.server.root_path))
        await listening
    finally:
        server.should_exit = True
        starting.cancel()
        await asyncio.gather(listening, starting, return_exceptions=True)


async def _cut(engine: AsyncEngine, draining: asyncio.Event, timeout_s: float) -> None:
    """Closes the engine when draining has taken too long: every request that still runs gets an error instead of silence."""
    await draining.wait()
    await asyncio.sleep(timeout_s)
    _log.warning("requests still run after %g s: ending them", timeout_s)
    await engine.close()


def _uvicorn_config(app: object, config: EngineConfig) -> uvicorn.Config:
    level = config.server.log_level.lower()
    verbose = level in ("debug", "trace")
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        lifespan="off",
        log_level=level if verbose else "warning",
        access_log=verbose,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=round(config.server.drain_timeout_s) + _CUT_GRACE_S,
        backlog=BACKLOG,
    )


@contextmanager
def _signals(server: _Server, serving: Serving) -> Iterator[asyncio.Event]:
    """Handles the signals; the event is set by the first."""
    loop = asyncio.get_running_loop()
    draining = asyncio.Event()

    def on_signal(number: int) -> None:
        name = signal.Signals(number).name
        if server.should_exit:
            _log.warning("%s again: ending now", name)
            server.force_exit = True
            return
        _log.info("%s: no new requests, running ones may finish for %g s", name, serving.config.server.drain_timeout_s)
        serving.phase = "draining"
        server.should_exit = True
        draining.set()

    handled = (signal.SIGTERM, signal.SIGINT)
    for number in handled:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield draining
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


def _url(sock: socket.socket, root_path: str) -> str:
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    return f"http://[{host}]:{port}{root_path}" if ":" in host else f"http://{host}:{port}{root_path}"
