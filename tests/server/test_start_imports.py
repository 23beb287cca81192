"""What the server's process reads to start: reading modules is most of the time until it is ready."""

from __future__ import annotations

import subprocess
import sys

_ENGINE_SIDE = ("numpy", "torch", "llmx.executor", "llmx.models", "llmx.program", "llmx.sched.scheduler", "llmx.kv.manager", "llmx.platform.kernels")
_TEXT_SIDE = ("jinja2", "tokenizers", "starlette", "pydantic")


def _loaded(statement: str, names: tuple[str, ...]) -> list[str]:
    code = f"import sys\n{statement}\nprint(*(name for name in {names!r} if name in sys.modules))"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_the_server_starts_without_what_only_the_engine_needs() -> None:
    server = "import llmx_cli.serve, llmx_server.listen, llmx.engine.async_engine, llmx.engine.model_fetch, llmx_server.lifecycle"
    assert _loaded(server, _ENGINE_SIDE) == []


def test_the_engine_starts_without_what_only_the_server_needs() -> None:
    assert _loaded("import llmx.engine.process, llmx.engine.start", _TEXT_SIDE) == []
