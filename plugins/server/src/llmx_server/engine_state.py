"""What GET /engine/state tells: one engine at one moment, for people who watch it. The page at / draws it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from llmx.engine.outputs import EngineStats
from llmx_server.version import version

if TYPE_CHECKING:
    from llmx_server.serving import Serving

__all__ = ["engine_state"]

_STATES = ("free", "cached", "held")  # by number, as the engine counts them
# EngineInfo fields that say what serves
_INFO = (
    *("architecture", "platform", "device", "threads", "thread_budget", "dtype", "kv_dtype", "kv_bytes"),
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens"),
)


def engine_state(serving: Serving, names: list[str], stats: EngineStats | None) -> dict[str, Any]:
    """The body, about the engine of one model. names: of all models of the server.

    Without stats (loading, or the engine is dead) `engine` is null. Times in seconds, sizes in tokens and bytes.
    """
    loading = serving.phase == "loading"
    info = {} if loading else {name: getattr(serving.engine.info, name) for name in _INFO if hasattr(serving.engine.info, name)}
    return {
        "version": version(),
        "phase": serving.phase if loading or stats is not None else "dead",
        "model": "" if loading else serving.model_names[0],
        "models": names,
        "time": time.time(),
        "started": serving.host.started,
        "info": info,
        "engine": None if stats is None else _engine(stats),
        "latency": {name: recent.percentiles() for name, recent in serving.metrics.recent.items()},
    }


def _engine(stats: EngineStats) -> dict[str, Any]:
    total, held, cached = stats.kv_blocks_total, stats.kv_blocks_used, stats.kv_blocks_cached
    return {
        "requests": {
            "running": stats.requests_running,
            "waiting": stats.requests_waiting,
            "oldest_wait": stats.queue_delay_s,
            "ended": stats.requests_finished,
        },
        "kv": {"blocks": total, "held": held, "cached": cached, "free": total - held - cached, "map": [[_STATES[kind], run] for kind, run in stats.kv_map]},
        "prefix_cache": {"queries": stats.prefix_queries, "hits": stats.prefix_hits},
        "drafts": {"made": stats.draft_tokens, "accepted": stats.accepted_tokens},
        "tokens": {"prompt": stats.prompt_tokens, "generated": stats.generation_tokens},
        "steps": {
            "count": stats.steps,
            "rows": stats.step_tokens,
            "budget_used": stats.step_budget_used,
            "device_busy": stats.device_busy,
            "preemptions": stats.preemptions,
        },
    }
