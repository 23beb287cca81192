"""Accounting: what an engine counts about itself: tokens, ends, times of its steps, how full they are. `/metrics` shows it."""

from __future__ import annotations

from bisect import bisect_left
from time import perf_counter_ns

from llmx.batch import StepOutput
from llmx.engine.outputs import STEP_TOKEN_BOUNDS, EngineStats
from llmx.kv.manager import KVManager
from llmx.lora.off import NoAdapters
from llmx.request import Request
from llmx.sched.scheduled import Scheduled
from llmx.sched.scheduler import Scheduler

__all__ = ["Accounting"]

_BUSY_WINDOW_NS = 1_000_000_000  # gauges of load look at about the last second


class Accounting:
    """The counters of one engine, written by its thread."""

    def __init__(self, kv: KVManager, scheduler: Scheduler) -> None:
        self._kv, self._scheduler = kv, scheduler
        self.reset()

    def reset(self) -> None:
        """All counters back to zero and the prefix cache forgotten: after the warm-up."""
        self.stats = EngineStats(kv_blocks_total=self._kv.blocks_total)
        self._window = [perf_counter_ns(), 0]  # start of the window, busy time in it
        self._kv.prefix_queries = self._kv.prefix_hits = 0
        if self._scheduler.drafting is not None:
            self._scheduler.drafting.reset()
        for pool in self._kv.pools:
            pool.reset_cache()

    def ended(self, request: Request) -> None:
        """An answer has ended."""
        reason = request.finish_reason or ""
        self.stats.requests_finished[reason] = self.stats.requests_finished.get(reason, 0) + 1

    def stepped(self, scheduled: Scheduled, out: StepOutput, total_ns: int) -> None:
        """A step is done. total_ns: of the turn that collected it, with everything around the executor."""
        stats, window, t_us = self.stats, self._window, out.t_us
        tokens = scheduled.step.num_tokens
        stats.steps += 1
        stats.step_tokens += tokens
        stats.step_token_buckets[bisect_left(STEP_TOKEN_BOUNDS, tokens)] += 1
        stats.forward_us += t_us[0]
        stats.sample_us += t_us[1]
        stats.jit_compiles += out.compiles
        if self._scheduler.drafting is not None:
            self._scheduler.drafting.observe(scheduled.step, t_us, prefill=scheduled.num_prefill > 0)
        stats.python_us += max(total_ns // 1000 - (sum(t_us) if out.waited_us is None else out.waited_us), 0)
        now = perf_counter_ns()
        window[1] += sum(t_us) * 1000
        if now - window[0] > _BUSY_WINDOW_NS:
            stats.device_busy = min(window[1] / (now - window[0]), 1.0)
            self._window = [now, 0]

    def snapshot(self, adapters: NoAdapters, *, idle: bool, kv_map: bool = False) -> EngineStats:
        """Counters and gauges as of now; the engine's own object. idle: nothing waits, runs or is in flight. kv_map: with every block."""
        stats, kv, scheduler = self.stats, self._kv, self._scheduler
        stats.requests_running, stats.requests_waiting = len(scheduler.running), len(scheduler.waiting)
        stats.kv_blocks_used, stats.kv_blocks_cached = kv.blocks_held, kv.blocks_cached
        stats.kv_map = kv.block_map() if kv_map else []
        stats.prefix_queries, stats.prefix_hits = kv.prefix_queries, kv.prefix_hits
        stats.preemptions = scheduler.num_preemptions
        drafting = scheduler.drafting
        if drafting is not None:
            stats.drafts, stats.draft_tokens = drafting.num_drafts, drafting.num_draft_tokens
            stats.accepted_per_position, stats.accepted_tokens = drafting.accepted_per_position, sum(drafting.accepted_per_position)
        stats.lora_loaded = len(adapters)
        stats.lora_slots_used, stats.lora_slots, stats.lora_swaps = adapters.in_use
        stats.step_budget_used = 0.0 if idle else scheduler.budget.used
        stats.device_busy = 0.0 if idle else stats.device_busy
        stats.queue_delay_s = scheduler.queue_delay_s
        return stats
