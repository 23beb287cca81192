"""The formats in which answers are written, core's and those of plugins: tool calls and reasoning, by name."""

from __future__ import annotations

from llmx.answers.budget import with_budget
from llmx.answers.choose import reasoning_format
from llmx.answers.reasoning_formats import REASONING_FORMATS, ReasoningFormat
from llmx.answers.tool_formats import TOOL_FORMATS, ToolFormat
from llmx.config import EngineConfig, PlatformConfig
from llmx.hooks.loader import PluginLoader
from llmx.hooks.specs import hookimpl
from llmx.sampling_params import SamplingParams
from llmx.tokens.chat_template import ChatTemplate
from llmx.tokens.tokenizer import Tokenizer

__all__ = ["CoreFormats", "answer_formats", "with_thinking_budget"]


class CoreFormats:
    """The plugin that brings core's own formats."""

    @hookimpl
    def llmx_tool_parsers(self) -> list[ToolFormat]:
        """Every way of writing tool calls that core reads."""
        return list(TOOL_FORMATS.values())

    @hookimpl
    def llmx_reasoning_parsers(self) -> list[ReasoningFormat]:
        """Every way of marking reasoning that core reads."""
        return list(REASONING_FORMATS.values())


def answer_formats(config: PlatformConfig) -> tuple[list[ToolFormat], list[ReasoningFormat]]:
    """(tool formats, reasoning formats) of all allowed plugins; the later of one name replaces the earlier, core's come first."""
    hook = PluginLoader.discover(config).activate(None, builtin=[CoreFormats()]).hook
    tools = [form for forms in reversed(hook.llmx_tool_parsers()) for form in forms]  # pluggy answers last registered first
    return tools, [form for forms in reversed(hook.llmx_reasoning_parsers()) for form in forms]


_TAIL = 32  # tokens at the end of a prompt that may open or close reasoning


def with_thinking_budget(params: SamplingParams, config: EngineConfig, template: ChatTemplate, tokenizer: Tokenizer, prompt: list[int]) -> SamplingParams:
    """params as an engine takes them: a thinking budget holds for the reasoning as the model, which has this chat template, marks it.

    prompt: token ids. Raises RequestError where it is not known how.
    """
    if params.thinking_token_budget is None:
        return params
    form = reasoning_format(config.server.reasoning_parser, "\n".join(template.sources.values()), answer_formats(config.platform)[1])
    return with_budget(params, form, tokenizer.decode(prompt[-_TAIL:], skip_special_tokens=False))
