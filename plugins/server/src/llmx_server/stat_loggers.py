"""StatLoggers: tells plugins what engines count, whenever the server reads it (the hook llmx_stat_loggers); and the line in the log that comes with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from time import time_ns
from typing import TYPE_CHECKING

from llmx.config import EngineConfig
from llmx.engine.metrics_snapshot import COUNTERS, GAUGES
from llmx.engine.outputs import EngineStats
from llmx.errors import EngineDead
from llmx.hooks import StatLogger, StatReading, hookimpl

if TYPE_CHECKING:
    from llmx_server.served_models import ServedModels

__all__ = ["LogLine", "OwnLoggers", "StatLoggers", "read_regularly"]

_log = logging.getLogger("llmx.server")


class StatLoggers:
    """The loggers of one server. Each has a thread; what one raises, or takes, touches nothing else. Its first failure is logged."""

    def __init__(self, loggers: Iterable[StatLogger]) -> None:
        self._loggers = [_Told(logger) for logger in loggers]

    def tell(self, model: str, stats: EngineStats) -> None:
        """Hand a reading on; a logger that is still busy with an earlier one does not get it."""
        if not self._loggers:
            return
        values = {name: float(read(stats)) for name, _, read in (*GAUGES, *COUNTERS)}
        reading = StatReading(model, time_ns(), values, dict(stats.requests_finished))
        for one in self._loggers:
            one.tell(reading)


class _Told:
    def __init__(self, logger: StatLogger) -> None:
        self._logger = logger
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="llmx-stat-logger")
        self._running: dict[str, Future[None]] = {}  # by model: each has its turn
        self._failed = False

    def tell(self, reading: StatReading) -> None:
        running = self._running.get(reading.model)
        if running is None or running.done():
            self._running[reading.model] = self._thread.submit(self._record, reading)

    def _record(self, reading: StatReading) -> None:
        try:
            self._logger.record(reading)
        except Exception as error:  # noqa: BLE001 - a foreign logger may raise anything
            if not self._failed:
                _log.warning("a statistics logger failed; later failures are not logged: %r: %s: %s", self._logger, type(error).__name__, error)
            self._failed = True


class LogLine:
    """Writes what each engine does into the log, every `interval_s` seconds at most; nothing while it only rests."""

    def __init__(self, interval_s: float) -> None:
        self._interval_ns = int(interval_s * 1e9)
        self._last: dict[str, StatReading] = {}

    def record(self, reading: StatReading) -> None:
        """The line, when it is time."""
        last = self._last.get(reading.model)
        if last is not None and reading.time_ns - last.time_ns < 0.9 * self._interval_ns:
            return
        self._last[reading.model] = reading
        if last is None:
            return
        grown = {name: value - last.values[name] for name, value in reading.values.items()}
        values, seconds = reading.values, (reading.time_ns - last.time_ns) / 1e9
        if not grown["llmx:steps"] and not values["llmx:num_requests_waiting"]:
            return
        queries = grown["llmx:prefix_cache_queries"]
        hits = f", {grown['llmx:prefix_cache_hits'] / queries:.0%} of new prompts cached" if queries > 0 else ""
        _log.info(
            "%s: %.1f prompt tokens/s, %.1f generated tokens/s, %d running, %d waiting, %.0f%% of KV in use%s",
            reading.model, grown["llmx:prompt_tokens"] / seconds, grown["llmx:generation_tokens"] / seconds, values["llmx:num_requests_running"],
            values["llmx:num_requests_waiting"], 100 * values["llmx:kv_cache_usage_perc"], hits,
        )  # fmt: skip


class OwnLoggers:
    """The plugin that brings the server's own logger."""

    @hookimpl
    def llmx_stat_loggers(self, config: EngineConfig) -> list[StatLogger]:
        """The line in the log, where --log-stats-interval asks for it."""
        return [LogLine(config.server.stats_interval_s)] if config.server.stats_interval_s else []


async def read_regularly(models: ServedModels, interval_s: float) -> None:
    """Read the statistics of all engines every so many seconds, for the loggers."""
    while True:
        await asyncio.sleep(interval_s)
        for serving in list(models):
            if serving.residence == "loaded":
                try:
                    serving.metrics.counted(await serving.engine.stats())
                except EngineDead:
                    serving.metrics.counted(None)
