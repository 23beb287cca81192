"""Lines of a batch: requests read from JSONL, many run at once, one line of output for each, whatever happens to it."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import msgspec

from llmx.record import record
from llmx_server.body import MAX_BODY_BYTES, shorten
from llmx_server.caller import Caller, acting
from llmx_server.frames import encode
from llmx_server.in_process import Answer, InProcess
from llmx_server.protocol.api_fields import CHAT, COMPLETIONS, RESPONSES
from llmx_server.turns import Turn, Turns

__all__ = ["ENDPOINTS", "MAX_LINES", "Line", "Outcome", "Runner", "Usage", "finished_lines", "read_lines", "run_lines"]

ENDPOINTS = (CHAT, COMPLETIONS, RESPONSES, "/v1/embeddings", "/v1/score", "/v1/rerank")
MAX_LINES = 50_000  # OpenAI's limit of one batch
_TRIES = 3  # of a line during which the engine died
_PAUSE_S = 1.0  # before a line that could not be taken is sent again, where the answer does not say
_ID = re.compile(rb'\{"id":"batch_req_[0-9a-f]*_(\d+)"')


@record
class Line:
    """One line. fault: (code, message) of one that cannot be sent."""

    number: int  # from 1
    custom_id: str | None = None
    url: str = ""
    body: bytes = b""
    fault: tuple[str, str] | None = None


@dataclass(slots=True)
class Usage:
    """Tokens of all lines that were answered."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def add(self, body: bytes) -> None:
        """Those of one answer: `usage` in either of OpenAI's shapes."""
        used = msgspec.json.decode(body, type=_Body).usage or {}
        self.input_tokens += used.get("prompt_tokens") or used.get("input_tokens") or 0
        self.output_tokens += used.get("completion_tokens") or used.get("output_tokens") or 0
        before = used.get("prompt_tokens_details") or used.get("input_tokens_details") or {}
        after = used.get("completion_tokens_details") or used.get("output_tokens_details") or {}
        self.cached_tokens += before.get("cached_tokens") or 0
        self.reasoning_tokens += after.get("reasoning_tokens") or 0

    def shown(self) -> dict[str, Any]:
        """OpenAI's usage object of a batch."""
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.input_tokens + self.output_tokens,
        }


class _Body(msgspec.Struct):
    usage: dict[str, Any] | None = None


@record
class Outcome:
    """What became of a line. answer: the route's; without one, fault says why."""

    line: Line
    answer: Answer | None = None
    fault: tuple[str, str] | None = None

    @property
    def ok(self) -> bool:
        """Answered with 200."""
        return self.answer is not None and self.answer.status == 200

    def encoded(self, batch: str) -> bytes:
        """The line of output. Its id ends with the number of the line, from which a batch that broke off goes on."""
        line_id = f"batch_req_{batch}_{self.line.number}"
        response: Any = None
        error: Any = None
        if self.answer is not None:
            request_id = f"req_{uuid.uuid4().hex}"
            response = {"status_code": self.answer.status, "request_id": request_id, "body": msgspec.Raw(self.answer.body)}
        else:
            code, message = self.fault or ("server_error", "")
            error = {"code": code, "message": message}
        return encode({"id": line_id, "custom_id": self.line.custom_id, "response": response, "error": error}) + b"\n"


def read_lines(file: BinaryIO, endpoint: str | None, done: frozenset[int] = frozenset()) -> Iterator[Line]:
    """The lines of a file that are not `done`; blank ones are left out. endpoint: the one that all must have; None: any."""
    seen: set[str] = set()
    number = 0
    while data := file.readline(MAX_BODY_BYTES + 1):
        number += 1
        too_long = len(data) > MAX_BODY_BYTES
        while too_long and not data.endswith(b"\n") and (data := file.readline(MAX_BODY_BYTES)):
            pass
        if too_long:
            yield Line(number, fault=("line_too_long", f"line {number} has more than {MAX_BODY_BYTES} bytes, which is the limit"))
            continue
        if not data.strip():
            continue
        line = _line(number, data, endpoint)
        if line.custom_id is not None:
            if line.custom_id in seen:
                line = Line(number, line.custom_id, fault=("duplicate_custom_id", f"custom_id of line {number} is that of an earlier line: they must differ"))
            seen.add(line.custom_id or "")
        if number not in done:
            yield line


def finished_lines(file: BinaryIO) -> tuple[set[int], list[bytes]]:
    """(numbers, answers that are 200) of what an output file has. Half a line at its end is cut off."""
    numbers, bodies, size = set(), [], 0
    file.seek(0)
    for data in file:
        match = _ID.match(data)
        if not data.endswith(b"\n") or match is None:
            break
        size += len(data)
        numbers.add(int(match[1]))
        told = msgspec.json.decode(data, type=_OutputLine)
        if told.response is not None and told.response.status_code == 200:
            bodies.append(bytes(told.response.body))
    file.truncate(size)
    file.seek(size)
    return numbers, bodies


class _OutputResponse(msgspec.Struct):
    status_code: int
    body: msgspec.Raw


class _OutputLine(msgspec.Struct):
    response: _OutputResponse | None = None


@record
class Runner:
    """Sends lines to `post` as the caller that `who` gives, which is asked for each line anew; `turns` are shared with the lines of other batches."""

    post: InProcess
    turns: Turns
    who: Callable[[], Caller] = Caller

    async def send(self, line: Line) -> Answer:
        """The answer to a line, which waits for its caller's limits and for its turn."""
        who = self.who()
        turn = Turn(self.turns, who.name)
        try:
            with acting(replace(who, turn=turn)):
                return await self.post.post(line.url, line.body)
        finally:
            turn.end()


async def run_lines(lines: Iterable[Line], runner: Runner, write: Callable[[Outcome], None], *, at_once: int, leaving: Callable[[], bool]) -> None:
    """Run lines, `at_once` at a time, and write each outcome as it comes, in any order.

    leaving: the server ends; what has not been answered then is not written. Raises what `write` raises. Cancelled, it aborts what runs.
    """
    waiting = iter(lines)

    async def work() -> None:
        for line in waiting:
            if leaving():
                return
            outcome = await _outcome(line, runner, leaving)
            if outcome is not None:
                write(outcome)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())


async def _outcome(line: Line, runner: Runner, leaving: Callable[[], bool]) -> Outcome | None:
    """None when the server ends before the line is answered."""
    if line.fault is not None:
        return Outcome(line, fault=line.fault)
    tries = 0
    while True:
        answer = await runner.send(line)
        if answer.status not in (429, 503) or b'"insufficient_quota"' in answer.body:  # of a full queue, or of an engine that starts again
            return Outcome(line, answer)
        if leaving():
            return None
        if b'"engine_dead"' in answer.body:
            tries += 1
            if tries == _TRIES:
                return Outcome(line, answer)
        await asyncio.sleep(float(answer.headers.get("retry-after", _PAUSE_S)))


def _line(number: int, data: bytes, endpoint: str | None) -> Line:
    def fault(code: str, why: str, custom_id: str | None = None) -> Line:
        return Line(number, custom_id, fault=(code, f"line {number}: {why}"))

    try:
        given = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return fault("invalid_json_line", f"it is not valid JSON: {str(error)[:200]}")
    if not isinstance(given, dict):
        return fault("invalid_json_line", "it must be a JSON object with custom_id, method, url and body")
    custom_id, url, body = given.get("custom_id"), given.get("url"), given.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        return fault("missing_custom_id", f"custom_id is {shorten(custom_id)}: it must be a string")
    if given.get("method", "POST") != "POST":
        return fault("invalid_method", f"method is {shorten(given['method'])}: it must be POST", custom_id)
    if endpoint is not None and url != endpoint:
        return fault("invalid_url", f"url is {shorten(url)}: the batch is for {endpoint}", custom_id)
    if url not in ENDPOINTS:
        return fault("invalid_url", f"url is {shorten(url)}: it must be one of {', '.join(ENDPOINTS)}", custom_id)
    if not isinstance(body, dict):
        return fault("invalid_body", f"body is {shorten(body)}: it must be an object", custom_id)
    for name in ("stream", "background"):
        if body.get(name):
            return fault("invalid_body", f"{name} is true: in a batch answers are whole, leave it out", custom_id)
    return Line(number, custom_id, url, encode(body))
