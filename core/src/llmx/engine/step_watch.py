"""StepWatch: tells plugins of every step that has ended (the hook llmx_step_observers). An engine that nobody watches does nothing for it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from time import time_ns
from typing import TYPE_CHECKING

import pluggy

from llmx.batch import StepOutput
from llmx.config import EngineConfig
from llmx.hooks.records import StepObserver, StepRecord
from llmx.sched.scheduled import Scheduled

if TYPE_CHECKING:
    from llmx.engine.engine import Engine

__all__ = ["StepWatch", "watch_steps"]

_log = logging.getLogger("llmx.engine")


def watch_steps(engine: Engine, manager: pluggy.PluginManager, config: EngineConfig) -> None:
    """From now on, tell the observers of the manager's plugins of each step; without any, nothing changes."""
    observers = [one for found in manager.hook.llmx_step_observers(config=config) for one in found]
    if observers:
        # in place of the method, so that an engine without observers has no test on the way
        setattr(engine.accounting, "stepped", StepWatch(engine, observers))  # noqa: B010


class StepWatch:
    """Called in place of Accounting.stepped, which it calls first. An observer that raises is told of no further step."""

    def __init__(self, engine: Engine, observers: Iterable[StepObserver]) -> None:
        self._observers = list(observers)
        self._kv, self._scheduler, self._accounting = engine.kv, engine.scheduler, engine.accounting
        self._count = engine.accounting.stepped

    def __call__(self, scheduled: Scheduled, out: StepOutput, total_ns: int) -> None:
        """A step is done; arguments as those of Accounting.stepped."""
        self._count(scheduled, out, total_ns)
        record = StepRecord(
            number=self._accounting.stats.steps,
            ended_ns=time_ns(),
            requests=len(scheduled.rows),
            prefill_tokens=scheduled.num_prefill,
            decode_tokens=scheduled.num_decoding,
            total_us=total_ns // 1000,
            forward_us=out.t_us[0],
            sample_us=out.t_us[1],
            draft_us=out.t_us[2],
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            kv_blocks_used=self._kv.blocks_held,
            kv_blocks_total=self._kv.blocks_total,
        )
        for observer in tuple(self._observers):
            try:
                observer(record)
            except Exception as error:  # noqa: BLE001 - what a plugin raises must not end the engine
                self._observers.remove(observer)
                _log.warning("a step observer failed and is told of no further step: %r: %s: %s", observer, type(error).__name__, error)
