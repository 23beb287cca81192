"""Body fields, closer than their types say: ranges, words and the shapes of lists. The checks themselves are where requests are read."""

from __future__ import annotations

from typing import Any

from llmx.sampling_params import MAX_ASKED_IDS, MAX_BAD_WORDS, MAX_N
from llmx_server.batch_lines import ENDPOINTS
from llmx_server.protocol.beams import MAX_LENGTH_PENALTY
from llmx_server.protocol.sampling import MAX_LOGPROBS, MAX_SALT, MAX_STOPS

__all__ = ["OTHER_NAMES", "REQUIRED", "SAME_AS", "field_schema"]

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string", "minLength": 1}
_FLAG: Schema = {"type": "boolean"}
_OBJECT: Schema = {"type": "object"}


def _number(low: float, high: float, **more: Any) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high, **more}


def _integer(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def _words(*words: str) -> Schema:
    return {"enum": list(words)}


def _list(items: Schema, most: int, least: int = 1) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _object(required: list[str], closed: bool = False, **properties: Schema) -> Schema:
    return {"type": "object", "required": required, "properties": properties, **({"additionalProperties": False} if closed else {})}


def _parts(*kinds: str) -> Schema:
    return {"anyOf": [{"type": "string"}, _list(_object(["type", "text"], type=_words(*kinds), text={"type": "string"}), 64)]}


_CONTENT = _parts("text", "input_text", "output_text")
_ARGUMENTS: Schema = {"anyOf": [_OBJECT, {"type": "string", "contentMediaType": "application/json", "pattern": r"^\s*\{.*\}\s*$"}]}
_CALL = _object(["function"], type=_words("function"), id={"type": "string"}, function=_object(["name", "arguments"], name=_TEXT, arguments=_ARGUMENTS))
_SAID: dict[str, Any] = {"name": {"type": "string"}, "tool_calls": {"type": "array", "maxItems": 0}}
_MESSAGES = _list(
    {
        "anyOf": [
            _object(["role", "content"], role=_words("system", "developer", "user"), content=_CONTENT, **_SAID),
            _object(["role", "content"], role=_words("assistant"), content=_CONTENT, tool_calls=_list(_CALL, 128)),
            _object(["role", "content"], role=_words("tool"), content=_CONTENT, tool_call_id={"type": "string"}, **_SAID),
        ]
    },
    4096,
)
_JSON_SCHEMA: Schema = {"type": "object", "description": "a JSON schema; docs/structured-output.md has the keywords that are enforced"}
_NAME: Schema = {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"}
_FUNCTION: dict[str, Any] = {"name": _NAME, "description": {"type": "string"}, "parameters": _JSON_SCHEMA, "strict": _FLAG}
_CHOICE = _words("none", "auto", "required")
_FORMS = (
    _object(["type"], True, type=_words("text")),
    _object(["type"], True, type=_words("json_object")),
)
_FORMAT: Schema = {"anyOf": [*_FORMS, _object(["type", "json_schema"], True, type=_words("json_schema"), json_schema=_object(["schema"], schema=_JSON_SCHEMA))]}
_FLAT_FORM = _object(["type", "schema"], type=_words("json_schema"), schema=_JSON_SCHEMA)
_STRUCTURED: Schema = {
    "anyOf": [
        _object(["json"], json={"anyOf": [_JSON_SCHEMA, {"type": "string"}]}),
        _object(["regex"], regex={"type": "string"}),
        _object(["choice"], choice=_list(_TEXT, 1000)),
        _object(["grammar"], grammar={"type": "string"}),
        _object(["json_object"], json_object=_FLAG),
        _object(["structural_tag"], structural_tag={}),
    ]
}
_STREAM_OPTIONS = _object([], include_usage=_FLAG, continuous_usage_stats=_FLAG, include_obfuscation=_FLAG)

# The same on every route that has them.
_EVERYWHERE: dict[str, Schema] = {
    "temperature": _number(0, 2),
    "top_p": _number(0, 1, exclusiveMinimum=0),
    "top_k": _integer(-1, 2**31 - 1),
    "min_p": _number(0, 1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repetition_penalty": _number(0.01, 100),
    "length_penalty": _number(-MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY),
    "seed": _integer(-(2**63), 2**63 - 1),
    "n": _integer(1, MAX_N),
    "best_of": _integer(1, MAX_N),
    "stop": {"anyOf": [_TEXT, _list(_TEXT, MAX_STOPS, 0)]},
    "bad_words": _list({"type": "string", "pattern": r"\S"}, MAX_BAD_WORDS, 0),
    "truncation_side": _words("left", "right"),
    "logits_processors": _list({"anyOf": [_TEXT, _object(["name"], True, name=_TEXT, args={"type": "object"})]}, 8, 0),
    "thinking_token_budget": _integer(-1, 2**31 - 1),
    "truncate_prompt_tokens": {"anyOf": [{"const": -1}, _integer(1, 2**31 - 1)]},
    "prompt_logprobs": _integer(0, MAX_LOGPROBS),
    "top_logprobs": _integer(0, MAX_LOGPROBS),
    "cache_salt": {"type": "string", "maxLength": MAX_SALT},
    "request_id": {"type": "string", "pattern": "^[!-~]{1,128}$"},
    "service_tier": _words("auto", "default", "flex", "scale", "priority"),
    "stream_options": _STREAM_OPTIONS,
    "stream_interval": _integer(1, 2**31 - 1),
    "messages": _MESSAGES,
    "tools": _list(_object(["type", "function"], type=_words("function"), function=_object(["name"], True, **_FUNCTION)), 128, 0),
    "tool_choice": {"anyOf": [_CHOICE, _object(["type", "function"], type=_words("function"), function=_object(["name"], name=_NAME))]},
    "reasoning_effort": _words("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    "response_format": _FORMAT,
    "structured_outputs": _STRUCTURED,
    "metadata": {"type": "object", "maxProperties": 16, "propertyNames": {"maxLength": 64}, "additionalProperties": {"type": "string", "maxLength": 512}},
    "stop_sequences": _list(_TEXT, MAX_STOPS, 0),
    "encoding_format": _words("float", "base64"),
    "task": _words("embed", "classify", "token_embed", "token_classify"),
    "dimensions": _integer(1, 2**31 - 1),
    "top_n": _integer(0, 2**31 - 1),
    "max_tokens_per_query": _integer(0, 2**31 - 1),
    "max_tokens_per_doc": _integer(0, 2**31 - 1),
    "truncate": _words("NONE", "START", "END"),
    "embedding_types": _list(_words("float", "base64", "binary", "ubinary"), 4),
    "output_dimension": _integer(1, 2**31 - 1),
    "completion_window": _words("24h"),
    "truncation": _words("auto", "disabled"),
    "previous_response_id": {"type": "string", "pattern": "^resp_"},
    "text": _object([], True, verbosity=_words("medium"), format={"anyOf": [*_FORMS, _FLAT_FORM]}),
    "reasoning": _object([], True, effort={"type": "string"}, summary={"type": ["string", "null"]}, generate_summary={"type": ["string", "null"]}),
}
_TEXTS = {"anyOf": [_TEXT, _list({"anyOf": [_TEXT, _object(["text"], text=_TEXT)]}, 2048)]}
_ITEMS = {"anyOf": [{"type": "string"}, _list(_object(["role", "content"], role=_words("user", "assistant", "system", "developer"), content=_CONTENT), 4096)]}
_ANTHROPIC = _list(_object(["role", "content"], role=_words("user", "assistant"), content=_parts("text")), 4096)
_FLAT_TOOL = _object(["type", "name"], True, type=_words("function"), **_FUNCTION)
# What a route has otherwise.
_ON_ROUTE: dict[tuple[str, str], Schema] = {
    ("/v1/completions", "logprobs"): _integer(0, MAX_LOGPROBS),
    ("/v1/chat/completions/batch", "messages"): _list(_MESSAGES, 1024),
    ("/v1/chat/completions/batch", "n"): {"const": 1},
    ("/v1/chat/completions/batch", "stream"): {"const": False},
    ("/v1/chat/completions/batch", "use_beam_search"): {"const": False},
    ("/v1/chat/completions/batch", "tools"): {"type": "array", "maxItems": 0},
    ("/v1/messages", "temperature"): _number(0, 1),
    ("/v1/messages", "messages"): _ANTHROPIC,
    ("/v1/messages", "metadata"): _OBJECT,
    ("/v1/messages", "service_tier"): {"type": "string"},
    ("/v1/messages", "system"): _parts("text"),
    ("/v1/messages", "tools"): _list(_object(["name", "input_schema"], name=_NAME, input_schema=_JSON_SCHEMA), 128, 0),
    ("/v1/messages", "tool_choice"): _object(["type"], type=_words("auto", "any", "none", "tool")),
    ("/v1/messages", "thinking"): _object(["type"], type=_words("enabled", "disabled", "adaptive"), budget_tokens={"type": "integer"}),
    ("/v1/messages", "output_config"): _object([], True, effort=_words("low", "medium", "high")),
    ("/v1/responses", "input"): _ITEMS,
    ("/v1/responses", "tools"): _list(_FLAT_TOOL, 128, 0),
    ("/v1/responses", "include"): _list(_words("message.output_text.logprobs", "reasoning.encrypted_content"), 16, 0),
    ("/v1/batches", "endpoint"): _words(*ENDPOINTS),
    ("/rerank", "query"): {"anyOf": [_TEXT, _object(["text"], text=_TEXT)]},
    ("/rerank", "documents"): _TEXTS["anyOf"][1],
    ("/v2/embed", "texts"): _list(_TEXT, 2048),
    ("/score", "queries"): _TEXTS,
    ("/score", "documents"): _TEXTS,
}
# Fields that a route wants though their type has a default, and other names of fields, which one line of text is enough for.
REQUIRED = {"/v1/messages": ["max_tokens"], "/score": ["queries", "documents"], "/rerank": ["documents"], "/v2/embed": ["texts"]}
OTHER_NAMES = {"/score": ["items", "data_1", "data_2", "text_1", "text_2"], "/v2/embed": ["inputs"]}
SAME_AS = {
    "/v1/messages/count_tokens": "/v1/messages",
    "/v1/responses/input_tokens": "/v1/responses",
    "/v1/score": "/score",
    "/v1/rerank": "/rerank",
    "/v2/rerank": "/rerank",
}
_COUNTS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_IDS = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "tokens")


def field_schema(path: str, name: str, *, vocab_size: int, context: int, priorities: bool) -> Schema | None:
    """What a field of a route takes; None where its type says all. The sizes are those of the first model that fits the route."""
    if name == "priority":
        return {"type": "integer"} if priorities else {"const": 0}
    path = SAME_AS.get(path, path)
    if (path, name) in _ON_ROUTE:
        return _ON_ROUTE[path, name]
    token = _integer(0, vocab_size - 1)
    if name in _IDS:
        return _list(token, MAX_ASKED_IDS if name == "logprob_token_ids" else context, 0 if name in ("stop_token_ids", "tokens") else 1)
    if name in _COUNTS:
        return _integer(1, context)
    if name == "min_tokens":
        return _integer(0, context)
    if name == "logit_bias":
        return {"type": "object", "propertyNames": {"pattern": "^[0-9]{1,18}$"}, "additionalProperties": _number(-100, 100)}
    if name in ("prompt", "input") and path != "/tokenize":
        ids = _list(token, context)
        return {"anyOf": [_TEXT, _list(_TEXT, 1024), ids, _list(ids, 1024)]}
    return _EVERYWHERE.get(name)

