"""`llmx bench collectives`: how long ranks take to exchange rows."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from llmx_cli.bench.kernels import numbers
from llmx_cli.table import print_table

__all__ = ["collectives"]

_SILENCE_S = 300.0


def collectives(
    platform: Annotated[str, typer.Option("--platform", metavar="NAME", help="The platform whose ranks meet.")] = "cpu",
    device: Annotated[str | None, typer.Option("--device", metavar="NAME", help="Device of rank 0; the others have the next ones.")] = None,
    ranks: Annotated[int, typer.Option("--ranks", min=2, metavar="N", help="Processes, all on this host.")] = 2,
    sizes: Annotated[str, typer.Option(metavar="N,...", help="Bytes of float32 that each rank gives.")] = "4,2304,65536,1048576,16777216",
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Calls of each; the median counts.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> int:
    """Latency and bandwidth of all_reduce, all_gather and broadcast between the ranks of a platform, by size. No model is needed."""
    from llmx.engine.meeting import Meeting

    options = {"platform": platform, "threads": ranks, **({"device": device} if device else {})}
    wanted = numbers(sizes, "sizes")
    with Meeting(options, ranks, "llmx.engine.collective_times:run", {"sizes": wanted, "repeats": repeats}) as meeting:
        found = list(meeting.said(_SILENCE_S))
        noise = meeting.noise()
    if len(found) < 3 * len(wanted):
        typer.echo(f"the {ranks} ranks of platform {platform!r} ended early{noise}", err=True)
        return 1
    if as_json:
        typer.echo(json.dumps({"platform": platform, "ranks": ranks, "collectives": found}, indent=2))
    else:
        _show(found)
    return 0


def _show(found: list[dict[str, Any]]) -> None:
    rows = [[one["op"], str(one["bytes"]), f"{one['us']:.1f}", f"{one['least_us']:.1f}", f"{one['bytes'] / one['us'] / 1e3:.2f}"] for one in found]
    print_table(["collective", "bytes of a rank", "us", "least us", "GB/s"], rows)
