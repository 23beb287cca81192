"""What the engine counts, as metric families made when a scrape asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from llmx.engine.metrics_snapshot import ACCEPTED_PER_POSITION, COUNTERS, GAUGES
from llmx.engine.outputs import STEP_TOKEN_BOUNDS, EngineStats

if TYPE_CHECKING:
    from llmx.engine.messages import EngineInfo

__all__ = ["EngineCollector"]

_LABELS = ["model_name"]
# EngineInfo fields that /metrics shows as labels of llmx:cache_config_info
_CACHE_FIELDS = ("kv_dtype", "kv_bytes", "num_kv_blocks", "kv_tokens", "max_model_len", "max_num_seqs", "max_num_batched_tokens")


class EngineCollector(Collector):
    """stats: set before a scrape; None leaves the engine's numbers out (it is loading or dead)."""

    def __init__(self) -> None:
        self.stats: EngineStats | None = None
        self.info: EngineInfo | None = None
        self.model_name = ""

    def collect(self) -> Iterator[Metric]:
        """The families, with one sample each."""
        labels = [self.model_name]
        if self.info is not None:
            yield self._cache_config(self.info)
        if self.stats is None:
            return
        for name, text, read in GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=_LABELS)
            gauge.add_metric(labels, read(self.stats))
            yield gauge
        for name, text, read in COUNTERS:
            counter = CounterMetricFamily(name, text, labels=_LABELS)
            counter.add_metric(labels, read(self.stats))
            yield counter
        if self.stats.accepted_per_position:
            yield self._accepted(self.stats)
        yield self._waiting(self.stats)
        yield self._step_tokens(self.stats)

    def _cache_config(self, info: EngineInfo) -> Metric:
        shown = [name for name in _CACHE_FIELDS if hasattr(info, name)]
        family = GaugeMetricFamily("llmx:cache_config_info", "The KV cache and the limits of the engine; always 1", labels=_LABELS + shown)
        family.add_metric([self.model_name, *(str(getattr(info, name)) for name in shown)], 1)
        return family

    def _waiting(self, stats: EngineStats) -> Metric:
        family = GaugeMetricFamily("llmx:num_requests_waiting_by_reason", "Waiting requests by what they wait for", labels=[*_LABELS, "reason"])
        family.add_metric([self.model_name, "capacity"], stats.requests_waiting)
        return family

    def _accepted(self, stats: EngineStats) -> Metric:
        family = CounterMetricFamily(*ACCEPTED_PER_POSITION, labels=[*_LABELS, "position"])
        for position, count in enumerate(stats.accepted_per_position):
            family.add_metric([self.model_name, str(position)], count)
        return family

    def _step_tokens(self, stats: EngineStats) -> Metric:
        family = HistogramMetricFamily("llmx:iteration_tokens_total", "Tokens that a step computed, of prompts and answers", labels=_LABELS)
        bounds = [*(str(float(bound)) for bound in STEP_TOKEN_BOUNDS), "+Inf"]
        family.add_metric([self.model_name], list(zip(bounds, accumulate(stats.step_token_buckets), strict=True)), stats.step_tokens)
        return family
