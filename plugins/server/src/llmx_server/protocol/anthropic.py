"""POST /v1/messages: Anthropic's request as a chat request, and its answers and errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llmx.answers.events import Answer
from llmx.errors import RequestError
from llmx_server.body import BodyModel, shorten, whole
from llmx_server.protocol.anthropic_blocks import messages_from, system_text
from llmx_server.protocol.chat import ChatRequest

__all__ = ["MessagesRequest", "content_blocks", "stop_of", "usage_counts"]

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class MessagesRequest(BodyModel):
    """A body of /v1/messages."""

    messages: list[Any]
    model: str | None = None
    max_tokens: int | None = None
    system: str | list[Any] | None = None
    stop_sequences: list[str] | None = None
    stream: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    cache_salt: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def chat(self, *, counting: bool = False) -> ChatRequest:
        """The same as a chat request. counting: only the prompt matters. Raises RequestError naming Anthropic's own field."""
        if self.max_tokens is None and not counting:
            raise RequestError("max_tokens is missing: it is required", field="max_tokens")
        if self.temperature is not None and not 0 <= self.temperature <= 1:
            raise RequestError(f"temperature is {self.temperature}: it must be in 0..1", field="temperature")
        if (self.model_extra or {}).get("chat_template") is not None:
            raise RequestError("chat_template is no field of this route: send chat_template_kwargs, or use /v1/chat/completions", field="chat_template")
        system = system_text(self.system)
        messages = [*([{"role": "system", "content": system}] if system else []), *messages_from(self.messages)]
        continued = messages[-1]["role"] == "assistant" if messages else False
        fields: dict[str, Any] = {
            "messages": messages,
            "model": self.model,
            "max_tokens": self.max_tokens,
            "stop": self.stop_sequences,
            "stream": self.stream,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "cache_salt": self.cache_salt,
            "continue_final_message": continued,
            "tools": [_tool(tool, f"tools[{index}]") for index, tool in enumerate(self.tools or [])] or None,
            **self._tool_choice(),
            **self._output(),
            "thinking_token_budget": None if counting else self.thinking_budget,
        }
        kwargs = {**self._thinking(), **(self.chat_template_kwargs or {})}
        return ChatRequest(**{name: value for name, value in fields.items() if value is not None}, chat_template_kwargs=kwargs or None)

    def without_effect(self) -> list[str]:
        """Phrases for the Warning header."""
        phrases = [f"{name[:40]} (unknown)" for name in self.model_extra or {}]
        phrases += [f"{name} (it describes the caller)" for name in ("metadata",) if getattr(self, name)]
        return phrases

    @property
    def thinking_budget(self) -> int | None:
        """thinking.budget_tokens, where thinking is enabled. Raises RequestError."""
        budget = whole((self.thinking or {}).get("budget_tokens"))
        if budget is None or (self.thinking or {}).get("type") != "enabled":
            return None
        if not isinstance(budget, int) or isinstance(budget, bool) or budget < 1:
            raise RequestError(f"thinking.budget_tokens is {shorten(budget)}: it must be a whole number from 1", field="thinking")
        return budget

    def _tool_choice(self) -> dict[str, Any]:
        choice = self.tool_choice
        if choice is None:
            return {}
        kind = choice.get("type")
        parallel = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
        if kind == "tool" and isinstance(choice.get("name"), str):
            return {"tool_choice": {"type": "function", "function": {"name": choice["name"]}}, **parallel}
        if kind not in _CHOICES:
            raise RequestError(f"tool_choice is {shorten(choice)}: its type must be auto, any, none, or tool with a name", field="tool_choice")
        return {"tool_choice": _CHOICES[kind], **parallel}

    def _thinking(self) -> dict[str, Any]:
        kind = (self.thinking or {"type": "adaptive"}).get("type")
        if kind not in ("enabled", "disabled", "adaptive"):
            raise RequestError(f"thinking.type is {shorten(kind)}: it must be enabled, disabled or adaptive", field="thinking")
        return {} if kind == "adaptive" else {"enable_thinking": kind == "enabled"}

    def _output(self) -> dict[str, Any]:
        config = dict(self.output_config or {})
        found: dict[str, Any] = {}
        if (effort := config.pop("effort", None)) is not None:
            found["reasoning_effort"] = effort
        if (form := config.pop("format", None)) is not None:
            if not isinstance(form, dict) or form.get("type") != "json_schema" or "schema" not in form:
                raise RequestError('output_config.format must be {"type": "json_schema", "schema": {...}}', field="output_config")
            found["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": form["schema"]}}
        if config:
            raise RequestError(f"output_config.{next(iter(config))[:40]} is not known: it has effort and format", field="output_config")
        return found


def content_blocks(answer: Answer, ids: Any) -> list[dict[str, Any]]:
    """The content of a whole answer. ids: gives the id of a call for what the model wrote."""
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.content:
        blocks.append({"type": "text", "text": answer.content})
    for call in answer.calls:
        try:
            value = json.loads(call.arguments or "{}")
        except ValueError:  # cut off by max_tokens: what there is, as text
            value = {"_incomplete": call.arguments}
        blocks.append({"type": "tool_use", "id": ids.of(call.id), "name": call.name, "input": value})
    return blocks


def stop_of(reason: str | None, stop: str | int | None, called: bool) -> tuple[str | None, str | None]:
    """(stop_reason, stop_sequence) in Anthropic's words."""
    if reason == "length":
        return "max_tokens", None
    if isinstance(stop, str):
        return "stop_sequence", stop
    return ("tool_use" if called else "end_turn"), None


def usage_counts(prompt_tokens: int, cached_tokens: int, output_tokens: int) -> dict[str, int]:
    """Anthropic's usage: cached tokens are not in input_tokens."""
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": output_tokens,
    }


def _tool(tool: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise RequestError(f"{place} is {shorten(tool)}: it must have name and input_schema", field="tools")
    if tool.get("type", "custom") != "custom":
        raise RequestError(f"{place}.type is {shorten(tool['type'])}: tools that the server runs are not there, send a custom one", field="tools")
    if not isinstance(tool.get("input_schema"), dict):
        raise RequestError(f"{place}.input_schema is {shorten(tool.get('input_schema'))}: it must be a JSON schema", field="tools")
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    function |= {key: tool[key] for key in ("description", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": function}
