"""Tools of a chat request: which there are, and which must, may or must not be called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from llmx.answers.forced import any_calls_schema
from llmx.errors import RequestError
from llmx.record import record
from llmx.structured_params import StructuredOutputsParams
from llmx_server.body import BodyModel, shorten

__all__ = ["MAX_TOOLS", "ToolChoice", "ToolFields", "Tools"]

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_FUNCTION_KEYS = ("name", "description", "parameters", "strict")
_NO_PARAMETERS = {"type": "object", "properties": {}}

ToolChoice = Literal["none", "auto", "required", "named"]


@record
class Tools:
    """The tools of one request, checked. described: as templates take them; schemas: name -> JSON schema of the parameters."""

    described: tuple[Mapping[str, Any], ...]
    schemas: Mapping[str, Mapping[str, Any]]
    choice: ToolChoice
    named: str = ""
    parallel: bool = True
    strict: frozenset[str] = frozenset()

    @property
    def forced(self) -> StructuredOutputsParams | None:
        """The form of an answer that must be a call; None where the model decides."""
        if self.choice == "required":
            return StructuredOutputsParams(json=any_calls_schema(self.schemas, parallel=self.parallel), field_name="tools")
        if self.choice == "named":
            return StructuredOutputsParams(json=dict(self.schemas[self.named]), field_name="tools")
        return None


class ToolFields(BodyModel):
    """Fields about tools and reasoning."""

    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool = True

    def wanted_tools(self) -> Tools | None:
        """The tools that may be called; None when there are none, or none may. Raises RequestError naming what is wrong."""
        tools = [_tool(item, f"tools[{index}]") for index, item in enumerate(self.tools or [])]
        if len(tools) > MAX_TOOLS:
            raise RequestError(f"tools has {len(tools)} entries: at most {MAX_TOOLS} are allowed", field="tools")
        schemas: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            name = tool["function"]["name"]
            if name in schemas:
                raise RequestError(f"tools has two functions of the name {name!r}: names must differ", field="tools")
            schemas[name] = tool["function"]["parameters"]
        wanted, names = _allowed(self.tool_choice, schemas)
        tools = [tool for tool in tools if tool["function"]["name"] in names]
        choice, named = _choice(wanted, schemas := {name: schemas[name] for name in names})
        if not tools or choice == "none":
            return None
        strict = frozenset(tool["function"]["name"] for tool in tools if tool["function"].get("strict"))
        return Tools(tuple(tools), schemas, choice, named, self.parallel_tool_calls is not False, strict)


def _allowed(value: str | dict[str, Any] | None, schemas: Mapping[str, Any]) -> tuple[str | dict[str, Any] | None, list[str]]:
    """(the choice, the names that may be called): an allowed_tools choice leaves out the other tools."""
    if not isinstance(value, dict) or value.get("type") != "allowed_tools":
        return value, list(schemas)
    given = value.get("allowed_tools")
    mode, named = (given.get("mode"), given.get("tools")) if isinstance(given, dict) else (None, None)
    if mode not in ("auto", "required") or not isinstance(named, list):
        raise RequestError(f"tool_choice is {shorten(value)}: allowed_tools must have a mode, auto or required, and tools", field="tool_choice")
    found = [_choice(one, schemas)[1] if isinstance(one, dict) else "" for one in named]
    if not all(found):
        raise RequestError(f"tool_choice is {shorten(value)}: each of the allowed tools must name a function", field="tool_choice")
    return mode, [name for name in schemas if name in found]


def _choice(value: str | dict[str, Any] | None, schemas: Mapping[str, Any]) -> tuple[ToolChoice, str]:
    if value is None:
        return "auto", ""
    if isinstance(value, str):
        if value not in ("none", "auto", "required"):
            message = f"tool_choice is {shorten(value)}: it must be none, auto, required, or an object that names a function"
            raise RequestError(message, field="tool_choice")
        if value == "required" and not schemas:
            raise RequestError("tool_choice is 'required', but tools is empty: send the tools", field="tool_choice")
        return value, ""  # type: ignore[return-value]
    function = value.get("function") if value.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        example = '{"type": "function", "function": {"name": NAME}}'
        raise RequestError(f"tool_choice is {shorten(value)}: to name a function it must be {example}", field="tool_choice")
    if name not in schemas:
        raise RequestError(f"tool_choice names {shorten(name)}, but tools has {', '.join(schemas) or 'none'}", field="tool_choice")
    return "named", name


def _tool(item: Any, place: str) -> dict[str, Any]:
    if not isinstance(item, dict) or item.get("type") != "function" or not isinstance(item.get("function"), dict):
        raise RequestError(f'{place} is {shorten(item)}: it must be {{"type": "function", "function": {{...}}}}', field="tools")
    function = item["function"]
    unknown = next((key for key in function if key not in _FUNCTION_KEYS), None)
    if unknown is not None:
        raise RequestError(f"{place}.function.{unknown[:40]} is not known: it has {', '.join(_FUNCTION_KEYS)}", field="tools")
    name, schema = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(f"{place}.function.name is {shorten(name)}: it must be 1 to 64 letters, digits, _, - or .", field="tools")
    if schema is not None and not isinstance(schema, dict):
        raise RequestError(f"{place}.function.parameters is {shorten(schema)}: it must be a JSON schema", field="tools")
    for key, kind in (("description", str), ("strict", bool)):
        if function.get(key) is not None and not isinstance(function[key], kind):
            raise RequestError(f"{place}.function.{key} is {shorten(function[key])}: it must be a {'string' if kind is str else 'boolean'}", field="tools")
    kept = {key: value for key, value in function.items() if value is not None}
    return {"type": "function", "function": {**kept, "parameters": schema or _NO_PARAMETERS}}
