"""`llmx pull MODEL`: fetches a model of the Hugging Face hub; and the progress of a download for the commands that start with one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmx_cli.options import Settings

if TYPE_CHECKING:
    from llmx.engine.model_fetch import OnTransfer, Transfer

__all__ = ["CACHE_DIR", "REVISION", "fetched", "pull", "showing_transfer"]

REVISION = Annotated[str | None, typer.Option("--revision", metavar="TEXT", help="Branch, tag or commit. Default: main.", show_default=False)]
_CACHE_HELP = "Folder of hub models. Default: that of huggingface_hub."
CACHE_DIR = Annotated[str | None, typer.Option("--download-dir", metavar="DIR", help=_CACHE_HELP, show_default=False)]


def pull(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="org/name, org/name@revision, or org/name:QUANT for one GGUF file.")],
    revision: REVISION = None,
    hf_token: Annotated[str | None, typer.Option(metavar="TEXT", help="Token for the hub. Default: HF_TOKEN, or that of `hf auth login`.")] = None,
    download_dir: CACHE_DIR = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show tracebacks.")] = False,
) -> None:
    """Fetch a model from the Hugging Face hub: the files that it needs, checked for space first. Run it again to go on after a break, or to update."""
    from llmx.engine.model_fetch import file_size
    from llmx.engine.model_store import pull_model

    options = {"model": model, "revision": revision, "hf_token": hf_token, "download_dir": download_dir}
    config, _ = Settings(options).resolve()
    with showing_transfer() as on_transfer:
        found = pull_model(config.model, on_transfer)
    if as_json:
        typer.echo(json.dumps({"model": str(found.name), "commit": found.commit, "path": found.path, "size": found.size}, indent=2))
        return
    typer.echo(f"{found.name}: {len(found.files)} files, {file_size(found.size)}, revision {found.commit[:12]}")
    typer.echo(f"{found.path}")
    typer.echo(f"start it with: llmx serve {model}{f' --revision {revision}' if revision else ''}{f' --download-dir {download_dir}' if download_dir else ''}")


def fetched(settings: Settings) -> dict[str, Any]:
    """What llmx.LLM takes, after a hub model that is not on this machine was fetched."""
    from llmx.engine.model_fetch import fetch_model

    config, changes = settings.resolve()
    with showing_transfer() as on_transfer:
        config = fetch_model(config, on_transfer)
    return settings.named(config, [change for change in changes if change.path != "model.hf_token"])


@contextmanager
def showing_transfer() -> Iterator[OnTransfer]:
    """Shows a download on stderr: bars on a terminal, plain lines elsewhere; nothing when nothing is fetched."""
    if not sys.stderr.isatty():
        from llmx.engine.model_fetch import TransferLine

        with TransferLine(sys.stderr) as line:
            yield line.show
        return
    bars = _Bars()
    try:
        yield bars.show
    finally:
        bars.close()


class _Bars:
    """One bar for the file and one for all; made with the first byte, so that a start without a download shows none."""

    def __init__(self) -> None:
        self._close: Callable[[], None] = lambda: None
        self._file = ""

    def show(self, transfer: Transfer) -> None:
        """The state now."""
        if not self._file:
            self._open()
        if transfer.file != self._file:
            self._file = transfer.file
            self._progress.reset(self._one, total=transfer.size, description=transfer.file)
        self._progress.update(self._one, completed=transfer.done, total=transfer.size)
        self._progress.update(self._all, completed=transfer.total_done, total=transfer.total_size)

    def close(self) -> None:
        """Leaves the terminal as it was."""
        self._close()

    def _open(self) -> None:
        from rich.console import Console  # 60 ms that a start without a download need not pay
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._one = self._progress.add_task("", total=None)
        self._all = self._progress.add_task("all files", total=None)
        self._progress.start()
        self._close = self._progress.stop
