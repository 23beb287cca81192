"""Forgetting the prefix cache of a living engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmx.engine.engine import Engine

__all__ = ["forget_prefixes", "reset_prefix_cache"]


def reset_prefix_cache(engine: Engine, *, reset_running_requests: bool = False) -> bool:
    """True once no prompt start is known any more. While requests hold blocks: False and nothing is changed.

    reset_running_requests: these are preempted first, and computed again from their first token.
    """
    scheduler, kv = engine.scheduler, engine.kv
    if kv.blocks_held and not reset_running_requests:
        return False
    for request in list(scheduler.running):
        scheduler.preempt(request)
    forget_prefixes(engine)
    return True


def forget_prefixes(engine: Engine) -> dict[str, int]:
    """No prompt start is known any more. Cached blocks become free; requests keep theirs, which no other request finds from now on.

    {"blocks_dropped": cached blocks that are free now, "blocks_in_use": blocks that requests hold}.
    """
    dropped = engine.kv.blocks_cached
    for pool in engine.kv.pools:
        pool.reset_cache()
    return {"blocks_dropped": dropped, "blocks_in_use": engine.kv.blocks_held}
