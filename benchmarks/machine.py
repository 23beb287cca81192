"""Where and when a measurement was made, and how busy the machine was with other things meanwhile."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["BUSY", "Neighbours", "describe"]

BUSY = 0.15  # processors' worth of other work from which a figure is called doubtful


def describe(threads: int) -> dict[str, Any]:
    """The machine, the date and the versions of llmx."""
    info = _fields(Path("/proc/cpuinfo"))
    flags = set(info.get("flags", "").split())
    features = [name for name in ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16") if name in flags]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpu": info.get("model name", platform.machine()),
        "family": f"family {info.get('cpu family', '?')} model {info.get('model', '?')}",
        "features": features,
        "cpus": len(os.sched_getaffinity(0)),
        "threads": threads,
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "llmx": {name: _version(name) for name in ("llmx-core", "llmx-platform-cpu", "llmx-server")},
        "commit": _commit(),
        "load_before": os.getloadavg()[0],
    }


def _fields(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """The commit measured, "+" when files were changed since; "" outside a checkout."""
    root = Path(__file__).parents[1]
    try:
        head = subprocess.run(["git", "-C", root, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run(["git", "-C", root, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if changed else "")


class Neighbours:
    """Processors' worth of work that others did since it was made: all busy time but this process's and its ended children's."""

    def __init__(self) -> None:
        self._wall, self._busy, self._own = time.monotonic(), _busy_seconds(), _own_seconds()

    def read(self) -> float:
        """Others' work per second, in processors. 0 where the system does not tell."""
        wall = max(time.monotonic() - self._wall, 1e-9)
        return max((_busy_seconds() - self._busy) - (_own_seconds() - self._own), 0.0) / wall


def _busy_seconds() -> float:
    """Processor time of the whole machine that was not idle: user, nice, system, irq, softirq, steal."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in times)
