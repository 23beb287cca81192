"""The formats in which answers are written, core's and those of plugins: tool calls and reasoning, by name."""

from __future__ import annotations

from llmx.answers.reasoning_formats import REASONING_FORMATS, ReasoningFormat
from llmx.answers.tool_formats import TOOL_FORMATS, ToolFormat
from llmx.config import PlatformConfig
from llmx.hooks.loader import PluginLoader
from llmx.hooks.specs import hookimpl

__all__ = ["CoreFormats", "answer_formats"]


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
