"""Forgetting the prefix cache of a living engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmx.engine.engine import Engine

__all__ = ["reset_prefix_cache"]


def reset_prefix_cache(engine: Engine, *, reset_running_requests: bool = False) -> bool:
    """True once no prompt start is known any more. While requests hold blocks: False and nothing is changed.

    reset_running_requests: these are preempted first, and computed again from their first token.
    """
    scheduler, kv = engine.scheduler, engine.kv
    if kv.blocks_held and not reset_running_requests:
        return False
    for request in list(scheduler.running):
        scheduler.preempt(request)
    for pool in kv.pools:
        pool.reset_cache()
    return True
