"""What `llmx serve` prints when it is ready."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llmx.options import OPTIONS
from llmx.record import record

if TYPE_CHECKING:
    from llmx.config import Change
    from llmx.engine.async_engine import AsyncEngine
    from llmx.engine.messages import EngineInfo

__all__ = ["Started", "summary"]

_MIB = 1 << 20


@record
class Started:
    """A model that is served. changes: what its configuration has that is no default."""

    engine: AsyncEngine
    changes: list[Change]


def summary(models: Sequence[Started], url: str, *, guarded: bool, grpc: str = "") -> list[tuple[str, str]]:
    """What a user wants to know when the server is ready, as (name, text); ends with a command to try. grpc: the address of that port."""
    first = models[0].engine
    info, chats = first.info, first.chat_template.available
    path: str
    body: dict[str, Any]
    path, body = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}) if chats else ("/v1/completions", {"prompt": "Hello"})
    if info.pooling is not None:
        path, body = ("/classify" if info.pooling.classifies else "/v1/embeddings", {"input": "Hello"})
    key = " -H 'Authorization: Bearer YOUR_KEY'" if guarded else ""
    where = f"--unix-socket {url.removeprefix('unix:')} http://localhost" if url.startswith("unix:") else url
    shown = "chat, and a live view of the engine" if chats and info.pooling is None else "a live view of the engine"
    load_s = max(model.engine.info.load_s for model in models)
    if len(models) > 1:
        body = {"model": (info.served_names or [info.name])[0], **body}
    lines = [line for model in models for line in _about(model, alone=len(models) == 1)]
    said = [line for place, line in enumerate(lines) if line[0] in ("model", "kv cache") or line not in lines[:place]]  # what holds for all stands once
    infos = [model.engine.info for model in models]
    return [
        *said,
        *([("memory", _together(infos)), ("threads", _threads(infos))] if len(models) > 1 else []),
        ("ready", f"{url} (loaded in {load_s:.1f} s)"),
        *([("grpc", f"{grpc}, services llmx.v1.Llmx, health and reflection")] if grpc else []),
        *([] if url.startswith("unix:") else [("page", f"{url}/ for a browser: {shown}")]),
        ("try", f"curl {where}{path}{key} -H 'Content-Type: application/json' -d '{json.dumps(body)}'"),
    ]


def _about(model: Started, *, alone: bool) -> list[tuple[str, str]]:
    info = model.engine.info
    flags = {option.path: option.flag for option in OPTIONS}
    named = ("model.source", "model.served_names")
    changes = [change for change in model.changes if alone or change.path not in named]  # of several, the model's line says it
    size = f"up to {info.kv_bytes / _MIB:.0f} MiB {info.kv_dtype}, taken as it is used, {info.kv_tokens} tokens"
    return [
        ("model", f"{', '.join(info.served_names) or info.name} ({info.architecture}, {info.dtype}), context {info.max_model_len} tokens"),
        ("platform", f"{info.platform} on {info.device}, {info.threads} thread{'s' if info.threads != 1 else ''}: {info.platform_why}"),
        *(("", other) for other in info.other_platforms),
        ("kv cache", f"{size}: {info.max_full_requests} requests of full length fit, {info.max_num_seqs} run at once at most"),
        *([("drafting", info.drafting)] if info.drafting else []),
        *(("set", f"{flags.get(change.path, change.path)} {change.value} ({change.source})") for change in changes),
        *(("set", change) for change in info.changes),
        *(("warning", warning) for warning in info.warnings),
    ]


def _together(infos: Sequence[EngineInfo]) -> str:
    shares = " + ".join(f"{info.kv_bytes / _MIB:.0f}" for info in infos)
    return f"KV caches up to {sum(info.kv_bytes for info in infos) / _MIB:.0f} MiB in all ({shares}); one process for each model"


def _threads(infos: Sequence[EngineInfo]) -> str:
    """How models share the processors. The budget is one number for all engines that have one."""
    shares = " + ".join(str(info.threads) for info in infos)
    budget = max(info.thread_budget for info in infos)
    apart = [info for info in infos if not info.thread_budget]
    if not budget:
        return f"{shares}; models that work at once share the processors as any processes do"
    others = f"; {', '.join((info.served_names or [info.name])[0] for info in apart)} beside it" if apart else ""
    return f"at most {budget} compute, all models together ({shares}): they take turns{others}"
