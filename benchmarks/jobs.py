"""Processes of one measurement: where each engine's interpreter is, one run of an engine, and the machine's limits."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.rows import Job
from benchmarks.run_engine import ENGINES
from benchmarks.work import Limits

__all__ = ["Peers", "measure_limits", "run_job"]

_RUN = Path(__file__).with_name("run_engine.py")
_TIMEOUT_S = 3600  # of one process: a guard against hanging


class Peers:
    """Where the interpreters of the engines are."""

    def __init__(self, folder: Path, named: dict[str, Path]) -> None:
        self.folder = folder
        made = {name: folder / name / "bin/python" for name in ENGINES if name != "llmx"}
        self._python = {name: path for name, path in {**made, **named}.items() if path.exists()}
        self._python["llmx"] = Path(sys.executable)

    def python(self, engine: str) -> Path:
        """The interpreter of an engine. Raises LookupError saying how to get the engine."""
        if engine not in self._python:
            raise LookupError(f"{engine} is not installed: benchmarks/setup_peers.sh {engine}, or --peer-python {engine}=PATH")
        return self._python[engine]

    @property
    def names(self) -> list[str]:
        """Peers that are there."""
        return [name for name in self._python if name != "llmx"]


def run_job(job: Job, workloads: list[str], python: Path, model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One process of one engine: its JSON object, or {"error": the reason}."""
    command = [str(python), str(_RUN), job.engine, str(model), "--workloads", ",".join(workloads)]
    command += ["--runs", str(args.runs), "--threads", str(args.threads), "--options", job.options, "--clock", args.clock, "--began", repr(time.time())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, cwd=tempfile.gettempdir())
    except subprocess.TimeoutExpired:
        return {"error": f"no result within {_TIMEOUT_S} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        reason = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["no output"]
        return {"error": f"exit code {done.returncode}: {reason[0][:300]}"}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def measure_limits(threads: int) -> Limits | None:
    """The machine's limits at the level that llmx takes here, from a process of its own. None, and a line on stderr, when that fails."""
    code = "import json; from dataclasses import asdict; from llmx_cpu.native import best_isa; from llmx_cpu.roofline import measure_roofline"
    code += f"; print(json.dumps(asdict(measure_roofline(best_isa(), {threads}))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        print(f"warning: the machine's limits are unknown: {reason[0]}", file=sys.stderr)
        return None
    found = json.loads(done.stdout)
    return Limits(found["read"], found["int8"], found["bf16"], found["f32"])
