"""The OpenAPI document: the routes, with what their handlers read and answer."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter
from starlette.routing import BaseRoute

from llmx_server.openapi import admin, answers, kept, other
from llmx_server.openapi.fields import OTHER_NAMES, REQUIRED, SAME_AS, field_schema
from llmx_server.routing import HttpRoute
from llmx_server.served_models import ServedModels
from llmx_server.serving import Serving
from llmx_server.version import version

__all__ = ["describe"]

# What each operation answers with status 200. A text stands for a media type.
_ANSWERS: dict[str, Any] = {
    "POST /v1/completions": answers.Completion,
    "POST /v1/chat/completions": answers.ChatCompletion,
    "POST /v1/chat/completions/batch": answers.ChatCompletion,
    "POST /v1/messages": answers.Message,
    "POST /v1/messages/count_tokens": answers.AnthropicTokens,
    "POST /v1/responses": kept.Response,
    "POST /v1/responses/input_tokens": kept.InputTokens,
    "GET /v1/responses/{response_id}": kept.Response,
    "DELETE /v1/responses/{response_id}": kept.Deleted,
    "POST /v1/responses/{response_id}/cancel": kept.Response,
    "GET /v1/responses/{response_id}/input_items": kept.Page[kept.Item],
    "POST /v1/files": kept.File,
    "GET /v1/files": kept.Page[kept.File],
    "GET /v1/files/{file_id}": kept.File,
    "DELETE /v1/files/{file_id}": kept.Deleted,
    "GET /v1/files/{file_id}/content": "application/octet-stream",
    "POST /v1/batches": kept.Batch,
    "GET /v1/batches": kept.Page[kept.Batch],
    "GET /v1/batches/{batch_id}": kept.Batch,
    "POST /v1/batches/{batch_id}/cancel": kept.Batch,
    "POST /invocations": Any,  # the answer of another route
    "GET /v1/models": other.Models,
    "GET /v1/models/{name}": other.Model,
    "POST /tokenize": other.Tokens,
    "POST /detokenize": other.Text,
    "GET /ping": other.Status,
    "POST /ping": other.Status,
    "GET /health": other.Status,
    "GET /ready": other.Status,
    "GET /version": other.Version,
    "GET /metrics": "text/plain",
    "GET /engine/state": other.State,
    "POST /v1/embeddings": other.Vectors,
    "POST /pooling": other.Pooled,
    "POST /classify": other.Classes,
    "POST /score": other.Scores,
    "POST /v1/score": other.Scores,
    "POST /rerank": other.Ranking,
    "POST /v1/rerank": other.Ranking,
    "POST /v2/rerank": other.Ranking,
    "POST /v2/embed": other.CohereVectors,
    "GET /v1/admin/models": admin.ModelStates,
    "POST /v1/admin/models/load": admin.ModelState,
    "POST /v1/admin/models/unload": admin.Unloaded,
    "POST /v1/load_lora_adapter": admin.AdapterLoaded,
    "POST /v1/unload_lora_adapter": admin.Unloaded,
    "POST /sleep": admin.Sleeping,
    "POST /wake_up": admin.Awake,
    "GET /is_sleeping": admin.IsSleeping,
    "POST /pause": admin.Paused,
    "POST /resume": admin.Resumed,
    "GET /is_paused": admin.IsPaused,
    "POST /reset_prefix_cache": admin.Forgotten,
    "POST /start_profile": admin.Profiling,
    "POST /stop_profile": admin.Profiled,
}
_STREAMS = ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/responses/{response_id}", "/invocations")
_HEALTH = ("/ping", "/health", "/ready")
_POOLING = ("/v1/embeddings", "/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank", "/v2/embed")
_LIMIT = {"type": "integer", "minimum": 1, "maximum": 100}
_PAGED = {"limit": _LIMIT, "order": {"enum": ["asc", "desc"]}, "after": {"type": "string", "description": "id of the last item of the page before"}}
_MODEL: dict[str, Any] = {"model": {}}
_QUERIES: dict[str, dict[str, Any]] = {
    "GET /v1/responses/{response_id}": {"stream": {"type": "boolean"}, "starting_after": {"type": "integer", "minimum": 0, "maximum": 10**9 - 1}},
    "GET /v1/responses/{response_id}/input_items": _PAGED,
    "GET /v1/files": {**_PAGED, "limit": {**_LIMIT, "maximum": 10_000}, "purpose": {"type": "string"}},
    "GET /v1/batches": _PAGED,
    **{f"GET {path}": _MODEL for path in (*_HEALTH, "/engine/state")},
    "POST /ping": _MODEL,
    "POST /sleep": {**_MODEL, "level": {"enum": ["1", "2"]}, "mode": {"enum": ["abort", "wait"]}},
    "POST /pause": {**_MODEL, "mode": {"enum": ["keep", "wait", "abort"]}, "clear_cache": {"type": "boolean"}},
    "POST /reset_prefix_cache": {**_MODEL, "reset_running_requests": {"type": "boolean"}},
    **dict.fromkeys(("POST /wake_up", "GET /is_sleeping", "POST /resume", "GET /is_paused", "POST /start_profile", "POST /stop_profile"), _MODEL),
}
_FILE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"enum": ["batch"]},
        "expires_after[anchor]": {"enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 30 * 24 * 3600},
    },
    "dependentRequired": {"expires_after[anchor]": ["expires_after[seconds]"], "expires_after[seconds]": ["expires_after[anchor]"]},
}
_EVENT = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}, "event": {"type": "string"}}}
_INVOKED = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/score", "/rerank")
_INVOCATION = {"type": "object", "anyOf": [{"$ref": f"#/components/schemas/Body{path.replace('/', '_')}"} for path in _INVOKED]}
_EITHER = (("prompt", "messages"), ("messages", "prompt"))


def describe(routes: Sequence[BaseRoute], models: ServedModels, names: list[str]) -> dict[str, Any]:
    """The document, with names and sizes of the models; `names` are all of them, none while they load."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if isinstance(route, HttpRoute) and route.include_in_schema:
            for method in sorted(route.methods or ()):
                operation = _operation(route, method)
                _describe(operation, f"{method} {route.path_format}", route.path_format, schemas, models)
                paths.setdefault(route.path_format, {})[method.lower()] = operation
    info = {"title": "llmx", "version": version(), "x-models": names}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _operation(route: HttpRoute, method: str) -> dict[str, Any]:
    name = route.handler.__name__
    place = re.sub(r"\W", "_", route.path_format)
    operation: dict[str, Any] = {"summary": route.summary or name.replace("_", " ").title(), "operationId": f"{name}{place}_{method.lower()}"}
    if route.handler.__doc__:
        operation["description"] = inspect.cleandoc(route.handler.__doc__)
    if route.param_convertors:
        operation["parameters"] = [{"name": key, "in": "path", "required": True, "schema": {"type": "string"}} for key in route.param_convertors]
    if route.body is not None:  # the models are flat, so their schema stands alone
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": route.body.model_json_schema()}}}
    return operation


def _describe(operation: dict[str, Any], name: str, path: str, schemas: dict[str, Any], models: ServedModels) -> None:
    operation["responses"] = _responses(name, path, schemas)
    if name in _QUERIES:
        queries = [{"name": key, "in": "query", "schema": schema} for key, schema in _QUERIES[name].items()]
        operation["parameters"] = [*operation.get("parameters", []), *queries]
    for parameter in operation.get("parameters", []):
        if (name, parameter["name"]) == ("GET /v1/models/{name}", "name") or parameter["name"] == "model":
            parameter["schema"] = _named(list(models)) or {"type": "string"}
    if name == "POST /v1/files":
        operation["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": _FILE}}}
    elif name == "POST /invocations":
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _INVOCATION}}}
    elif "requestBody" in operation:
        fitting = _fitting(path, models)
        by_default = not fitting or models.default in fitting
        content = operation["requestBody"]["content"]["application/json"]
        _refine(content["schema"], path, fitting, by_default=by_default)
        name = f"Body{path.replace('/', '_')}"
        schemas[name] = content["schema"]
        content["schema"] = {"$ref": f"#/components/schemas/{name}"}


def _responses(name: str, path: str, schemas: dict[str, Any]) -> dict[str, Any]:
    wrong = answers.CohereError if path == "/v2/embed" else answers.AnthropicError if path.startswith("/v1/messages") else answers.Error
    error = {"application/json": {"schema": _schema(wrong, schemas)}}
    fine = _ANSWERS.get(name, Any)
    if isinstance(fine, str):
        content: dict[str, Any] = {fine: {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": _schema(fine, schemas)}}
    if path in _STREAMS:
        content["text/event-stream"] = {"itemSchema": _EVENT}
    busy = {"application/json": {"schema": _schema(other.Status, schemas)}} if path in _HEALTH else error
    return {
        "200": {"description": "The answer.", "content": content},
        "4XX": {"description": "The request is at fault; the message says where and why.", "content": error},
        "500": {"description": "The server is at fault.", "content": error},
        "503": {"description": "Not now: loading, shutting down, or full.", "content": busy},
    }


def _schema(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """A reference to the type's schema, which is put into `schemas`, with all that it names."""
    if kind is Any:
        return {}
    schema = TypeAdapter(kind).json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(schema.pop("$defs", {}))
    name = "_".join(one.__name__ for one in (get_origin(kind) or kind, *get_args(kind)))
    schemas[name] = schema
    return {"$ref": f"#/components/schemas/{name}"}


def _fitting(path: str, models: ServedModels) -> list[Serving]:
    """The models that a route can use; all, where none fits, and none while they load."""
    if models.host.phase == "loading":
        return []
    if path in ("/tokenize", "/detokenize"):
        return list(models)
    return [one for one in models if (one.engine.info.pooling is not None) == (path in _POOLING)] or list(models)


def _named(models: list[Serving]) -> dict[str, Any] | None:
    """One of their names; None where there are none."""
    return {"enum": [name for one in models for name in one.model_names]} if models and models[0].phase != "loading" else None


def _refine(schema: dict[str, Any], path: str, models: list[Serving], *, by_default: bool) -> None:
    """Put ranges and words into a body's schema. An optional field may be null, which is the same as leaving it out.

    by_default: the model that a request without a name gets fits the route.
    """
    for title in ("title", "description"):
        schema.pop(title, None)
    same = SAME_AS.get(path, path)
    for name in OTHER_NAMES.get(same, ()):
        del schema["properties"][name]
        schema["description"] = f"Other names of fields: {', '.join(OTHER_NAMES[same])}; docs/api.md."
    required = [*schema.get("required", ()), *REQUIRED.get(path, REQUIRED.get(same, ()) if path != "/v1/messages/count_tokens" else ())]
    if models and not by_default:
        required.append("model")
    info = models[0].engine.info if models else None
    sizes = {"vocab_size": info.vocab_size if info else 2**31, "context": info.max_model_len if info else 2**31}
    priorities = not models or models[0].config.scheduler.policy == "priority"
    for name, old in schema["properties"].items():
        new = _named(models) if name == "model" and path != "/v1/admin/models/load" else field_schema(path, name, **sizes, priorities=priorities)
        if new is None:
            new = {key: value for key, value in old.items() if key not in ("title", "default")}
        schema["properties"][name] = new if name in required else {"anyOf": [new, {"type": "null"}]}
    schema["required"] = list(dict.fromkeys(required))
    if path == "/tokenize":  # a text or a conversation
        schema["properties"]["messages"] = {"anyOf": [schema["properties"]["messages"], {"type": "array", "maxItems": 0}]}
        none = {"prompt": {"type": "null"}, "messages": {"type": "array", "maxItems": 0}}
        schema["anyOf"] = [{"required": [one], "properties": {one: {"not": none[one]}, other: none[other]}} for one, other in _EITHER]
