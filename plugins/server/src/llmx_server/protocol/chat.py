"""POST /v1/chat/completions: the request, and its answers as plain objects."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from llmx.engine.outputs import CompletionOutput, TokenLogprobs
from llmx.errors import RequestError
from llmx.sampling_params import SamplingParams
from llmx_server.body import BodyModel, shorten
from llmx_server.protocol.logprobs import chat_logprobs
from llmx_server.protocol.messages import messages_of
from llmx_server.protocol.sampling import SamplingFields, within_logprob_limit
from llmx_server.protocol.tools import ToolFields

__all__ = ["ChatRequest", "TemplateFields", "chat_choice"]

# Arguments of the renderer that have a field of their own, or none on purpose.
_RESERVED_KWARGS = frozenset(
    {"chat_template", "tokenize", "add_generation_prompt", "continue_final_message", "messages", "conversation", "tools", "return_dict"}
)
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


class TemplateFields(BodyModel):
    """What a request with messages says about rendering them."""

    messages: list[Any]
    add_generation_prompt: bool | None = None  # None: unless the final message is continued
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: str | None = None  # instead of the model's own

    def template_arguments(self) -> dict[str, Any]:
        """Arguments for ChatTemplate.render. Raises RequestError for what contradicts itself or is not allowed."""
        messages = messages_of(self.messages)
        for name in self.chat_template_kwargs or {}:
            if name in _RESERVED_KWARGS:
                raise RequestError(f"chat_template_kwargs has {name!r}: a request may not set this there", field="chat_template_kwargs")
        if self.continue_final_message:
            if self.add_generation_prompt:
                raise RequestError("continue_final_message and add_generation_prompt are both true: set one of them", field="continue_final_message")
            if messages[-1]["role"] != "assistant":
                role = messages[-1]["role"]
                message = f"continue_final_message is true but the last message is from {role!r}: it must be from 'assistant'"
                raise RequestError(message, field="continue_final_message")
        opens = not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt
        return {
            **(self.chat_template_kwargs or {}),
            "messages": messages,
            "add_generation_prompt": opens,
            "continue_final_message": self.continue_final_message,
        }

    def unread(self, variables: Set[str]) -> list[str]:
        """Phrases for the Warning header: what the template, which reads `variables`, takes no notice of."""
        return [f"chat_template_kwargs.{name[:40]} (the chat template does not read it)" for name in self.chat_template_kwargs or {} if name not in variables]


class ChatRequest(ToolFields, SamplingFields, TemplateFields):
    """A body of /v1/chat/completions."""

    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    add_special_tokens: bool = False  # a chat template writes them itself
    reasoning_effort: str | None = None
    documents: list[dict[str, Any]] | None = None
    return_prompt_text: bool = False

    def template_arguments(self) -> dict[str, Any]:
        """Arguments for ChatTemplate.render, reasoning_effort and documents among them when given."""
        arguments = super().template_arguments()
        if self.reasoning_effort is not None:
            if self.reasoning_effort not in _EFFORTS:
                raise RequestError(f"reasoning_effort is {shorten(self.reasoning_effort)}: it must be one of {', '.join(_EFFORTS)}", field="reasoning_effort")
            arguments.setdefault("reasoning_effort", self.reasoning_effort)
            arguments.setdefault("enable_thinking", self.reasoning_effort != "none")
        if self.documents:
            arguments.setdefault("documents", self.documents)
        return arguments

    def unread(self, variables: Set[str]) -> list[str]:
        """As in TemplateFields. Raises RequestError for documents that the template would drop."""
        if self.documents and "documents" not in variables:
            raise RequestError("documents are given, but the model's chat template does not read them: put their text into a message", field="documents")
        phrases = super().unread(variables)
        if self.reasoning_effort is not None and not {"reasoning_effort", "enable_thinking"} & variables:
            phrases.append("reasoning_effort (the chat template does not read it)")
        return phrases

    def params(self, vocab_size: int, defaults: Mapping[str, Any]) -> SamplingParams:
        """The sampling parameters; `defaults` are the model's own. Raises RequestError."""
        return self.sampling(vocab_size, defaults, max_tokens=self._max_tokens(), logprobs=self._logprobs(), prompt_logprobs=self.wanted_prompt_logprobs())

    def shown_logprobs(self, entries: list[TokenLogprobs]) -> dict[str, Any]:
        """The `logprobs` object for some of a choice's tokens, as the request wants it."""
        return chat_logprobs(entries, self.top_logprobs or 0, as_ids=self.return_tokens_as_token_ids, asked=self.logprob_token_ids or ())

    def echoed(self) -> str:
        """What the answer begins with: the text of the assistant's last message, with echo. Call it once the messages are checked."""
        last = messages_of(self.messages)[-1] if self.echo else {"role": ""}
        return str(last["content"]) if last["role"] == "assistant" else ""

    def _max_tokens(self) -> int | None:
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise RequestError(f"max_tokens is {old} and max_completion_tokens is {new}: set one of them", field="max_completion_tokens")
        value, name = (new, "max_completion_tokens") if new is not None else (old, "max_tokens")
        if value is not None and value < 1:
            raise RequestError(f"{name} is {value}: it must be at least 1", field=name)
        return value

    def _logprobs(self) -> int | None:
        top = self.top_logprobs
        if top is not None:
            within_logprob_limit("top_logprobs", top)
            if top and not self.logprobs:
                raise RequestError(f"top_logprobs is {top} but logprobs is not true: set logprobs to true", field="top_logprobs")
        return (top or 0) if self.logprobs else None


def chat_choice(answer: CompletionOutput, message: dict[str, Any], reason: str | None, logprobs: dict[str, Any] | None, *, with_ids: bool) -> dict[str, Any]:
    """One finished choice. with_ids: its token ids too."""
    choice = {"index": answer.index, "message": message, "logprobs": logprobs, "finish_reason": reason, "stop_reason": answer.stop_reason}
    return {**choice, "token_ids": answer.token_ids} if with_ids else choice
