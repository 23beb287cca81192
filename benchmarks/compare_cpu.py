"""llmx beside other engines on this machine: 5 rounds, one process for each engine and run, ratios round by round.

    python -m benchmarks.compare_cpu                                        # llmx and each peer that setup_peers.sh made
    python -m benchmarks.compare_cpu --peers openvino,llamacpp --assert     # exit code 1 when a floor is missed
    python -m benchmarks.compare_cpu --rows q4_1,decode4k --rounds 3
    python -m benchmarks.compare_cpu --peer-python vllm=/opt/vllm/bin/python --json result.json --plot result.png

Every round runs each job once, in an order that turns, so that a machine that slows down slows all alike. The judged figure is the
median of the ratios. Model files are made on first use. The machine's limits are measured in every round; a floor counts as met, too,
when llmx reaches 70% of the read bandwidth (decoding) or 50% of the arithmetic (prompts and batches): the larger of what the probe and
what any engine reached. benchmarks/README.md has the rows and the last results.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks import served
from benchmarks.jobs import Peers, measure_limits, run_job
from benchmarks.judge import RowResult, failures, judge
from benchmarks.machine import BUSY, Neighbours, describe
from benchmarks.make_models import make_model
from benchmarks.report import plot, text
from benchmarks.rows import SERVED, Job, Row, chosen
from benchmarks.run_engine import ENGINES
from benchmarks.work import Limits, Work, work_of

from llmx.errors import LlmxError

BUILD = Path(__file__).parents[1] / ".build"


class Comparison:
    """Rounds of jobs, and what they gave."""

    def __init__(self, rows: list[Row], peers: Peers, args: argparse.Namespace) -> None:
        self._peers, self._args = peers, args
        jobs: dict[Job, set[str]] = defaultdict(set)
        for row in rows:
            for job in (row.llmx, *(floor.peer for floor in row.floors)):
                jobs[job].add(row.workload)
        if rows:
            jobs[Job("llmx", "q4_1")].add("step")
        self.rows = rows
        self.jobs = {job: sorted(workloads) for job, workloads in jobs.items()}
        self.errors: dict[str, str] = {}
        self.models: dict[str, Path] = {}
        for name in sorted({job.model for job in jobs}):
            try:
                self.models[name] = make_model(name, args.models)
            except (LlmxError, ImportError, OSError) as error:
                self.errors[f"model {name}"] = f"cannot be made: {error}"
        self.rates: dict[Job, dict[str, list[Any]]] = {job: defaultdict(list) for job in jobs}
        self.versions: dict[str, str] = {}
        self.others: list[dict[str, Any]] = []
        self.limits: Limits | None = None

    def run(self) -> None:
        """All rounds; a line on stderr for each process."""
        order = list(self.jobs)
        for round_ in range(self._args.rounds):
            self._limits()
            turn = round_ % max(len(order), 1)
            for job in order[turn:] + order[:turn]:
                self._one(job, round_)

    def _limits(self) -> None:
        new, old = measure_limits(self._args.threads), self.limits
        self.limits = new or old if old is None or new is None else Limits(*(max(a, b) for a, b in zip(astuple(new), astuple(old), strict=True)))

    def _one(self, job: Job, round_: int) -> None:
        began, neighbours = time.monotonic(), Neighbours()
        model = self.models.get(job.model)
        if model is None:
            result: dict[str, Any] = {"error": f"model {job.model} is missing"}
        else:
            result = run_job(job, self.jobs[job], self._peers.python(job.engine), model, self._args)
        busy = neighbours.read()
        self.others.append({"job": str(job), "round": round_, "others": round(busy, 2)})
        for name in self.jobs[job]:
            self.rates[job][name].append(result.get(name))
        if "error" in result:
            self.errors[str(job)] = result["error"]
        else:
            self.versions[job.engine] = result["version"]
        shown = result.get("error") or ", ".join(f"{name} {result[name]}" for name in self.jobs[job])
        warning = f"  (others used {busy:.1f} processors)" if busy > BUSY else ""
        print(f"round {round_ + 1}/{self._args.rounds}  {str(job):40} {time.monotonic() - began:6.1f} s  {shown}{warning}", file=sys.stderr, flush=True)

    def results(self) -> list[RowResult]:
        """The judged rows."""
        return judge(self.rows, self.rates, self._works(), self.limits)

    def _works(self) -> dict[str, Work]:
        """The work of each model."""
        return {name: work_of(path) for name, path in self.models.items()}


def astuple(limits: Limits) -> tuple[float, float, float, float]:
    """The four numbers."""
    return limits.read, limits.int8, limits.bf16, limits.f32


def parse() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--peers", default="", help="engines to compare with, by comma; those that are installed when empty; 'none' for llmx alone")
    parser.add_argument("--peer-python", action="append", default=[], metavar="NAME=PATH", help="the interpreter of a peer's environment")
    parser.add_argument("--peers-dir", type=Path, default=BUILD / "peers", help="where setup_peers.sh put them")
    parser.add_argument("--models", type=Path, default=BUILD / "models", help="where model files are made")
    parser.add_argument("--rows", default="", help="names or parts of names, by comma")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=3, help="runs of a workload in one process; the best counts")
    parser.add_argument("--threads", type=int, default=describe(0)["cpus"])
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: rates per second of processor time, for a busy machine; use --threads 1")
    parser.add_argument("--assert", dest="check", action="store_true", help="exit code 1 when an asserted row misses a floor")
    parser.add_argument("--json", type=Path, help="also write everything measured here")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="also draw the ratios (setup_peers.sh plot)")
    args = parser.parse_args()
    if min(args.rounds, args.runs, args.threads) < 1:
        parser.error("--rounds, --runs and --threads are 1 or more")
    named = {}
    for pair in args.peer_python:
        name, _, path = pair.partition("=")
        if name not in ENGINES or name == "llmx" or not Path(path).is_file():
            parser.error(f"--peer-python {pair}: NAME is one of {', '.join(set(ENGINES) - {'llmx'})}, PATH an interpreter")
        named[name] = Path(path)
    args.found = Peers(args.peers_dir, named)
    args.peers = [] if args.peers == "none" else args.peers.split(",") if args.peers else args.found.names
    args.row_names = [name for name in args.rows.split(",") if name]
    try:
        for peer in args.peers:
            args.found.python(peer)
        args.chosen = chosen(args.row_names, set(args.peers))
    except (LookupError, ValueError) as error:
        parser.error(str(error))
    return args


def main() -> int:
    """The command line; the exit code."""
    args = parse()
    machine = describe(args.threads)
    if machine["load_before"] > BUSY:
        print(f"warning: load average {machine['load_before']:.2f}: other work takes processor time; ratios will scatter", file=sys.stderr)
    comparison = Comparison(args.chosen, args.found, args)
    comparison.run()
    results = comparison.results()
    extra = {}
    for name in SERVED:
        if name in args.row_names or (not args.row_names and args.clock == "wall"):
            extra[name] = served.measure(name, args.found, args)
    limits = comparison.limits
    document = {
        "machine": {**machine, "clock": args.clock, "others": comparison.others},
        "versions": comparison.versions,
        "limits": {} if limits is None else dict(zip(("read", "int8", "bf16", "f32"), astuple(limits), strict=True)),
        "rows": [result.as_json() for result in results],
        "step_us": next((v for job, rates in comparison.rates.items() for v in rates.get("step", []) if v), None),
        "served": extra,
        "errors": comparison.errors,
        "raw": {str(job): dict(values) for job, values in comparison.rates.items()},
    }
    print(text(document))
    if args.json:
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    if args.plot:
        plot(document, args.plot, args.found.folder)
    missed = failures(results, args.peers) if args.check else []
    for line in missed:
        print(f"floor missed: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
