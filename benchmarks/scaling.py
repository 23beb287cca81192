"""How llmx's speed changes with one size: a JSON file and a picture for each sweep, with the shape that theory expects beside.

    python -m benchmarks.scaling DIR [--sweeps batch,context,prefill,threads] [--model MODEL] [--runs 2]

batch     1 to 256 requests of 16 + 64 tokens. A step reads the weights once whatever the batch, so while reading is what takes time, tokens
          per second grow with the requests; then arithmetic takes the time and the line is flat. Expected:
          n / (fixed + n * per_row), fitted to both ends.
context   decoding of one request behind 128 to 8,128 tokens. A token reads the weights and all keys and values so far. Expected:
          1 / (weights + context * kv), fitted to both ends: a hyperbola that is half as high where K and V are as large as the weights.
prefill   prompts of 128 to 8,192 tokens. Products cost the same for every token, attention as much as there is context before it:
          1 / (product + length / 2 * attention).
threads   all of the above with 1 thread and with all: two lines. Arithmetic doubles with two cores; reading from memory less, where one core
          takes more than half of what the memory gives.

The expected line goes through the first and the last point and says nothing about the height, only about the shape between them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.jobs import Peers, run_job
from benchmarks.machine import Neighbours, describe
from benchmarks.make_models import make_model
from benchmarks.rows import Job

__all__ = ["SWEEPS", "fit"]

ROOT = Path(__file__).parents[1]
Points = list[tuple[float, "float | None"]]

# sweep -> sizes, workload of a size, axis labels, and the shape: seconds per token as a * f(size) + b * g(size)
SWEEPS: dict[str, dict[str, Any]] = {
    "batch": {
        "sizes": (1, 2, 4, 8, 16, 32, 64, 128, 256),
        "workload": lambda n: f"{n}:16:64",
        "x": "requests at once",
        "y": "new tokens/s, all together",
        "terms": (lambda n: 1 / n, lambda n: 1.0),
    },
    "context": {
        "sizes": (128, 512, 1024, 2048, 4096, 8128),
        "workload": lambda n: f"1:{n}:48:decode",
        "x": "tokens of context",
        "y": "new tokens/s, one request",
        "terms": (lambda n: 1.0, lambda n: n),
    },
    "prefill": {
        "sizes": (128, 256, 512, 1024, 2048, 4096, 8128),
        "workload": lambda n: f"1:{n}:1",
        "x": "tokens of the prompt",
        "y": "prompt tokens/s",
        "terms": (lambda n: 1.0, lambda n: n / 2),
    },
}


def fit(points: Points, terms: tuple[Callable[[float], float], Callable[[float], float]]) -> Points:
    """The curve 1 / (a * f(x) + b * g(x)) through the first and the last point that have a value; [] with fewer than two."""
    known = [(x, y) for x, y in points if y]
    if len(known) < 2:
        return []
    f, g = terms
    (x0, y0), (x1, y1) = known[0], known[-1]
    a11, a12, a21, a22 = f(x0), g(x0), f(x1), g(x1)
    determinant = a11 * a22 - a12 * a21
    a = (a22 / y0 - a12 / y1) / determinant
    b = (a11 / y1 - a21 / y0) / determinant
    return [(x, 1 / (a * f(x) + b * g(x))) for x, _ in points]


def sweep(name: str, threads: Sequence[int], args: argparse.Namespace, peers: Peers) -> dict[str, Any]:
    """One sweep at each number of threads: what draw.py draws."""
    what, lines = SWEEPS[name], {}
    model = make_model(args.model, args.models)
    neighbours = Neighbours()
    for count in threads:
        job_args = argparse.Namespace(runs=args.runs, threads=count, clock=args.clock)
        sizes = [size for size in what["sizes"] if size <= args.largest]
        workloads = {size: what["workload"](size) for size in sizes}
        options = json.dumps({"max_model_len": 8192})
        result = run_job(Job("llmx", args.model, options), list(workloads.values()), peers.python("llmx"), model, job_args)
        if "error" in result:
            raise SystemExit(f"{name} with {count} threads: {result['error']}")
        # a prompt's rate is given per new token by run_engine, one token for the whole prompt
        factor = {size: size if name == "prefill" else 1 for size in sizes}
        points: Points = [(size, result[workload] and result[workload] * factor[size]) for size, workload in workloads.items()]
        lines[f"{count} thread{'s' if count > 1 else ''}"] = {"points": points, "expected": fit(points, what["terms"])}
        print(f"{name:8} {count} threads: " + ", ".join(f"{x:g}: {y:.1f}" for x, y in points if y is not None), file=sys.stderr, flush=True)
    machine = describe(max(threads))
    title = f"SmolLM2-135M {args.model}, {machine['cpu']} {machine['family']}, {machine['date']}"
    document = {"sweep": name, "x": what["x"], "y": what["y"], "log": True, "title": title, "lines": lines, "machine": machine}
    return {**document, "others": round(neighbours.read(), 2), "clock": args.clock}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sweeps", default=",".join(SWEEPS))
    parser.add_argument("--model", default="q4_1")
    parser.add_argument("--models", type=Path, default=ROOT / ".build/models")
    parser.add_argument("--peers-dir", type=Path, default=ROOT / ".build/peers", help="where the environment `plot` is")
    parser.add_argument("--threads", default="", help="numbers of threads, by comma; 1 and all by default")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--largest", type=int, default=1 << 20, help="leave out sizes above this")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    args = parser.parse_args()
    names = args.sweeps.split(",")
    if set(names) - set(SWEEPS):
        parser.error(f"--sweeps: any of {', '.join(SWEEPS)}")
    threads = sorted({int(one) for one in args.threads.split(",")} if args.threads else {1, describe(0)["cpus"]})
    args.folder.mkdir(parents=True, exist_ok=True)
    peers = Peers(args.peers_dir, {})
    for name in names:
        document = sweep(name, threads, args, peers)
        target = args.folder / f"scaling_{name}.json"
        target.write_text(json.dumps(document, indent=1) + "\n")
        python = args.peers_dir / "plot/bin/python"
        if python.exists():
            command = [str(python), str(ROOT / "benchmarks/draw.py"), "scaling", str(target.with_suffix(".png"))]
            subprocess.run(command, input=target.read_text(), text=True, check=True)
        else:
            print("no picture: benchmarks/setup_peers.sh plot", file=sys.stderr)


if __name__ == "__main__":
    main()
