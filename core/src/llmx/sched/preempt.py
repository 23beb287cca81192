"""Preemption by recompute: the victim loses its blocks and its slot, keeps its tokens, and joins again later."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from llmx.request import Request
from llmx.sched.policy import OrderKey

__all__ = ["choose_victim"]


def choose_victim(running: Iterable[Request], protected: Collection[Request], key: OrderKey) -> Request | None:
    """The running request that the policy serves last, of those without rows in the step being built; None: there is none."""
    return max((request for request in running if request not in protected), key=key, default=None)
