"""RequestTemplates: chat templates that come with requests, rendered in a process of their own (llmx.tokens.template_worker)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import sys
from collections.abc import Mapping
from typing import Any

from llmx.errors import RequestError
from llmx.tokens.template_worker import LIMIT_S

__all__ = ["MAX_TEMPLATE_CHARS", "RequestTemplates"]

MAX_TEMPLATE_CHARS = 65_536
_START_S = 60.0
_GUARD_S = 10 * LIMIT_S  # the process ends itself long before
_LENGTH = struct.Struct(">I")


class RequestTemplates:
    """One at a time. The process starts with the first template, and anew after one that it did not survive. names: texts of bos_token, eos_token, ..."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def variables(self, template: str, names: Mapping[str, str], *, tools: bool) -> frozenset[str]:
        """Names that the template reads. Raises RequestError (field chat_template) for what is no template."""
        answer = await self._ask({"template": template, "names": dict(names), "tools": tools})
        return frozenset(answer["variables"])

    async def render(self, template: str, names: Mapping[str, str], arguments: Mapping[str, Any]) -> str:
        """The prompt. Raises RequestError for a template that refuses or fails, and for one that takes too much time or memory."""
        answer = await self._ask({"template": template, "names": dict(names), "arguments": dict(arguments)})
        return str(answer["text"])

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        if len(asked["template"]) > MAX_TEMPLATE_CHARS:
            raise RequestError(f"chat_template has {len(asked['template'])} characters: at most {MAX_TEMPLATE_CHARS} are allowed", field="chat_template")
        async with self._lock:
            try:
                answer = await self._exchange(json.dumps(asked).encode())
            except BaseException as error:  # also of a client that left: the process is in the middle of something
                await self.close()
                if not isinstance(error, asyncio.IncompleteReadError | ConnectionError | TimeoutError):
                    raise
                why = f"it took longer than {LIMIT_S:g} s, or more memory than it may have"
                raise RequestError(f"chat_template could not be rendered: {why}", field="chat_template") from error
        if "refused" in answer:
            raise RequestError(answer["refused"], field="chat_template" if answer["field"] in (None, "messages") else answer["field"])
        return answer

    async def _exchange(self, frame: bytes) -> dict[str, Any]:
        if self._process is None or self._process.returncode is not None:
            pipe = asyncio.subprocess.PIPE
            command = (sys.executable, "-m", "llmx.tokens.template_worker")
            self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, start_new_session=True)
        writer, reader = self._process.stdin, self._process.stdout
        assert writer is not None and reader is not None
        writer.write(_LENGTH.pack(len(frame)) + frame)
        async with asyncio.timeout(_START_S + _GUARD_S):
            await writer.drain()
            (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            answer: dict[str, Any] = json.loads(await reader.readexactly(size))
        return answer
