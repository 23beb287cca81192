"""`llmx explain MODEL`: the kernel of every op, and why each other candidate was not taken."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from llmx_cli.options import Settings, with_settings
from llmx_cli.table import print_table

if TYPE_CHECKING:
    from llmx.engine.explain import ExplainRow, Explanation
    from llmx.engine.kv_size import MemoryEstimate

__all__ = ["explain"]


@with_settings()
def explain(
    settings: Settings,
    device_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Plan for a device with so much memory, e.g. 24G. Default: what is free here.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON, the plan included.")] = False,
    program: Annotated[bool, typer.Option("--program", help="Also print the whole program, op by op.")] = False,
) -> None:
    """Show platform, memory and kernels that a model would run with, and why. Reads headers only, starts nothing."""
    from llmx.engine.explain import explain as explain_config
    from llmx.resolve import size_in_bytes

    config, changes = settings.resolve()
    device = None if device_memory is None else size_in_bytes(device_memory, "--device-memory")
    explanation = explain_config(config, [change.path for change in changes], device)
    if as_json:
        typer.echo(json.dumps(asdict(explanation), indent=2, default=str))
        return
    _print_head(explanation)
    _print_memory(explanation.memory, named=device is not None)
    for name, rows in groupby(explanation.rows, key=lambda row: row.program):
        _print_kernels(name, list(rows))
    if program:
        for name, text in explanation.programs.items():
            typer.secho(f"\nprogram {name}", bold=True)
            typer.echo(text)


def _print_head(explanation: Explanation) -> None:
    typer.echo(f"{explanation.model} ({explanation.architecture}) on {explanation.platform}: {explanation.why}")
    typer.echo(f"device: {explanation.device}; features: {', '.join(explanation.features) or 'none'}")
    typer.echo(f"drafting: {explanation.drafting or 'none (--spec-method ngram or suffix switches it on)'}")
    for line in (*explanation.others, *explanation.changes, *(f"warning: {text}" for text in explanation.warnings)):
        typer.echo(line)


def _print_memory(memory: MemoryEstimate, *, named: bool) -> None:
    """Weights, KV, and how many requests that is."""
    from llmx.engine.model_fetch import file_size

    left = max(memory.device_bytes - memory.weight_bytes, 0)
    typer.secho("\nmemory", bold=True)
    rows = (
        ("device", f"{file_size(memory.device_bytes)} {'as asked' if named else 'free here'}"),
        ("weights", f"{file_size(memory.weight_bytes)}; working memory of the process comes on top"),
        ("kv cache", f"{file_size(memory.kv_bytes)} of the {file_size(left)} left (--kv-cache-memory-bytes sets it), {memory.kv_tokens} tokens"),
        ("a token", f"{memory.kv_bytes_per_token} bytes of KV"),
        ("a request", f"{file_size(memory.kv_bytes_per_request)} of KV at {memory.max_model_len} tokens; {memory.requests} such requests fit"),
        *(("advice", text) for text in memory.advice),
    )
    for name, text in rows:
        typer.echo(f"{name:<9} {text}")


def _print_kernels(program: str, rows: list[ExplainRow]) -> None:
    """One line per distinct choice: the blocks of a model repeat theirs."""
    groups: dict[tuple[object, ...], list[ExplainRow]] = {}
    for row in rows:
        groups.setdefault((row.spec, row.provider, row.target, row.abi, row.forced, row.rejected), []).append(row)
    typer.secho(f"\nkernels of {program}: {len(rows)} choices, {len(groups)} distinct", bold=True)
    table = [(f"{len(same)}x", row.spec, row.provider + " (forced)" * row.forced, row.abi, row.target) for same in groups.values() for row in same[:1]]
    print_table(("", "op", "provider", "abi", "kernel"), table)
    typer.secho("\nnot taken", bold=True)
    refused = [(same[0].spec, *rejection) for same in groups.values() for rejection in same[0].rejected]
    if refused:
        print_table(("op", "provider", "stage", "reason"), list(dict.fromkeys(refused)))
    else:
        typer.echo("no other candidates")
