"""Results of benchmarks for people; --json has them for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import typer

from llmx_cli.bench.metrics import METRICS
from llmx_cli.table import print_table

__all__ = ["print_lines", "print_load", "written"]


def written(result: Mapping[str, Any], output_json: str | None, *, as_json: bool) -> bool:
    """Writes a result where it was asked for; True when that is all that shall be printed."""
    if output_json:
        with open(output_json, "w", encoding="utf-8") as file:
            json.dump(result, file)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    return as_json


def print_lines(rows: Mapping[str, str]) -> None:
    """Name and value, one per line."""
    width = max(map(len, rows))
    for name, value in rows.items():
        typer.echo(f"{name:<{width}}  {value}")


def print_load(result: Mapping[str, Any]) -> None:
    """The result of a load."""
    goodput = result["request_goodput"]
    rows = {
        "model": str(result["model_id"]),
        "requests": f"{result['completed']} completed, {result['failed']} failed, {result['max_concurrent_requests']} at once at most, "
        f"{result['duration']:.2f} s",
        "tokens": f"{result['total_input_tokens']} in, {result['total_output_tokens']} out",
        "throughput": f"{result['request_throughput']:.2f} requests/s, {result['output_throughput']:.1f} output tokens/s, "
        f"{result['total_token_throughput']:.1f} tokens/s in all",
        **({} if goodput is None else {"goodput": f"{goodput:.2f} requests/s"}),
        "this client": f"{result['client_cpu_s']:.2f} s of processor time, {result['client_cpu_share']:.0%} of one CPU",
    }
    print_lines(rows)
    names = [name for name in METRICS if f"mean_{name}_ms" in result]
    if not result["completed"] or not names:
        return
    shares = [key.removesuffix(f"_{names[0]}_ms") for key in result if key.endswith(f"_{names[0]}_ms") and key.startswith("p")]
    columns = ("mean", "median", "std", *shares)
    typer.echo("")
    table = [(METRICS[name], *(f"{result[f'{column}_{name}_ms']:.2f}" for column in columns)) for name in names]
    print_table(("ms", *columns), table)
