"""A plugin brings ways of writing tool calls and reasoning: llmx_tool_parsers, llmx_reasoning_parsers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmx.errors import ConfigError
from llmx.resolve import resolve
from llmx_server.chat_forms import ChatForms
from tests.hooks.vendor import install

ZOO = """
from dataclasses import replace
from llmx.answers.reasoning_formats import ReasoningFormat
from llmx.answers.tool_formats import TOOL_FORMATS
from llmx.hooks import hookimpl

@hookimpl
def llmx_tool_parsers():
    return [replace(TOOL_FORMATS["hermes"], name="zoo", family="Zoo", opens=("<zoo>",), hints=("<zoo>",))]

@hookimpl
def llmx_reasoning_parsers():
    return [ReasoningFormat("zoo", "<hm>", "</hm>", hints=("<hm>",)), ReasoningFormat("deepseek_r1", "<own>", "</own>", hints=("<own>",))]
"""


def _forms(source: str, **options: Any) -> ChatForms:
    config, _ = resolve(options, environ={})
    template = SimpleNamespace(sources={"default": source}, variables=lambda tools: {"tools"})
    tokenizer = SimpleNamespace(names=lambda: {}, vocab_size=0, special_ids=())
    return ChatForms.of(SimpleNamespace(chat_template=template, tokenizer=tokenizer), config)  # type: ignore[arg-type]


def test_formats_of_a_plugin_are_told_from_the_template_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmx_server.chat_forms._has_special", lambda *args: False)
    install(tmp_path, monkeypatch, "llmx-zoo", {"zoo_llmx.py": ZOO}, "[llmx.plugins]\nzoo = zoo_llmx\n")
    told = _forms("{{ tools }} <zoo> <hm>")
    assert told.tool_format is not None and told.tool_format.opens == ("<zoo>",)
    assert told.reasoning is not None and told.reasoning.name == "zoo"
    named = _forms("{{ tools }}", tool_call_parser="zoo", reasoning_parser="deepseek_r1")
    assert named.tool_format is not None and named.tool_format.family == "Zoo"
    assert named.reasoning is not None and named.reasoning.hints == ("<own>",)  # replaces core's of that name
    denied = _forms("{{ tools }} <zoo> <hm>", deny_plugin=["zoo"])
    assert denied.reasoning is None or denied.reasoning.name != "zoo"
    with pytest.raises(ConfigError, match="zoo"):
        _forms("{{ tools }}", tool_call_parser="zooo")
