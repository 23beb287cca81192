"""ChatForms: what the served model's chat template says about tools and reasoning, and the form of each request's answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmx.answers.choose import reasoning_format, tool_format
from llmx.answers.reasoning_formats import ReasoningFormat
from llmx.answers.thinking import span_of
from llmx.answers.tool_formats import TOOL_FORMATS, ToolFormat
from llmx.answers.tool_prompt import PLAIN_FORMAT, described, plain_history
from llmx.config import EngineConfig, ServerConfig
from llmx.engine.answer_formats import answer_formats
from llmx.errors import RequestError
from llmx.sampling_params import SamplingParams
from llmx.structured_params import StructuredOutputsParams
from llmx.tokens.chat_template import ChatTemplate
from llmx.tokens.tokenizer import Tokenizer
from llmx_server.answer_form import AnswerForm
from llmx_server.protocol.tools import Tools

if TYPE_CHECKING:
    from llmx.engine.async_engine import AsyncEngine

__all__ = ["ChatForms"]


class ChatForms:
    """Made once for a server. Raises ConfigError for a parser name that is not known.

    formats: of tool calls and of reasoning, beside core's own.
    reads_tools: the template takes tools itself; otherwise they are described in the system message.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        config: ServerConfig,
        formats: tuple[Sequence[ToolFormat], Sequence[ReasoningFormat]] = ((), ()),
    ) -> None:
        source = "\n".join(template.sources.values())
        self.reads_tools = "tools" in template.variables(tools=True)
        own = tool_format(config.tool_parser, source, formats[0])
        self.tool_format = own if own or self.reads_tools or config.tool_parser == "none" else TOOL_FORMATS[PLAIN_FORMAT]
        self.reasoning = reasoning_format(config.reasoning_parser, source, formats[1])
        self._special = _has_special(self.tool_format, self.reasoning, tokenizer)

    @property
    def ends_reasoning(self) -> bool:
        """Reasoning has a marker that ends it, so it can have a budget."""
        return self.reasoning is not None and bool(self.reasoning.end)

    @classmethod
    def of(cls, engine: AsyncEngine, config: EngineConfig) -> ChatForms:
        """Those of the model that an engine has loaded."""
        return cls(engine.chat_template, engine.tokenizer, config.server, answer_formats(config.platform))

    def arguments(self, arguments: dict[str, Any], tools: Tools | None, *, reads_tools: bool | None = None) -> tuple[dict[str, Any], list[str]]:
        """(arguments for the template with the tools in them, phrases for the Warning header). Raises RequestError.

        reads_tools: of the request's own template, if it brings one.
        """
        if tools is not None and tools.choice == "auto" and self.tool_format is None:
            message = "tools are given, but it is not known how this model writes calls: start with --tool-call-parser NAME, or send tool_choice required"
            raise RequestError(message, field="tools")
        if self.reads_tools if reads_tools is None else reads_tools:
            return ({**arguments, "tools": list(tools.described)} if tools else arguments), self._not_enforced(tools)
        messages = plain_history(arguments["messages"])
        if tools is None:
            return {**arguments, "messages": messages}, []
        return {**arguments, "messages": described(messages, tools.described)}, self._not_enforced(tools)

    def form(self, tools: Tools | None, prompt: str, params: SamplingParams, *, show_reasoning: bool) -> tuple[AnswerForm, SamplingParams]:
        """The form of a request's answers, and the parameters that hold them to it. Raises RequestError."""
        forced = tools.forced if tools else None
        if forced is not None and params.structured_outputs is not None:
            raise RequestError("tool_choice forces a call, and response_format or structured_outputs another form: set one of them", field="tool_choice")
        constrained = forced or params.structured_outputs or self._strict_calls(tools)
        reasoning = self.reasoning
        if forced is not None or params.structured_outputs is not None:  # then all behind the reasoning is what the grammar says
            reasoning = replace(reasoning, in_content=False, noise=()) if reasoning is not None and reasoning.end else None
        form = AnswerForm(reasoning, self.tool_format, tools, prompt, show_reasoning)
        if constrained is not None and reasoning is not None and reasoning.end:
            constrained = replace(constrained, after=span_of(reasoning, prompt))
        if constrained is not params.structured_outputs:
            params = replace(params, structured_outputs=constrained)
        if self._special and (reasoning is not None or (forced is None and not form.plain)):
            params = replace(params, skip_special_tokens=False)  # the markers are special tokens
        return form, params

    def _not_enforced(self, tools: Tools | None) -> list[str]:
        if tools is None or tools.choice != "auto" or not tools.strict or self._strict_begin() is not None:
            return []
        return ["strict (with tool_choice auto it is enforced for calls written as JSON between markers only)"]

    def _strict_begin(self) -> tuple[str, str] | None:
        form = self.tool_format
        return (form.opens[0], form.closer) if form is not None and form.closer else None

    def _strict_calls(self, tools: Tools | None) -> StructuredOutputsParams | None:
        """Free text in which each call is held to its schema, where a strict tool may be called and the format is JSON between markers."""
        marks = self._strict_begin()
        if tools is None or tools.choice != "auto" or not tools.strict or marks is None or (self.reasoning is not None and not self.reasoning.end):
            return None
        opener, closer = marks
        structures = []
        for name, schema in tools.schemas.items():
            begin = f'{opener}\n{{"name": {json.dumps(name)}, "arguments": '
            structures.append({"begin": begin, "schema": dict(schema) if name in tools.strict else {"type": "object"}, "end": f"}}\n{closer}"})
        tag = {"type": "structural_tag", "structures": structures, "triggers": [opener]}
        return StructuredOutputsParams(structural_tag=tag, field_name="tools")


def _has_special(tools: ToolFormat | None, reasoning: ReasoningFormat | None, tokenizer: Tokenizer) -> bool:
    """Whether a marker is a special token, which is left out of texts by default."""
    markers = [*(tools.opens if tools else ()), *(tools.noise if tools else ()), *((reasoning.start, reasoning.end) if reasoning else ())]
    if tools is not None and tools.section is None:
        markers.append("<|channel|>")
    return any(token in tokenizer.special_ids for marker in markers for token in tokenizer.encode(marker, add_special_tokens=False))
