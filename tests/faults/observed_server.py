"""Runs an engine process and `llmx_server.serve` before it: `python observed_server.py NAME=VALUE...` (options of the engine).

Prints `ready URL`. On SIGUSR1 it collects garbage, gives free memory back and prints {"private_kib", "descriptors", "tasks"}.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import signal
import sys
from pathlib import Path

from llmx.engine.async_engine import AsyncEngine
from llmx.resolve import resolve
from llmx_server import serve


def private_kib(pid: int | str = "self") -> int:
    """Private memory of a process in KiB."""
    return sum(int(line.split()[1]) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Private_"))


def report() -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    figures = {"private_kib": private_kib(), "descriptors": len(os.listdir("/proc/self/fd")), "tasks": len(asyncio.all_tasks())}
    print(json.dumps(figures), flush=True)


async def main() -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, report)
    config, changes = resolve({"port": 0, **dict(option.split("=") for option in sys.argv[1:])})
    await serve(AsyncEngine.launch(config, changes), config, on_ready=lambda url: print("ready", url, flush=True))


if __name__ == "__main__":
    logging.basicConfig(level="WARNING")
    asyncio.run(main())
