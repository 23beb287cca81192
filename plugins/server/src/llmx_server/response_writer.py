"""ResponseWriter: the output items of one response, and the events that tell of them in OpenAI's order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from llmx.answers.events import CallArguments, CallStart, Content, Event, Reasoning
from llmx_server.answer_form import CallIds
from llmx_server.errors import failure_body
from llmx_server.frames import named
from llmx_server.protocol.response_input import item_id

__all__ = ["ResponseWriter"]

Logprobs = list[dict[str, Any]]


def _none(text: str) -> Logprobs:
    return []


class ResponseWriter:
    """`response` is the response object as it stands. Methods give the bytes of new events, one each; their sequence numbers count up from 0.

    One item is open at a time. logprobs: gives those of the next stretch of text.
    """

    def __init__(self, response: dict[str, Any], logprobs: Callable[[str], Logprobs] | None = None) -> None:
        self.response = response
        self._ids = CallIds("")
        self._logprobs = logprobs or _none
        self._number = 0
        self._open = ""  # what the open item is: message, reasoning, or call N
        self._parts: list[str] = []
        self._of_text: Logprobs = []

    @property
    def _item(self) -> dict[str, Any]:
        item: dict[str, Any] = self.response["output"][-1]
        return item

    def queued(self) -> list[bytes]:
        """It waits."""
        self.response["status"] = "queued"
        return [self._of_response("response.created"), self._of_response("response.queued")]

    def started(self) -> list[bytes]:
        """It runs."""
        created = [] if self._number else [self._of_response("response.created")]
        self.response["status"] = "in_progress"
        return [*created, self._of_response("response.in_progress")]

    def add(self, events: Sequence[Event]) -> list[bytes]:
        """More of the answer."""
        return [chunk for event in events for chunk in self._one(event)]

    def end(self, finish_reason: str | None, usage: dict[str, Any]) -> list[bytes]:
        """The answer is over: completed, or incomplete where max_output_tokens or the context cut it off."""
        cut = finish_reason == "length"
        status = "incomplete" if cut else "completed"
        empty = [] if self.response["output"] else self._begin("message")
        closed = [*empty, *self._close(status)]
        self.response |= {"status": status, "usage": usage, "completed_at": None if cut else int(time.time())}
        self.response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        return [*closed, self._of_response(f"response.{status}")]

    def failed(self, error: Exception) -> list[bytes]:
        """The answer ended with an error."""
        self._close("incomplete")
        known = failure_body(error)["error"]
        code = "rate_limit_exceeded" if known["code"] in ("queue_full", "queue_timeout", "rate_limit_exceeded") else "server_error"
        self.response |= {"status": "failed", "error": {"code": code, "message": known["message"]}}
        return [self._of_response("response.failed")]

    def cancelled(self) -> None:
        """It was cancelled; no event tells of that."""
        self._close("incomplete")
        self.response["status"] = "cancelled"

    def _one(self, event: Event) -> list[bytes]:
        match event:
            case Content(text):
                begun = self._begin("message")
                new = self._logprobs(text)
                self._of_text += new
                return [*begun, self._delta("output_text", text, logprobs=new)]
            case Reasoning(text):
                self._logprobs(text)  # they are not shown, but the text's come after them
                return [*self._begin("reasoning"), self._delta("reasoning_text", text)]
            case CallStart(index, name, call_id):
                self._logprobs = _none  # calls are written otherwise than they are shown: places in the text cannot be told any more
                return self._begin(f"call {index}", {"call_id": self._ids.of(call_id), "name": name, "arguments": ""})
            case CallArguments(_, text):
                return [self._delta("function_call_arguments", text)]

    def _begin(self, what: str, fields: dict[str, Any] | None = None) -> list[bytes]:
        """Open an item, unless one of its kind is open."""
        if what == self._open:
            return []
        closed = self._close("completed")
        self._open, self._parts, self._of_text = what, [], []
        if what == "message":
            fields, part = {"role": "assistant", "content": []}, _text_part("", [])
        elif what == "reasoning":
            fields, part = {"summary": [], "content": []}, {"type": "reasoning_text", "text": ""}
        else:
            part = None
        kind = what if part else "function_call"
        self.response["output"].append({"type": kind, "id": item_id(kind), "status": "in_progress", **(fields or {})})
        added = [self._event("response.output_item.added", output_index=self._index, item=self._item)]
        return [*closed, *added, *([self._of_part("added", part)] if part else [])]

    def _close(self, status: str) -> list[bytes]:
        """Close the open item. status: completed or incomplete."""
        if not self._open:
            return []
        what, self._open = self._open, ""
        text, item = "".join(self._parts), self._item
        if what == "message":
            part = _text_part(text, self._of_text)
            chunks = [self._event("response.output_text.done", **self._place, text=text, logprobs=self._of_text), self._of_part("done", part)]
            item["content"] = [part]
        elif what == "reasoning":
            part = {"type": "reasoning_text", "text": text}
            chunks = [self._event("response.reasoning_text.done", **self._place, text=text), self._of_part("done", part)]
            item["content"] = [part]
        else:
            item["arguments"] = text
            place = {"output_index": self._index, "item_id": item["id"]}
            chunks = [self._event("response.function_call_arguments.done", **place, name=item["name"], arguments=text)]
        item["status"] = status
        return [*chunks, self._event("response.output_item.done", output_index=self._index, item=item)]

    @property
    def _index(self) -> int:
        return len(self.response["output"]) - 1

    @property
    def _place(self) -> dict[str, Any]:
        return {"output_index": self._index, "item_id": self._item["id"], "content_index": 0}

    def _delta(self, kind: str, text: str, **more: Any) -> bytes:
        self._parts.append(text)
        place = self._place
        if kind == "function_call_arguments":
            del place["content_index"]
        return self._event(f"response.{kind}.delta", **place, delta=text, **more)

    def _of_part(self, what: str, part: dict[str, Any]) -> bytes:
        return self._event(f"response.content_part.{what}", **self._place, part=part)

    def _of_response(self, kind: str) -> bytes:
        return self._event(kind, response=self.response)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return named({"type": kind, "sequence_number": number, **fields})


def _text_part(text: str, logprobs: Logprobs) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
