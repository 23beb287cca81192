"""Runs `llmx_server.serve` over a FakeEngine in a process of its own: `python fake_server.py PORT DRAIN_S TOKENS DELAY_S [start error]`.

Prints `ready URL` when it is, and `aborted N closed BOOL` at the end.
"""

from __future__ import annotations

import asyncio
import sys

from fake_engine import FakeEngine

from llmx.config import EngineConfig, ServerConfig
from llmx.errors import ConfigError, ModelError
from llmx_server import serve


def main() -> int:
    port, drain_s, tokens, delay_s = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    engine = FakeEngine(answer=lambda ids: "x" * tokens, delay_s=delay_s, start_delay_s=0.3)
    engine.info.max_model_len = 10_000_000
    if len(sys.argv) > 5:
        engine.start_error = ModelError(sys.argv[5], path="/m.gguf")
    try:
        asyncio.run(serve(engine, EngineConfig(server=ServerConfig(port=port, drain_timeout_s=drain_s)), on_ready=lambda url: print("ready", url, flush=True)))
    except (ConfigError, ModelError) as error:
        print("error:", error, flush=True)
        return 3
    finally:
        print("aborted", len(engine.aborted), "closed", engine.closed, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
