"""What a comparison gave, for people: a text table, and a picture of the ratios with their spread."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["plot", "text"]


def text(document: Mapping[str, Any]) -> str:
    """The whole result as text, at most some 150 columns wide."""
    machine, limits = document["machine"], document["limits"]
    lines = [
        f"{machine['cpu']} ({machine['family']}; {', '.join(machine['features'])}), {machine['threads']} of {machine['cpus']} processors, "
        f"{machine['memory_gib']} GiB, {machine['date']}, commit {machine['commit'] or 'unknown'}",
        f"versions: {', '.join(f'{name} {version}' for name, version in document['versions'].items())}",
        _others(machine),
    ]
    if machine["clock"] == "cpu":
        lines.append("rates are tokens per second of processor time, not of the clock on the wall")
    if limits:
        rates = f"{limits['int8'] / 1e9:.0f} G int8, {limits['bf16'] / 1e9:.0f} G bf16, {limits['f32'] / 1e9:.0f} G f32 operations/s"
        lines.append(f"limits of the machine, measured beside: {limits['read'] / 1e9:.1f} GB/s read, {rates}")
    lines += ["", *_table(_rows(document["rows"]))]
    if document.get("step_us"):
        lines += ["", f"Python per step outside the native call, us, by requests: {document['step_us']}"]
    for name, result in document.get("served", {}).items():
        lines += ["", f"{name}: {_served(result)}"]
    for job, why in document.get("errors", {}).items():
        lines += ["", f"{job} failed: {why}"]
    return "\n".join(lines)


def _others(machine: Mapping[str, Any]) -> str:
    busy = [entry["others"] for entry in machine["others"]]
    middle = sorted(busy)[len(busy) // 2] if busy else 0.0
    return f"others used {middle:.2f} processors meanwhile (at most {max(busy, default=0.0):.2f}); load average before {machine['load_before']:.2f}"


def _rows(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    table = [["row", "llmx", "of limit", "against", "ratios", "median", "floor", "aim", ""]]
    for row in rows:
        first = [row["name"] + ("*" if row["asserted"] else ""), _number(row["median"]), "" if row["share"] is None else f"{row['share']:.0%}"]
        if not row["verdicts"]:
            table.append([*first, "", "", "", "", "", ""])
        for verdict in row["verdicts"]:
            each = " ".join("-" if ratio is None else f"{ratio:.2f}" for ratio in verdict["ratios"])
            met = {True: "met" + (" by the limit" if verdict["by"] == "limit" else ""), False: "MISSED", None: ""}[verdict["met"]]
            sign = "<= " if row["less"] else ""
            bounds = ["" if verdict[key] is None else f"{sign}{verdict[key]:g}" for key in ("floor", "aim")]
            table.append([*first, verdict["peer"], each, "-" if verdict["median"] is None else f"{verdict['median']:.2f}", *bounds, met])
            first = ["", "", ""]
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 10 else f"{value:.0f}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _served(result: Mapping[str, Any]) -> str:
    return result["error"] if "error" in result else ", ".join(f"{key} {value}" for key, value in result.items())


def plot(document: Mapping[str, Any], target: Path, peers_dir: Path) -> None:
    """Draw the ratios of every row and peer. Runs in the environment `plot` of setup_peers.sh; without one, says so on stderr."""
    python = peers_dir / "plot/bin/python"
    draw = Path(__file__).with_name("draw.py")
    if not python.exists():
        print(f"no picture: {target} needs matplotlib: benchmarks/setup_peers.sh plot", file=sys.stderr)
        return
    subprocess.run([str(python), str(draw), "ratios", str(target)], input=json.dumps(document), text=True, check=True)
