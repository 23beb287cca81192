"""Running `python -m llmx` in tests: whole commands, and servers on a free port."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

__all__ = ["HANG_S", "Server", "children", "gauges", "llmx", "serve", "until"]

HANG_S = 60  # a hang guard, not a speed limit


def llmx(*arguments: str, stdin: str = "", environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The finished command."""
    command = [sys.executable, "-m", "llmx", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=HANG_S, env={**os.environ, **(environ or {})})


@dataclass
class Server:
    """A server that is ready. summary: what it printed."""

    process: subprocess.Popen[str]
    url: str
    summary: str

    def end(self) -> tuple[int, str]:
        """Exit code and stderr, once it has ended."""
        _, err = self.process.communicate(timeout=HANG_S)
        return self.process.returncode, err


@contextmanager
def serve(*arguments: str, environ: dict[str, str] | None = None) -> Iterator[Server]:
    """`llmx serve` on a free port; killed at the end if it still runs. environ: more variables; a PYTHONPATH goes before the present one."""
    command = [sys.executable, "-m", "llmx", "serve", "--port", "0", *arguments]
    variables = {**os.environ, **(environ or {})}
    if environ and "PYTHONPATH" in environ and "PYTHONPATH" in os.environ:
        variables["PYTHONPATH"] = os.pathsep.join((environ["PYTHONPATH"], os.environ["PYTHONPATH"]))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables) as process:
        try:
            lines: list[str] = []
            assert process.stdout is not None and process.stderr is not None
            for line in process.stdout:
                lines.append(line)
                if line.startswith("try "):
                    break
            else:
                raise AssertionError(f"the server did not start: {process.stderr.read()}")
            url = next(line for line in lines if line.startswith("ready ")).split()[1]
            yield Server(process, url, "".join(lines))
        finally:
            process.kill()


def children(process: subprocess.Popen[str]) -> list[int]:
    """Process ids of the children that a process has now."""
    return [int(child) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def gauges(url: str) -> dict[str, float]:
    """Metrics without further labels, by name."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=HANG_S).text)
    return {sample.name: sample.value for family in families for sample in family.samples if set(sample.labels) == {"model_name"}}


def until(condition: Callable[[], Any], seconds: float = HANG_S) -> float:
    """Wait until a condition holds; the seconds it took. The limit is a hang guard."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, "it never came true"
        time.sleep(0.02)
    return time.monotonic() - began
