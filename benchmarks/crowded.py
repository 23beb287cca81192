"""What a crowded machine costs: one stream, decoded alone, beside a process that spins, and with more threads than processors.

    python -m benchmarks.crowded [--model q4_1] [--rounds 5] [--assert]

Three runs in turn per round, each in a process of its own: 2 threads; 2 threads beside one process that never sleeps; 8 threads on the
same 2 processors. The second must keep at least 0.6 of the first, the third 0.8 (medians): a phase may wait neither for a worker that was
preempted while it held nothing, nor spin away the time of one that holds a chunk. All are pinned to 2 processors, so that the machine's
size does not matter.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.jobs import Peers, run_job
from benchmarks.machine import BUSY, Neighbours, describe
from benchmarks.make_models import make_model
from benchmarks.rows import Job

__all__ = ["FLOORS", "measure"]

ROOT = Path(__file__).parents[1]
FLOORS = {"spinning neighbour": 0.6, "8 threads": 0.8}


@contextlib.contextmanager
def _spinning() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(model: str, path: Path, runs: int) -> dict[str, float]:
    """One round: tokens per second of each of the three. Raises RuntimeError with an engine's reason when it gave none."""
    settings = {"alone": (2, False), "spinning neighbour": (2, True), "8 threads": (8, False)}
    rates = {}
    for name, (threads, neighbour) in settings.items():
        args = argparse.Namespace(runs=runs, threads=threads, clock="wall")
        with _spinning() if neighbour else contextlib.nullcontext():
            result = run_job(Job("llmx", model), ["decode1"], Peers(ROOT, {}).python("llmx"), path, args)
        if "error" in result:
            raise RuntimeError(f"{name}: {result['error']}")
        rates[name] = result["decode1"]
    return rates


def main() -> int:
    """The command line; exit code 1 when a median is below its floor and --assert was given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="q4_1")
    parser.add_argument("--models", type=Path, default=ROOT / ".build/models")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=2, help="runs of the workload in one process; the best counts")
    parser.add_argument("--assert", dest="check", action="store_true")
    args = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cpus)  # children inherit it
    path = make_model(args.model, args.models)
    ratios: dict[str, list[float]] = {name: [] for name in FLOORS}
    for turn in range(args.rounds):
        with_others = Neighbours()
        rates = measure(args.model, path, args.runs)
        for name, list_ in ratios.items():
            list_.append(rates[name] / rates["alone"])
        # the spinning neighbour is a child of this process, so it does not count among the others
        busy = f"  (others used {others:.1f} processors)" if (others := with_others.read()) > BUSY else ""
        print(f"round {turn + 1}: " + ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items()) + f" tokens/s{busy}", flush=True)
    print(json.dumps(describe(2)))
    missed = 0
    for name, list_ in ratios.items():
        middle = median(list_)
        missed += middle < FLOORS[name]
        print(f"{name:20} {' '.join(f'{one:.2f}' for one in list_)}  median {middle:.2f}, floor {FLOORS[name]:g}{', missed' * (middle < FLOORS[name])}")
    return int(args.check and missed > 0)


if __name__ == "__main__":
    sys.exit(main())
