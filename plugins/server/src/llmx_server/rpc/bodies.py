"""From the messages of gRPC clients to the bodies of HTTP requests that say the same. What the fields mean is checked where bodies are read."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

from llmx.errors import RequestError
from llmx_server.protocol.api_fields import CHAT, COMPLETIONS

__all__ = ["embed_body", "generate_body", "generate_path"]

_JSON = frozenset({"response_format", "structured_outputs", "tools", "chat_template_kwargs", "documents", "logits_processors"})
_PROMPTS = frozenset({"text", "token_ids", "messages"})


def generate_path(request: Any) -> str:
    """The route that answers a GenerateRequest."""
    return CHAT if request.WhichOneof("prompt") == "messages" else COMPLETIONS


def generate_body(request: Any) -> dict[str, Any]:
    """The body of a GenerateRequest. Raises RequestError for one without a prompt, and for text that is no JSON."""
    body = {field.name: _value(field, value) for field, value in request.ListFields() if field.name not in _PROMPTS}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    match request.WhichOneof("prompt"):
        case "text":
            return {**body, "prompt": request.text}
        case "token_ids":
            return {**body, "prompt": list(request.token_ids.ids)}
        case "messages":
            if "logprobs" in body:
                body |= {"logprobs": True, "top_logprobs": body["logprobs"]}
            return {**body, "messages": [_message(message) for message in request.messages.messages]}
    raise RequestError("the request has no prompt: set text, token_ids or messages", field="prompt")


def embed_body(request: Any) -> dict[str, Any]:
    """The body of an EmbedRequest. Raises RequestError where it has texts and ids."""
    body = {field.name: _value(field, value) for field, value in request.ListFields() if field.name not in ("texts", "token_ids")}
    if request.texts and request.token_ids:
        raise RequestError("texts and token_ids are both set: send one of them", field="input")
    return {**body, "input": list(request.texts) or [list(one.ids) for one in request.token_ids], "encoding_format": "base64"}


def _value(field: Any, value: Any) -> Any:
    if field.name in _JSON or (field.name == "tool_choice" and value.lstrip().startswith("{")):
        try:
            return from_json(value)
        except ValueError as error:
            raise RequestError(f"{field.name} is not valid JSON: {str(error)[:200]}", field=field.name) from error
    if hasattr(value, "items"):
        return {str(key): item for key, item in value.items()}
    return list(value) if hasattr(value, "extend") else value


def _message(message: Any) -> dict[str, Any]:
    given = {field.name: value for field, value in message.ListFields()}
    if calls := given.pop("tool_calls", None):
        given["tool_calls"] = [{"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls]
    return given
