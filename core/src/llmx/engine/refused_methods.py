"""Methods that other engines' LLM has and this one has not: each is there, and says by name what to use instead."""

from __future__ import annotations

from typing import Any, NoReturn

from llmx.errors import RequestError

__all__ = ["REFUSED_METHODS", "refuse_methods"]

_ASLEEP = "weights and KV stay where they are: close() frees them, a new LLM takes seconds"
_WEIGHTS = "weights are read once, at the start: make a new LLM from the new checkpoint"
_PROFILER = "there is no profiler inside: attach one to the process (perf, py-spy), or see get_metrics() for where the time goes"

REFUSED_METHODS: dict[str, str] = {
    "reward": "a reward model is a classifier here: use classify() or score()",
    "apply_model": "a model is a Program here, no module that a function could be applied to: `llmx explain MODEL` shows it",
    "start_profile": _PROFILER,
    "stop_profile": _PROFILER,
    "reset_mm_cache": "models take text only, so nothing of other inputs is cached: leave the call out",
    "release_kv_cache_memory": _ASLEEP,
    **dict.fromkeys(
        (
            "init_weight_transfer_engine",
            "start_weight_update",
            "start_draft_weight_update",
            "update_weights",
            "finish_weight_update",
            "update_weight_version",
            "get_weight_version",
            "shutdown_weight_transfer_engine",
        ),
        _WEIGHTS,
    ),
}


def refuse_methods(cls: type) -> type:
    """Class decorator: every name of REFUSED_METHODS becomes a method that raises RequestError."""
    for name, why in REFUSED_METHODS.items():
        setattr(cls, name, _refusing(name, why))
    return cls


def _refusing(name: str, why: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise RequestError(f"{name}() is not supported: {why}", field=name)

    method.__name__ = name
    method.__doc__ = f"Not supported: {why}."
    return method
