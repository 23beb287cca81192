"""Which formats an answer is written in: the ones named, else told from the chat template."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from llmx.answers.reasoning_formats import REASONING_FORMATS, ReasoningFormat
from llmx.answers.tool_formats import TOOL_FORMATS, ToolFormat
from llmx.errors import ConfigError

__all__ = ["reasoning_format", "tool_format"]


class _Format(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def hints(self) -> Sequence[str]: ...


Form = TypeVar("Form", bound=_Format)


def tool_format(wanted: str, template: str, more: Sequence[ToolFormat] = ()) -> ToolFormat | None:
    """The format of tool calls. wanted: a name, "auto" (told from the template; None when no family is recognised) or "none".

    more: formats of plugins, which replace those of the same name. Raises ConfigError for an unknown name.
    """
    return _choose("tool_call_parser", wanted, template, {**TOOL_FORMATS, **{form.name: form for form in more}})


def reasoning_format(wanted: str, template: str, more: Sequence[ReasoningFormat] = ()) -> ReasoningFormat | None:
    """The format of reasoning; arguments as for tool_format."""
    return _choose("reasoning_parser", wanted, template, {**REASONING_FORMATS, **{form.name: form for form in more}})


def _choose(field: str, wanted: str, template: str, formats: Mapping[str, Form]) -> Form | None:
    if wanted == "none":
        return None
    if wanted != "auto":
        if wanted in formats:
            return formats[wanted]
        near = difflib.get_close_matches(wanted, formats, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"{field} is {wanted!r}: {hint}give auto, none or one of {', '.join(sorted(formats))}", field=field)
    told = [form for form in formats.values() if form.hints and all(hint in template for hint in form.hints)]
    return max(told, key=lambda form: (len(form.hints), sum(map(len, form.hints))), default=None)
