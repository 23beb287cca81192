"""ChatTemplate: messages to the text of a prompt, by the template that comes with a model."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta
from jinja2.exceptions import SecurityError

from llmx.errors import ConfigError, ModelError, RequestError
from llmx.tokens.messages import normalise_messages
from llmx.tokens.sandbox import ChatEnvironment, TemplateRefusal
from llmx.tokens.source import TokenizerSource
from llmx.weights.json_file import read_json_object

__all__ = ["ChatTemplate"]

_DEFAULT, _TOOL_USE = "default", "tool_use"  # names that tokenizer_config.json uses in a list of templates
# appended to the last message to find its end; a template that trims takes the final space away
_MARK = "\ue000end of the message to continue\ue000 "
_PROBE = "\ue000a part\ue000"
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template"})


class ChatTemplate:
    """Renders chats. templates: name -> jinja source, {} for a model without one; names: texts of bos_token, eos_token, ...

    Templates are foreign code and run in a sandbox with bounds (llmx.tokens.sandbox). Safe to use from several threads.
    Raises ModelError for a template that is no jinja.
    """

    def __init__(self, templates: Mapping[str, str], names: Mapping[str, str], path: str = "") -> None:
        self.sources = dict(templates)
        self._names = dict(names)
        self._path = path
        self._environment = ChatEnvironment()
        self._templates = {name: self._compile(name, source) for name, source in self.sources.items()}

    @classmethod
    def load(cls, source: TokenizerSource, names: Mapping[str, str], override: str | None = None) -> ChatTemplate:
        """The template of a model, or `override`: a file, or the template itself.

        From GGUF metadata, or from chat_template.jinja, else tokenizer_config.json (a string, or a list of named ones) in the directory.
        Raises ModelError naming the file, ConfigError (field chat_template) for an override that cannot be read.
        """
        if override is not None:
            return cls({_DEFAULT: _override(override)}, names, "chat_template")
        return cls(_from_directory(source.path) if source.gguf is None else _from_gguf(source.gguf), names, source.path)

    @property
    def available(self) -> bool:
        """True when the model has a template."""
        return bool(self._templates)

    def variables(self, tools: bool = False) -> frozenset[str]:
        """Names that the template reads ("tools", "enable_thinking", ...), the special tokens' included."""
        name = self._name(tools)
        return frozenset(meta.find_undeclared_variables(self._environment.parse(self.sources[name]))) if name else frozenset()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt's text; encode it with add_special_tokens=False, because it writes BOS itself where the model wants one.

        continue_final_message: the text ends inside the last message, without its end marker. kwargs: further variables.
        Raises RequestError with the template's own message when it refuses or fails, and when there is no template.
        """
        name = self._name(bool(tools))
        if name is None:
            raise RequestError("the model has no chat template: use /v1/completions, or start with --chat-template FILE", field="messages")
        if continue_final_message and add_generation_prompt:
            raise RequestError("add_generation_prompt and continue_final_message exclude each other", field="continue_final_message")
        clash = sorted(_RESERVED & kwargs.keys())
        if clash:
            raise RequestError(f"{clash[0]!r} cannot be given as a template variable", field="chat_template_kwargs")
        chat = normalise_messages(messages, self._takes_parts(name))
        if continue_final_message:
            _mark_end(chat[-1])
        variables = {**self._names, **kwargs, "messages": chat, "tools": list(tools) if tools else None, "add_generation_prompt": add_generation_prompt}
        text = self._render(name, variables)
        return _cut_at_mark(text) if continue_final_message else text

    def _name(self, tools: bool) -> str | None:
        for name in (_TOOL_USE, _DEFAULT) if tools else (_DEFAULT,):
            if name in self._templates:
                return name
        return next(iter(self._templates), None)

    def _compile(self, name: str, source: str) -> jinja2.Template:
        try:
            return self._environment.compiled(source)
        except (jinja2.TemplateError, RecursionError) as error:
            line = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise ModelError(f"chat template {name!r}{line} is not valid jinja: {error}", path=self._path) from error

    def _render(self, name: str, variables: dict[str, Any]) -> str:
        try:
            return self._environment.rendered(self._templates[name], variables)
        except TemplateRefusal as error:
            raise RequestError(str(error), field="messages") from error
        except SecurityError as error:
            raise RequestError(f"the chat template is refused: {error}", field="messages") from error
        except Exception as error:  # noqa: BLE001 - foreign code: whatever its expressions raise is about these messages
            raise RequestError(f"the chat template cannot take these messages: {type(error).__name__}: {error}", field="messages") from error

    @functools.cached_property
    def _parts(self) -> dict[str, bool]:
        return {name: self._probe(name) for name in self._templates}

    def _takes_parts(self, name: str) -> bool:
        return self._parts[name]

    def _probe(self, name: str) -> bool:
        """True when the template takes a list of parts as content: its text comes out, not its Python form."""
        chat = [{"role": "user", "content": [{"type": "text", "text": _PROBE}]}]
        try:
            text = self._render(name, {**self._names, "messages": chat, "tools": None, "add_generation_prompt": True})
        except RequestError:
            return False
        before = text.partition(_PROBE)[0]
        return _PROBE in text and not before.endswith(("'", '"'))


def _mark_end(message: dict[str, Any]) -> None:
    content = message.get("content")
    if isinstance(content, list) and content:
        message["content"] = [*content[:-1], {**content[-1], "text": content[-1]["text"] + _MARK}]
    elif isinstance(content, str):
        message["content"] = content + _MARK
    else:
        raise RequestError("the final message has no text that could be continued", field="continue_final_message")


def _cut_at_mark(text: str) -> str:
    at = text.rfind(_MARK.rstrip())
    if at < 0:
        raise RequestError("the chat template does not show the final message, so it cannot be continued", field="continue_final_message")
    return text[:at] if text.startswith(_MARK, at) else text[:at].rstrip()


def _override(text: str) -> str:
    if "{{" in text or "{%" in text or "\n" in text:
        return text
    try:
        return Path(text).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template is {text!r}: neither a template (no {{{{, no {{%) nor a readable file: {error}", field="chat_template") from error


def _from_gguf(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The main template and named ones (`tokenizer.chat_template.<name>`)."""
    prefix = "tokenizer.chat_template"
    found = {key[len(prefix) + 1 :] or _DEFAULT: value for key, value in metadata.items() if key == prefix or key.startswith(prefix + ".")}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _from_directory(path: str) -> dict[str, str]:
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    own, config = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if own.is_file():
        try:
            return {_DEFAULT: own.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"cannot be read: {error}", path=str(own)) from error
    value = read_json_object(config).get("chat_template") if config.is_file() else None
    if isinstance(value, str):
        return {_DEFAULT: value}
    entries = value if isinstance(value, list) else []
    return {str(entry["name"]): str(entry["template"]) for entry in entries if isinstance(entry, dict) and {"name", "template"} <= entry.keys()}
