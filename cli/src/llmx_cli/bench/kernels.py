"""`llmx bench kernels`: what each kernel takes on this model's weights, beside what the machine allows."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from llmx_cli.options import Settings, with_settings
from llmx_cli.pull import fetched
from llmx_cli.table import print_table

__all__ = ["kernels", "numbers"]


@with_settings()
def kernels(
    settings: Settings,
    rows: Annotated[str, typer.Option(metavar="N,...", help="Token rows of products and row kernels.")] = "1,8,32,256",
    contexts: Annotated[str, typer.Option(metavar="N,...", help="Tokens before the decode step of which attention is measured.")] = "1024,4096",
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Runs of each; the shortest counts.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Times of products, norms, activations and attention, each beside the least time at the machine's read rate and arithmetic."""
    from llmx.engine.llm import LLM
    from llmx.errors import ConfigError
    from llmx.executor import Control

    sizes = {"rows": numbers(rows, "rows"), "contexts": numbers(contexts, "contexts")}
    with LLM(**fetched(settings)) as llm:
        llm.llm_engine.step()  # the warm-up's slot is given up by the step after it
        reply = llm.llm_engine.engine.executor.control(Control("profile", {**sizes, "repeats": repeats}))
        platform = llm.info.platform
    if not reply.ok:
        raise ConfigError(f"platform {platform!r} cannot measure its kernels: {reply.error}", field="platform")
    if as_json:
        typer.echo(json.dumps(reply.value, indent=2))
        return
    _show(reply.value)


def numbers(text: str, name: str) -> list[int]:
    """Numbers from 1 on, written with commas between them. Raises BadParameter that names --name."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r}: give numbers from 1 on, by comma, as 1,8,32", param_hint=f"--{name}")
    return [int(part) for part in parts]


def _show(value: dict[str, Any]) -> None:
    limits = value["limits"]
    arithmetic = ", ".join(f"{limits[kind] / 1e9:.0f} G {kind}" for kind in ("int8", "bf16", "f32") if kind in limits)
    where = limits.get("isa") or limits["device"] + (" (emulated: times of a CPU)" if value.get("emulated") else "")
    typer.echo(f"{where}, {limits['threads']} threads; the machine reads {limits['read'] / 1e9:.1f} GB/s and does {arithmetic} operations/s")
    rows = [
        [one["kernel"], one["shape"], str(one["rows"]), f"{one['us']:.1f}", f"{one['least_us']:.1f}", f"{one['share']:.0%}"] for one in value["kernels"]
    ]
    print_table(["kernel", "shape", "rows", "us", "least us", "of limit"], rows)
