"""`llmx run-batch`: answers a file of requests with a model in this process, without a server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmx.errors import ConfigError
from llmx_cli.options import Settings, with_settings

if TYPE_CHECKING:
    from llmx_server.batch_lines import Outcome

__all__ = ["run_batch"]


@with_settings(several=True, also=("tool_call_parser", "reasoning_parser", "request_timeout"))
def run_batch(
    settings: Settings,
    source: Annotated[Path, typer.Option("-i", "--input-file", metavar="FILE", help="Requests, one JSON object per line: custom_id, method, url, body.")],
    target: Annotated[Path, typer.Option("-o", "--output-file", metavar="FILE", help="Where the answers go, one line each, as they come.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an output file that broke off: only the lines that it lacks run.")] = False,
) -> None:
    """Answer a file of requests, each as a server of the model, or of several, would; no line ends the others."""
    _check(source, target, resume)
    import asyncio

    from llmx.engine.async_engine import AsyncEngine
    from llmx_server.run_file import run_file

    engines: list[AsyncEngine] = []
    shared = settings.shared_threads()
    try:
        for config, changes in settings.resolve_models():
            engines.append(AsyncEngine.launch(shared.shared(config), changes))
        (engine, config), *others = ((one, one.config) for one in engines)
        counts = asyncio.run(run_file(engine, config, source, target, _Progress().show, others))
    finally:
        for one in engines:
            one.kill()
        shared.close()
    skipped = f", {counts.skipped} were there already" if counts.skipped else ""
    typer.echo(f"{counts.answered + counts.failed} requests: {counts.answered} answered, {counts.failed} failed{skipped}; {counts.output_tokens} tokens")
    typer.echo(f"written to {target}")


def _check(source: Path, target: Path, resume: bool) -> None:
    """Everything about the two files that can be wrong, before anything loads."""
    if not source.is_file():
        raise ConfigError(f"--input-file is {str(source)!r}: there is no such file", field="input_file")
    if not target.parent.is_dir():
        raise ConfigError(f"--output-file is {str(target)!r}: there is no such folder", field="output_file")
    if target.exists() and target.samefile(source):
        raise ConfigError("--output-file is the input file: name another one", field="output_file")
    if target.exists() and target.stat().st_size and not resume:
        raise ConfigError(f"--output-file is {str(target)!r}, which exists: remove it, name another one, or go on with it by --resume", field="output_file")


class _Progress:
    """A line on the terminal that counts."""

    def __init__(self) -> None:
        self._done = self._failed = 0

    def show(self, outcome: Outcome) -> None:
        """One more."""
        self._done += 1
        self._failed += not outcome.ok
        if sys.stderr.isatty():
            failed = f", {self._failed} failed" if self._failed else ""
            sys.stderr.write(f"\r\x1b[K{self._done} requests done{failed}")
            sys.stderr.flush()
