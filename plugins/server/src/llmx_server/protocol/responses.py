"""POST /v1/responses: OpenAI's newer request as a chat request, and the response object that begins as its echo."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llmx.errors import RequestError
from llmx.sampling_params import SamplingParams
from llmx_server.body import BodyModel, shorten
from llmx_server.protocol.chat import ChatRequest
from llmx_server.protocol.metadata import check_metadata
from llmx_server.protocol.sampling import within_logprob_limit

__all__ = ["ResponsesRequest", "renamed"]

_LOGPROBS = "message.output_text.logprobs"
# Values of `include` about tools that the server runs, media and encryption: none of them is ever part of an answer here.
_NEVER_THERE = (
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources", "message.input_image.image_url",
    "computer_call_output.output.image_url", "code_interpreter_call.outputs", "reasoning.encrypted_content",
)  # fmt: skip
_SAME_NAME = (
    "model", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "logit_bias",
    "allowed_token_ids", "bad_words", "min_tokens", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "skip_special_tokens",
    "structured_outputs", "chat_template_kwargs", "include_reasoning", "parallel_tool_calls", "priority", "cache_salt", "request_id", "service_tier",
    "stream", "stream_options", "thinking_token_budget", "logits_processors",
)  # fmt: skip
# A chat request's names for what this one calls otherwise.
_NAMES = {"max_tokens": "max_output_tokens", "messages": "input", "prompt": "input", "response_format": "text", "reasoning_effort": "reasoning"}
_IN_TEXT = (
    (r"\bresponse_format\.json_schema\b", "text.format"),
    (r"\bresponse_format\b", "text.format"),
    (r"\bmax_tokens\b", "max_output_tokens"),
    (r"\breasoning_effort\b", "reasoning.effort"),
    (r"^messages\b", "input"),
    (r"\.function\.", "."),
)


class ResponsesRequest(BodyModel):
    """A body of /v1/responses."""

    input: str | list[Any]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    background: bool = False
    store: bool | None = None
    metadata: dict[str, str] | None = None
    include: list[str] | None = None
    max_output_tokens: int | None = None
    truncation: str | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    include_reasoning: bool = True
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    top_logprobs: int | None = None
    structured_outputs: dict[str, Any] | None = None
    thinking_token_budget: int | None = None
    logits_processors: list[str | dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    service_tier: str | None = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether the text of the answer is to have logprobs."""
        return bool(self.top_logprobs) or _LOGPROBS in (self.include or ())

    def check(self) -> None:
        """Raises RequestError for a value of a field that no chat request has."""
        if self.truncation not in (None, "auto", "disabled"):
            raise RequestError(f"truncation is {shorten(self.truncation)}: it must be auto or disabled", field="truncation")
        unknown = next((name for name in self.include or () if name not in (_LOGPROBS, *_NEVER_THERE)), None)
        if unknown is not None:
            raise RequestError(f"include has {shorten(unknown)}: it may have {', '.join((_LOGPROBS, *_NEVER_THERE))}", field="include")
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            raise RequestError(f"max_output_tokens is {self.max_output_tokens}: it must be at least 1", field="max_output_tokens")
        if self.top_logprobs is not None:
            within_logprob_limit("top_logprobs", self.top_logprobs)
        if self.background and self.store is False:
            raise RequestError("background is true and store is false: a background response is fetched later, so it must be stored", field="background")
        check_metadata(self.metadata)

    def chat(self, messages: list[dict[str, Any]]) -> ChatRequest:
        """The same as a chat request about `messages`, the conversation so far. Raises RequestError."""
        if self.instructions is not None:
            messages = [{"role": "system", "content": self.instructions}, *messages]
        tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(self.tools or [])]
        fields: dict[str, Any] = {
            **{name: getattr(self, name) for name in _SAME_NAME},
            "messages": messages,
            "max_tokens": self.max_output_tokens,
            "logprobs": self.wants_logprobs,
            "top_logprobs": (self.top_logprobs or 0) if self.wants_logprobs else None,
            "tools": tools or None,
            "tool_choice": _choice(self.tool_choice),
            "reasoning_effort": self._effort(),
            "response_format": self._format(),
        }
        return ChatRequest(**{name: value for name, value in fields.items() if value is not None})

    def without_effect(self) -> list[str]:
        """Phrases for the Warning header: values that are taken and change nothing."""
        phrases = [f"include {name} (there is none in an answer)" for name in self.include or () if name in _NEVER_THERE]
        phrases += [f"reasoning.{name[:40]} (reasoning is given as it is)" for name in self.reasoning or {} if name in ("summary", "generate_summary")]
        return phrases

    def echoed(self, params: SamplingParams) -> dict[str, Any]:
        """What a response repeats of its request. params: as they were used."""
        return {
            "background": self.background,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": self.previous_response_id,
            "reasoning": {"effort": self._effort(), "summary": None},
            "service_tier": "default",
            "temperature": params.temperature,
            "text": {"format": (self.text or {}).get("format") or {"type": "text"}},
            "tool_choice": self.tool_choice or "auto",
            "tools": self.tools or [],
            "top_logprobs": self.top_logprobs or 0,
            "top_p": params.top_p,
            "truncation": self.truncation or "disabled",
        }

    def _effort(self) -> str | None:
        given = self.reasoning or {}
        unknown = next((name for name in given if name not in ("effort", "summary", "generate_summary")), None)
        if unknown is not None:
            raise RequestError(f"reasoning.{unknown[:40]} is not known: it has effort and summary", field="reasoning")
        effort = given.get("effort")
        if effort is not None and not isinstance(effort, str):
            raise RequestError(f"reasoning.effort is {shorten(effort)}: it must be a string", field="reasoning")
        return effort

    def _format(self) -> dict[str, Any] | None:
        """text.format as a chat request's response_format."""
        given = dict(self.text or {})
        if given.pop("verbosity", None) not in (None, "medium"):
            shown = shorten((self.text or {})["verbosity"])
            message = f"text.verbosity is {shown}, which is not supported: say in the instructions how long the answer shall be"
            raise RequestError(message, field="text")
        form = given.pop("format", None)
        if given:
            raise RequestError(f"text.{next(iter(given))[:40]} is not known: it has format and verbosity", field="text")
        if form is None:
            return None
        if not isinstance(form, dict) or form.get("type") not in ("text", "json_object", "json_schema"):
            raise RequestError(f"text.format is {shorten(form)}: its type must be text, json_object or json_schema", field="text")
        if form["type"] != "json_schema":
            return form
        return {"type": "json_schema", "json_schema": {name: value for name, value in form.items() if name != "type"}}


def renamed(error: RequestError) -> RequestError:
    """An error about a chat request, in the words of this one."""
    text = str(error)
    for pattern, word in _IN_TEXT:
        text = re.sub(pattern, word, text)
    error.args = (text,)
    error.field = _NAMES.get(error.field or "", error.field)
    return error


def _tool(tool: Any, place: str) -> dict[str, Any]:
    """A flat tool as chat has it."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, dict) else tool
        message = f"{place}.type is {shorten(kind)}: the server runs no tools of its own, send a function with name and parameters"
        raise RequestError(message, field="tools")
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _choice(given: str | Mapping[str, Any] | None) -> str | dict[str, Any] | None:
    """A flat tool_choice as chat has it."""
    if given is None or isinstance(given, str):
        return given
    if given.get("type") == "function" and isinstance(given.get("name"), str):
        return {"type": "function", "function": {"name": given["name"]}}
    if given.get("type") == "allowed_tools":
        named = [{"type": "function", "function": {"name": one.get("name")}} for one in given.get("tools") or [] if isinstance(one, dict)]
        return {"type": "allowed_tools", "allowed_tools": {"mode": given.get("mode"), "tools": named}}
    message = f"tool_choice is {shorten(dict(given))}: its type must be function (with a name) or allowed_tools"
    raise RequestError(message, field="tool_choice")
