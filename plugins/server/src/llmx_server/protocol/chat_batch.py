"""POST /v1/chat/completions/batch: one chat request about several conversations."""

from __future__ import annotations

from typing import Any

from llmx.errors import RequestError
from llmx_server.body import shorten
from llmx_server.protocol.chat import ChatRequest

__all__ = ["MAX_CONVERSATIONS", "ChatBatchRequest"]

MAX_CONVERSATIONS = 1024  # as many as /v1/completions takes prompts


class ChatBatchRequest(ChatRequest):
    """A body of /v1/chat/completions/batch. messages: a list of conversations, each as chat has it."""

    def conversations(self) -> list[ChatRequest]:
        """The chat request that each conversation makes. Raises RequestError for a field that does not go with several."""
        for name, asked in (("stream", self.stream), ("tools", bool(self.tools)), ("use_beam_search", self.use_beam_search), ("n", self.n not in (None, 1))):
            if asked:
                remedy = "send the conversations one by one to /v1/chat/completions"
                raise RequestError(f"{name} is {shorten(getattr(self, name))}, which does not go with several conversations: {remedy}", field=name)
        if not 1 <= len(self.messages) <= MAX_CONVERSATIONS:
            raise RequestError(f"messages has {len(self.messages)} conversations: there must be 1 to {MAX_CONVERSATIONS}", field="messages")
        for index, one in enumerate(self.messages):
            if not isinstance(one, list):
                raise RequestError(f"messages[{index}] is {shorten(one)}: it must be a conversation, a list of messages", field="messages")
        return [self._about(one) for one in self.messages]

    def _about(self, messages: list[Any]) -> ChatRequest:
        return ChatRequest.model_construct(self.model_fields_set, **{**self.__dict__, **(self.model_extra or {}), "messages": messages})
