"""`llmx list`, `llmx show`, `llmx rm`: the models on this machine. No network."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmx_cli.options import Settings
from llmx_cli.pull import CACHE_DIR, REVISION
from llmx_cli.table import print_table

if TYPE_CHECKING:
    from llmx.config import ModelConfig
    from llmx.engine.model_store import ModelCard

__all__ = ["list_", "remove", "show"]

_JSON = Annotated[bool, typer.Option("--json", help="The result as JSON.")]
_VERBOSE = Annotated[bool, typer.Option("--verbose", help="Show tracebacks.")]


def list_(download_dir: CACHE_DIR = None, as_json: _JSON = False, verbose: _VERBOSE = False) -> None:
    """List the models on this machine that can be served by name: fetched ones, and those that installed packages carry."""
    from llmx.engine.model_fetch import file_size
    from llmx.engine.model_store import embedded_models, list_models

    found: list[dict[str, Any]] = [
        {"model": name, "kind": "gguf", "size": size, "commit": None, "modified": None, "path": path} for name, path, size in embedded_models()
    ]
    for model in list_models(_config(None, None, download_dir)):
        modified = datetime.fromtimestamp(model.modified).astimezone().isoformat(timespec="seconds")
        found.append({"model": str(model.name), "kind": model.kind, "size": model.size, "commit": model.commit, "modified": modified, "path": model.path})
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    elif found:
        rows = [(one["model"], one["kind"], file_size(one["size"]), (one["commit"] or "in a package")[:12], (one["modified"] or "-")[:10]) for one in found]
        print_table(("model", "kind", "size", "revision", "fetched"), rows)
    else:
        typer.echo("no models here; fetch one with: llmx pull org/name")


def show(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model on this machine, named as for `llmx serve`.")],
    revision: REVISION = None,
    download_dir: CACHE_DIR = None,
    as_json: _JSON = False,
    verbose: _VERBOSE = False,
) -> None:
    """Show a model on this machine: architecture, storage, context, licence, revision, files. Reads headers only."""
    from llmx.engine.model_store import show_model

    card = show_model(_config(model, revision, download_dir))
    if as_json:
        typer.echo(json.dumps({**asdict(card), "files": [{"name": name, "size": size} for name, size in card.files]}, indent=2))
    else:
        _print_card(card)


def _print_card(card: ModelCard) -> None:
    from llmx.engine.model_fetch import file_size

    rows = (
        ("model", card.name),
        ("architecture", card.architecture),
        ("quantisation", card.quantization),
        ("context", None if card.context_length is None else f"{card.context_length} tokens"),
        ("licence", card.license),
        ("revision", card.commit),
        ("path", card.path),
        ("size", f"{file_size(card.size)} in {len(card.files)} files"),
    )
    for name, value in rows:
        typer.echo(f"{name:<13} {value or '(not said)'}")
    if card.problem:
        typer.echo(f"{'problem':<13} {card.problem}")
    typer.echo("")
    print_table(("file", "size"), [(name, file_size(size)) for name, size in card.files])


def remove(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="org/name (every revision), org/name@revision, or org/name:QUANT.")],
    revision: REVISION = None,
    download_dir: CACHE_DIR = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    verbose: _VERBOSE = False,
) -> None:
    """Remove fetched models from this machine. The cache is shared with other tools that use huggingface_hub."""
    from llmx.engine.model_fetch import file_size
    from llmx.engine.model_store import plan_removal, remove_model

    configs = [_config(model, revision, download_dir) for model in models]
    plans = [plan_removal(config) for config in configs]  # all are checked before the first is removed
    for model, plan in zip(models, plans, strict=True):
        typer.echo(f"{model}: {len(plan.files)} files, {file_size(plan.size)} become free")
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("nobody can be asked here: add --yes to remove without asking")
        typer.confirm("Remove?", abort=True)
    for config, plan in zip(configs, plans, strict=True):
        remove_model(config, plan)
    typer.echo("removed")


def _config(model: str | None, revision: str | None, download_dir: str | None) -> ModelConfig:
    config, _ = Settings({"model": model, "revision": revision, "download_dir": download_dir}).resolve()
    return config.model
