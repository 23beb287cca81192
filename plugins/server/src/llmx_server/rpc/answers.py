"""From answers as HTTP has them to the messages of gRPC clients."""

from __future__ import annotations

from array import array
from base64 import b64decode
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import msgspec

from llmx_server.rpc.schema import message_type
from llmx_server.sse import DONE

__all__ = ["embed_response", "events_of", "generate_response", "models_response"]

_GenerateResponse, _EmbedResponse, _ListModelsResponse = message_type("GenerateResponse"), message_type("EmbedResponse"), message_type("ListModelsResponse")
_decode = msgspec.json.decode


def events_of(data: bytes) -> list[dict[str, Any]]:
    """The data of server-sent events; JSON has no line breaks of its own."""
    return [_decode(event.removeprefix(b"data: ")) for event in data.split(b"\n\n") if event and event + b"\n\n" != DONE]


def generate_response(events: list[dict[str, Any]]) -> Any | None:
    """What chunks of one stream say, as one GenerateResponse; None when nothing is new."""
    response = _GenerateResponse()
    choices: dict[int, Any] = {}
    for event in events:
        response.id, response.model, response.created = event["id"], event["model"], event["created"]
        response.system_fingerprint = event["system_fingerprint"]
        response.prompt_token_ids.extend(event.get("prompt_token_ids", ()))
        for given in event["choices"]:
            if not given["index"] or not response.prompt_token_ids:
                response.prompt_token_ids.extend(given.get("prompt_token_ids", ()))
            _add(choices.setdefault(given["index"], _GenerateResponse().choices.add(index=given["index"])), given)
        if event.get("usage"):
            _count(response.usage, event["usage"])
    response.choices.extend(choice for choice in choices.values() if any(field.name != "index" for field, _ in choice.ListFields()))
    return response if response.choices or response.prompt_token_ids or response.HasField("usage") else None


def embed_response(body: bytes) -> Any:
    """The EmbedResponse of a body of /v1/embeddings with vectors in base64."""
    given = _decode(body)
    response = _EmbedResponse(id=given["id"], model=given["model"])
    for entry in given["data"]:
        response.embeddings.add().values.extend(array("f", b64decode(entry["embedding"])))
    _count(response.usage, given["usage"])
    return response


def models_response(body: bytes) -> Any:
    """The ListModelsResponse of a body of /v1/models."""
    names = ("id", "created", "root", "max_model_len")
    return _ListModelsResponse(models=[{name: model[name] for name in names} for model in _decode(body)["data"]])


def _add(choice: Any, given: dict[str, Any]) -> None:
    delta = given.get("delta") or {"content": given.get("text")}
    choice.text += delta.get("content") or ""
    choice.reasoning += delta.get("reasoning") or ""
    for call in delta.get("tool_calls") or ():
        function = call["function"]
        choice.tool_calls.add(index=call["index"], id=call.get("id", ""), name=function.get("name", ""), arguments=function.get("arguments", ""))
    choice.token_ids.extend(given.get("token_ids") or ())
    for token, logprob, top in _logprobs(given.get("logprobs")):
        choice.logprobs.add(token=token, logprob=logprob, top_logprobs=[{"token": name, "logprob": value} for name, value in top])
    if given["finish_reason"] is not None:
        choice.finish_reason = given["finish_reason"]
        stopped = given["stop_reason"]
        if isinstance(stopped, int):
            choice.stop_token_id = stopped
        elif stopped is not None:
            choice.stop_text = stopped


def _logprobs(given: dict[str, Any] | None) -> Iterator[tuple[str, float | None, Iterable[tuple[str, float]]]]:
    """(token, its logprob, those beside it), from the shape of chat or that of completions."""
    if given is None:
        return
    if "content" in given:
        for one in given["content"]:
            yield one["token"], one["logprob"], [(other["token"], other["logprob"]) for other in one["top_logprobs"]]
        return
    for token, logprob, top in zip(given["tokens"], given["token_logprobs"], given["top_logprobs"] or repeat(None), strict=False):
        yield token, logprob, (top or {}).items()


def _count(usage: Any, given: dict[str, Any]) -> None:
    usage.prompt_tokens, usage.completion_tokens, usage.total_tokens = given["prompt_tokens"], given["completion_tokens"], given["total_tokens"]
    usage.cached_tokens = given["prompt_tokens_details"]["cached_tokens"]
    for name, value in (given.get("completion_tokens_details") or {}).items():
        setattr(usage, name, value)
