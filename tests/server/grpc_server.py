"""`llmx_server.serve` with a gRPC port over a FakeEngine, in a process of its own: `python grpc_server.py JSON`.

JSON: settings of the server under "server", of the engine under "engine" (tokens, delay_s, start_delay_s, max_model_len, fail_at).
Prints `grpc ADDRESS` and `ready URL`, then for each line on stdin what the engine runs, has aborted and has generated; `ended ...` at the end.
"""

from __future__ import annotations

import asyncio
import json
import sys

from fake_engine import FakeEngine

from llmx.config import EngineConfig, ServerConfig
from llmx_server import serve


def say(*words: object) -> None:
    print(*words, flush=True)


async def main(given: dict[str, dict[str, object]]) -> None:
    tokens, engine_settings = given["engine"].pop("tokens", 0), given["engine"]
    limit = engine_settings.pop("max_model_len", 256)
    engine = FakeEngine(**engine_settings)  # type: ignore[arg-type]
    if tokens:
        engine.answer = lambda ids: "x" * tokens  # type: ignore[operator]
    engine.info.max_model_len = limit  # type: ignore[assignment]

    def tell() -> None:
        if sys.stdin.readline():
            say(json.dumps({"running": len(engine.running), "aborted": len(engine.aborted), "generated": engine.counts.generation_tokens}))

    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), tell)
    config = EngineConfig(server=ServerConfig(port=0, grpc_port=0, **given["server"]))  # type: ignore[arg-type]
    try:
        await serve(engine, config, on_ready=lambda url: say("ready", url), on_grpc=lambda address: say("grpc", address))
    finally:
        say("ended", len(engine.aborted), engine.closed)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
