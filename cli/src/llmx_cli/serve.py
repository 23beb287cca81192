"""`llmx serve`: spawns the engine process, takes the port, then imports the server while the engine loads."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from typing import TYPE_CHECKING

import typer

from llmx.options import OPTIONS
from llmx_cli import logs
from llmx_cli.options import Settings, with_settings
from llmx_cli.pull import showing_transfer

if TYPE_CHECKING:
    from llmx.config import Change
    from llmx.engine.messages import EngineInfo

__all__ = ["serve"]

_MIB = 1 << 20


@with_settings(server=True)
def serve(settings: Settings) -> None:
    """Serve a model over an OpenAI-compatible HTTP API."""
    from llmx.engine.spawn import EngineProcess

    signal.signal(signal.SIGTERM, _leave)  # until the server has its own handlers: no engine process may be left behind
    spawned = EngineProcess()
    gc.disable()  # until it is ready: what the imports make stays, and looking through it again and again takes a tenth of the start
    try:
        from llmx_server.listen import listen

        config, changes = settings.resolve()
        sock = listen(config.server)  # a port in use is told before anything loads
        import asyncio

        from llmx.engine.async_engine import AsyncEngine
        from llmx.engine.model_store import fetch_model

        with showing_transfer() as on_transfer:
            config = fetch_model(config, on_transfer)
        engine = AsyncEngine.launch(config, changes, spawned)
        from llmx_server.lifecycle import serve as serve_http
    except BaseException:
        spawned.kill()
        raise
    logs.configure(config.server.log_level, config.server.log_format)

    def on_ready(url: str) -> None:
        gc.freeze()
        gc.enable()
        _show_progress("", 0.0)
        lines = _summary(engine.info, changes, url, guarded=bool(config.server.api_keys or config.server.api_key_file), chats=engine.chat_template.available)
        if config.server.log_format == "json":
            _say(logs.json_line("info", "llmx", "ready", url=url, model=engine.info.name, summary=[": ".join(filter(None, line)) for line in lines]))
        else:
            _say("\n".join(f"{name:<9} {text}" for name, text in lines))

    try:
        asyncio.run(serve_http(engine, config, sock=sock, on_ready=on_ready, on_progress=_show_progress))
    finally:
        engine.kill()  # serve_http has closed it; this is for an end so early that it could not


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


def _summary(info: EngineInfo, changes: list[Change], url: str, *, guarded: bool, chats: bool) -> list[tuple[str, str]]:
    """What a user wants to know when the server is ready, as (name, text); ends with a command to try."""
    path, body = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}) if chats else ("/v1/completions", {"prompt": "Hello"})
    if info.pooling is not None:
        path, body = ("/classify" if info.pooling.classifies else "/v1/embeddings", {"input": "Hello"})
    flags = {option.path: option.flag for option in OPTIONS}
    key = " -H 'Authorization: Bearer YOUR_KEY'" if guarded else ""
    where = f"--unix-socket {url.removeprefix('unix:')} http://localhost" if url.startswith("unix:") else url
    size = f"up to {info.kv_bytes / _MIB:.0f} MiB {info.kv_dtype}, taken as it is used, {info.kv_tokens} tokens"
    shown = "chat, and a live view of the engine" if chats and info.pooling is None else "a live view of the engine"
    lines = [
        ("model", f"{', '.join(info.served_names) or info.name} ({info.architecture}, {info.dtype}), context {info.max_model_len} tokens"),
        ("platform", f"{info.platform} on {info.device}, {info.threads} thread{'s' if info.threads != 1 else ''}: {info.platform_why}"),
        *(("", other) for other in info.other_platforms),
        ("kv cache", f"{size}: {info.max_full_requests} requests of full length fit, {info.max_num_seqs} run at once at most"),
        *([("drafting", info.drafting)] if info.drafting else []),
        *(("set", f"{flags.get(change.path, change.path)} {change.value} ({change.source})") for change in changes),
        *(("set", change) for change in info.changes),
        *(("warning", warning) for warning in info.warnings),
        ("ready", f"{url} (loaded in {info.load_s:.1f} s)"),
        *([] if url.startswith("unix:") else [("page", f"{url}/ for a browser: {shown}")]),
        ("try", f"curl {where}{path}{key} -H 'Content-Type: application/json' -d '{json.dumps(body)}'"),
    ]
    return lines
