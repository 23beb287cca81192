"""`python -m llmx.tokens.template_worker`: renders chat templates that come with requests, apart from the server, with little memory and time.

Frames of JSON, each with its length in front (4 bytes, big-endian), come on standard input and go to standard output: {"template", "names", "tools"} asks
for the names that a template reads, with {"arguments"} for its text. A template that takes too long ends the process, which the other side notices.
"""

from __future__ import annotations

import functools
import json
import resource
import signal
import struct
import sys
from typing import Any

from llmx.errors import LlmxError
from llmx.tokens.chat_template import ChatTemplate

__all__ = ["LIMIT_S", "MEMORY_BYTES", "main"]

LIMIT_S = 3.0  # wall clock for one answer; the sandbox gives up before, wherever it is asked
MEMORY_BYTES = 1 << 30
_LENGTH = struct.Struct(">I")


def main() -> int:
    """Answer until the other side is gone."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it reaches the whole group; the server ends this process
    while len(head := sys.stdin.buffer.read(_LENGTH.size)) == _LENGTH.size:
        asked = json.loads(sys.stdin.buffer.read(_LENGTH.unpack(head)[0]))
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S)  # without a handler the signal ends the process, whatever it is doing
        answer = json.dumps(_answered(asked)).encode()
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.buffer.write(_LENGTH.pack(len(answer)) + answer)
        sys.stdout.buffer.flush()
    return 0


def _answered(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        template = _compiled(asked["template"], json.dumps(asked["names"]))
        if "arguments" in asked:
            return {"text": template.render(**asked["arguments"])}
        return {"variables": sorted(template.variables(asked["tools"]))}
    except LlmxError as error:
        return {"refused": str(error), "field": getattr(error, "field", None)}
    except (MemoryError, RecursionError) as error:
        return {"refused": f"the template needs too much memory or is nested too deeply ({type(error).__name__})", "field": None}


@functools.lru_cache(8)
def _compiled(source: str, names: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, json.loads(names), "chat_template")


if __name__ == "__main__":
    sys.exit(main())
