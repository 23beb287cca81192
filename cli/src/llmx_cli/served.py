"""`llmx models`: the models of a running server: list them, load one more, unload one, pause and profile their engines."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from llmx_cli.group import group
from llmx_cli.source import RemoteSource
from llmx_cli.table import print_table

__all__ = ["app"]

app = group("The models of a running server: list them, load one more, unload one, pause and profile their engines.")

_URL = Annotated[str, typer.Option("--base-url", metavar="URL", help="The server, with or without /v1.")]
_KEY = Annotated[str | None, typer.Option("--api-key", metavar="KEY", help="A key with the scope admin, where the server asks for keys.")]
_NAME = Annotated[str | None, typer.Option("--model", metavar="NAME", help="One model; without it, all that are loaded.")]
_VERBOSE = Annotated[bool, typer.Option("--verbose", help="Show tracebacks.")]
_HERE = "http://127.0.0.1:8000"
_ANY = "any"  # RemoteSource needs the name of a model only where it asks one


@app.command("list")
def list_(base_url: _URL = _HERE, api_key: _KEY = None, verbose: _VERBOSE = False) -> None:
    """List the models of a server with their state and running requests."""
    models = RemoteSource(base_url, api_key, _ANY).ask("/admin/models")["data"]
    print_table(["NAME", "STATE", "RUNNING"], [[", ".join(one["names"]), one["state"], str(one["running"])] for one in models])


@app.command("load")
def load(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="As the server finds it: embedded name, file, directory or hub model that is there.")],
    name: Annotated[str | None, typer.Option("--served-model-name", metavar="TEXT", help="Its name in the API.")] = None,
    options: Annotated[str, typer.Option("--options", metavar="JSON", help='More of its options, e.g. {"max_model_len": 4096}.')] = "{}",
    base_url: _URL = _HERE,
    api_key: _KEY = None,
    verbose: _VERBOSE = False,
) -> None:
    """Load one more model, or wake one that rests; ends when it takes requests."""
    body: dict[str, Any] = {**_object(options), **({"served_model_name": [name]} if name else {}), "model": model}
    loaded = RemoteSource(base_url, api_key, _ANY).ask("/admin/models/load", body)
    typer.echo(f"{loaded['id']} is {loaded['state']}")


@app.command("unload")
def unload(
    model: Annotated[str, typer.Argument(metavar="NAME", help="A name under which it is served.")],
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="How long its running requests may still take.")] = 0.0,
    base_url: _URL = _HERE,
    api_key: _KEY = None,
    verbose: _VERBOSE = False,
) -> None:
    """Serve a model no more."""
    RemoteSource(base_url, api_key, _ANY).ask("/admin/models/unload", {"model": model, "timeout": timeout})
    typer.echo(f"{model} is unloaded")


@app.command("pause")
def pause(
    name: _NAME = None,
    mode: Annotated[str, typer.Option("--mode", metavar="MODE", help="What becomes of running requests: keep, wait (they end first) or abort.")] = "keep",
    base_url: _URL = _HERE,
    api_key: _KEY = None,
    verbose: _VERBOSE = False,
) -> None:
    """Start no more steps, until `llmx models resume`; new requests wait."""
    paused = _steer("/pause", name, base_url, api_key, mode=mode)
    typer.echo(f"{paused['status']} ({paused['mode']})")


@app.command("resume")
def resume(name: _NAME = None, base_url: _URL = _HERE, api_key: _KEY = None, verbose: _VERBOSE = False) -> None:
    """Go on after a pause."""
    typer.echo(_steer("/resume", name, base_url, api_key)["status"])


@app.command("reset-cache")
def reset_cache(name: _NAME = None, base_url: _URL = _HERE, api_key: _KEY = None, verbose: _VERBOSE = False) -> None:
    """Forget every prompt start that the prefix cache knows."""
    for one in _steer("/reset_prefix_cache", name, base_url, api_key)["models"]:
        typer.echo(f"{one['id']}: {one['blocks_dropped']} cached blocks are free now, {one['blocks_in_use']} are in use")


@app.command("profile")
def profile(
    what: Annotated[str, typer.Argument(metavar="start|stop", help="Begin to record, or write what was recorded.")],
    name: _NAME = None,
    base_url: _URL = _HERE,
    api_key: _KEY = None,
    verbose: _VERBOSE = False,
) -> None:
    """Record the steps and Python functions of engine processes into the server's --profile-dir."""
    if what not in ("start", "stop"):
        raise typer.BadParameter(f"it is {what!r}: it must be start or stop")
    done = _steer(f"/{what}_profile", name, base_url, api_key)
    if what == "start":
        typer.echo(f"recording into {done['folder']}")
        return
    for one in done["models"]:
        for file in one["files"]:
            typer.echo(f"{one['id']}: {file}")


def _steer(path: str, name: str | None, base_url: str, api_key: str | None, **query: str) -> dict[str, Any]:
    """The answer of a route that stands beside /v1."""
    asked = urlencode({**query, **({"model": name} if name else {})})
    found: dict[str, Any] = RemoteSource(base_url, api_key, _ANY).ask(f"{path}?{asked}", {}, below="")
    return found


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"--options is {text!r}: it must be a JSON object")
    return value
