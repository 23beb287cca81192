"""`llmx serve`: spawns the engine process, takes the port, then imports the server while the engine loads."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import Any

import typer

from llmx_cli import logs
from llmx_cli.options import Settings, with_settings
from llmx_cli.pull import showing_transfer
from llmx_cli.serve_summary import Started, summary

__all__ = ["serve"]


@with_settings(server=True, several=True)
def serve(settings: Settings, context: typer.Context) -> None:
    """Serve a model, or several, over an OpenAI-compatible HTTP API."""
    from llmx.engine.spawn import EngineProcess

    signal.signal(signal.SIGTERM, _leave)  # until the server has its own handlers: no engine process may be left behind
    spawned, models = context.find_object(EngineProcess) or EngineProcess(), list[Started]()
    gc.disable()  # until it is ready: what the imports make stays, and looking through it again and again takes a tenth of the start
    try:
        from llmx_server.listen import listen

        resolved, shared = settings.resolve_models(), settings.shared_threads()
        sock = listen(resolved[0][0].server)  # a port in use is told before anything loads
        import asyncio

        from llmx.engine.async_engine import AsyncEngine
        from llmx.engine.model_fetch import fetch_model

        with showing_transfer() as on_transfer:
            resolved = [(fetch_model(shared.shared(config), on_transfer), changes) for config, changes in resolved]
        for config, changes in resolved:
            models.append(Started(AsyncEngine.launch(config, changes, None if models else spawned), changes))
        from llmx_server.lifecycle import serve as serve_http
    except BaseException:
        spawned.kill()
        for model in models:
            model.engine.kill()
        raise
    (engine, config), *others = ((model.engine, model.engine.config) for model in models)
    logs.configure(config.server.log_level, config.server.log_format)

    def make_engine(own: dict[str, Any]) -> AsyncEngine:
        config, changes = settings.resolve_further(own)
        return AsyncEngine.launch(shared.shared(config), changes)

    grpc = list[str]()

    def on_ready(url: str) -> None:
        gc.freeze()
        gc.enable()
        _show_progress("", 0.0)
        lines = summary(models, url, guarded=bool(config.server.api_keys or config.server.api_key_file), grpc="".join(grpc))
        if config.server.log_format == "json":
            _say(logs.json_line("info", "llmx", "ready", url=url, model=engine.info.name, summary=[": ".join(filter(None, line)) for line in lines]))
        else:
            _say("\n".join(f"{name:<9} {text}" for name, text in lines))

    try:
        serving = serve_http(
            engine, config, others=others, make_engine=make_engine, sock=sock, on_ready=on_ready, on_progress=_show_progress, on_grpc=grpc.append
        )
        asyncio.run(serving)
    finally:
        for model in models:
            model.engine.kill()  # serve_http has closed it; this is for an end so early that it could not
        shared.close()


def _say(text: str) -> None:
    """Print; where nobody reads, or the disk of the log is full, say so on stderr and serve all the same."""
    try:
        typer.echo(text)
    except OSError as error:
        typer.echo(f"warning: nothing can be printed on stdout: {error}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at the end does not fail as well


def _leave(number: int, frame: object) -> None:
    raise SystemExit(0)


def _show_progress(what: str, fraction: float) -> None:
    """The line that says what the start is at; terminals only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{what} {fraction:.0%}" if what else "\r\x1b[K")
        sys.stderr.flush()
