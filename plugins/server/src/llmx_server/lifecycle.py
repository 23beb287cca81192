"""Running the server: it listens at once, is ready when the engine is, and drains on SIGTERM, which is a clean end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from llmx.config import EngineConfig, ServerConfig
from llmx.errors import LlmxError
from llmx_server.app import Application, create_app
from llmx_server.batches import Batches
from llmx_server.callers import Callers
from llmx_server.draining import drain, signals
from llmx_server.listen import BACKLOG, listen, url_of, uses_tls
from llmx_server.served_models import ServedModels
from llmx_server.slow_reader import reader_protocol
from llmx_server.stat_loggers import read_regularly

if TYPE_CHECKING:
    from llmx.engine.async_engine import AsyncEngine

__all__ = ["serve"]

_KEEP_ALIVE_S = 75  # idle connections: longer than common clients and proxies keep theirs, so that they close first
_MAX_MESSAGE_BYTES = 4 * 2**20  # of a WebSocket: it is read before a key is seen
_LAST_BYTES_S = 5  # for the ends of answers to reach their clients once nothing runs any more


async def serve(
    engine: AsyncEngine,
    config: EngineConfig,
    *,
    others: Sequence[tuple[AsyncEngine, EngineConfig]] = (),
    make_engine: Callable[[dict[str, Any]], AsyncEngine] | None = None,
    sock: socket.socket | None = None,
    on_ready: Callable[[str], None] | None = None,
    on_progress: Callable[[str, float], None] | None = None,
    on_grpc: Callable[[str], None] | None = None,
) -> None:
    """Serves until a signal; owns the engine and the `others` from now on and closes them.

    Engines may still be starting: /health and /ready answer 503 until `engine.start()` of each returns, then on_ready gets the
    server's URL. make_engine: an engine of further models, from their options (POST /v1/admin/models/load).
    on_progress is told how far the start is, on_grpc the address of the gRPC port where there is one. Raises what `engine.start()` raises, and
    ConfigError when a port cannot be had.
    """
    engines = [engine, *(other for other, _ in others)]
    batches: Batches | None = None
    callers: Callers | None = None
    models: ServedModels | None = None
    try:
        sock = sock or listen(config.server)
        app = create_app(engine, config, others=others, phase="loading")
        models, batches, callers = app.state.models, app.state.batches, app.state.callers
        models.make_engine = make_engine
        server = _Server(_uvicorn_config(app, config))
        with signals(server, app.state.models) as asked:
            starting = asyncio.create_task(_start(engines, on_progress))
            draining = asyncio.create_task(drain(server, app.state.models, asked))
            try:
                async with _grpc(app, config.server, server.server_state.tasks, on_grpc):
                    await _run(server, sock, starting, app.state.models, on_ready, batches)
            finally:
                draining.cancel()
                await asyncio.gather(draining, return_exceptions=True)
    finally:
        if batches is not None:
            await batches.close()
        if callers is not None:
            callers.save()
        if config.server.uds:
            Path(config.server.uds).unlink(missing_ok=True)
        if models is not None:
            await models.close()
        await asyncio.gather(*(one.close() for one in engines))


@asynccontextmanager
async def _grpc(
    app: Application, config: ServerConfig, running: set[asyncio.Task[None]], on_grpc: Callable[[str], None] | None
) -> AsyncIterator[None]:
    """The gRPC port, where it is asked for. Its calls are among `running`: a drain waits for them as for HTTP's."""
    if config.grpc_port is None:
        yield
        return
    from llmx_server.rpc.server import RpcServer  # reads grpc, which few need and not everybody has

    rpc = RpcServer(app, config, running)
    address = await rpc.start()
    if on_grpc:
        on_grpc(address)
    try:
        yield
    finally:
        await rpc.stop()


async def _start(engines: Sequence[AsyncEngine], on_progress: Callable[[str, float], None] | None) -> None:
    """Wait until all run. The first that cannot be started ends the others' start."""

    async def start(engine: AsyncEngine) -> None:
        try:
            await engine.start(on_progress)
        except LlmxError as error:
            if len(engines) > 1:
                error.args = (f"model {engine.config.model.source!r}: {error}",)
            raise

    starts = [asyncio.create_task(start(engine)) for engine in engines]
    try:
        await asyncio.gather(*starts)
    finally:
        for task in starts:
            task.cancel()
        await asyncio.gather(*starts, return_exceptions=True)


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: it would raise the signal again at the end and lose the exit code."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Does nothing."""
        yield


async def _run(
    server: _Server, sock: socket.socket, starting: asyncio.Task[None], models: ServedModels, on_ready: Callable[[str], None] | None, batches: Batches | None
) -> None:
    beside: list[asyncio.Task[None]] = []
    listening = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        await asyncio.wait((listening, starting), return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and not server.should_exit:
            starting.result()
            models.became_ready()
            models.host.phase = "ready"
            if (limit := models.config.server.idle_unload_s) is not None:
                beside.append(asyncio.create_task(models.rest_idle(limit)))
            if (interval := models.config.server.stats_interval_s) is not None:
                beside.append(asyncio.create_task(read_regularly(models, interval)))
            if batches is not None:
                batches.start()
            if on_ready:
                on_ready(url_of(sock, models.config.server.root_path, "https" if uses_tls(models.config.server) else "http"))
        await listening
    finally:
        server.should_exit = True
        tasks = [starting, *beside]
        for task in tasks:
            task.cancel()
        await asyncio.gather(listening, *tasks, return_exceptions=True)


def _web_socket(*args: Any, **kwargs: Any) -> asyncio.Protocol:
    # uvicorn's choice, read with the first connection that needs it: few do, and reading it takes a twentieth of the start
    from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol

    return cast(asyncio.Protocol, AutoWebSocketsProtocol(*args, **kwargs))  # type: ignore[misc]


def _uvicorn_config(app: object, config: EngineConfig) -> uvicorn.Config:
    level = config.server.log_level.lower()
    verbose = level in ("debug", "trace")
    made = uvicorn.Config(
        app,  # type: ignore[arg-type]
        lifespan="off",
        log_config=None,  # its loggers hand on to ours
        log_level=level if verbose else "warning",
        access_log=verbose,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_LAST_BYTES_S,
        http=reader_protocol(config.server.reader_timeout_s),
        ws=_web_socket,  # type: ignore[arg-type]
        ws_max_size=_MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,  # messages are a token each
        backlog=BACKLOG,
    )
    if uses_tls(config.server):
        from llmx_server.tls import tls_context  # reads ssl

        made.load()
        made.ssl = tls_context(config.server)  # uvicorn's own would leave older versions and a password to be typed
    return made

