#!/usr/bin/env python3
"""Pictures from JSON on stdin: `draw.py ratios OUT.png` of compare_cpu, `draw.py scaling OUT.png` of scaling. Needs matplotlib alone."""

from __future__ import annotations

import json
import sys
from typing import Any


def ratios(document: dict[str, Any], axes: Any) -> None:
    """A line per row and peer: every round a dot, the median a bar, floor and aim marked."""
    lines = [(row, verdict) for row in document["rows"] for verdict in row["verdicts"] if verdict["median"] is not None]
    labels = []
    for at, (row, verdict) in enumerate(reversed(lines)):
        color = {True: "tab:green", False: "tab:red", None: "tab:blue"}[verdict["met"]]
        axes.barh(at, verdict["median"], color=color, alpha=0.35)
        axes.plot([r for r in verdict["ratios"] if r is not None], [at] * sum(r is not None for r in verdict["ratios"]), "o", color=color, markersize=3)
        for key, style in (("floor", "-"), ("aim", ":")):
            if verdict[key] is not None:
                axes.plot([verdict[key]] * 2, [at - 0.4, at + 0.4], "k" + style, linewidth=1.2)
        labels.append(f"{row['name']} / {verdict['peer']}" + (" (less is better)" if row["less"] else ""))
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.axvline(1.0, color="gray", linewidth=0.8)
    axes.set_xlabel("llmx / peer: bar = median, dots = rounds, line = floor, dotted = aim")
    machine = document["machine"]
    axes.set_title(f"{machine['cpu']}, {machine['threads']} threads, {machine['date']}", fontsize=8)


def scaling(document: dict[str, Any], axes: Any) -> None:
    """A line per thread count: rate over the swept size, with the expected shape dashed."""
    for name, line in document["lines"].items():
        points = [(x, y) for x, y in line["points"] if y is not None]
        (drawn,) = axes.plot([x for x, _ in points], [y for _, y in points], "o-", label=name)
        if line.get("expected"):
            xs, ys = zip(*line["expected"], strict=True)
            axes.plot(xs, ys, "--", color=drawn.get_color(), alpha=0.5, label=f"{name}, expected shape")
    if document.get("log"):
        axes.set_xscale("log", base=2)
    axes.set_xlabel(document["x"])
    axes.set_ylabel(document["y"])
    axes.set_ylim(bottom=0)
    axes.set_title(document["title"], fontsize=8)
    axes.legend(fontsize=7)


def main() -> None:
    """The command line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    document = json.load(sys.stdin)
    tall = 2 + 0.3 * sum(len(row["verdicts"]) for row in document["rows"]) if sys.argv[1] == "ratios" else 5
    figure, axes = pyplot.subplots(figsize=(9, tall))
    {"ratios": ratios, "scaling": scaling}[sys.argv[1]](document, axes)
    figure.tight_layout()
    figure.savefig(sys.argv[2], dpi=130)


if __name__ == "__main__":
    main()
