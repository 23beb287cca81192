"""What the engine counts, as metric families made when a scrape asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from llmx.engine.metrics_snapshot import ACCEPTED_PER_POSITION, COUNTERS, GAUGES
from llmx.engine.outputs import STEP_TOKEN_BOUNDS, EngineStats

if TYPE_CHECKING:
    from llmx.engine.messages import EngineInfo

__all__ = ["EngineCollector", "EngineNumbers"]

_LABELS = ["model_name"]
# EngineInfo fields that /metrics shows as labels of llmx:cache_config_info
_CACHE_FIELDS = ("kv_dtype", "kv_bytes", "num_kv_blocks", "kv_tokens", "max_model_len", "max_num_seqs", "max_num_batched_tokens")


@dataclass(slots=True)
class EngineNumbers:
    """What one engine tells. stats: set before a scrape; None leaves its numbers out (it is loading or dead)."""

    model_name: str = ""
    info: EngineInfo | None = None
    stats: EngineStats | None = None


class EngineCollector(Collector):
    """engines: those of one server, one for each model."""

    def __init__(self) -> None:
        self.engines: list[EngineNumbers] = []

    def collect(self) -> Iterator[Metric]:
        """The families, with one sample for each engine."""
        known = {engine.model_name: engine.info for engine in self.engines if engine.info is not None}
        if known:
            yield _cache_config(known)
        stats = {engine.model_name: engine.stats for engine in self.engines if engine.stats is not None}
        if not stats:
            return
        for name, text, read in GAUGES:
            yield _each(GaugeMetricFamily(name, text, labels=_LABELS), stats, read)
        for name, text, read in COUNTERS:
            yield _each(CounterMetricFamily(name, text, labels=_LABELS), stats, read)
        if any(one.accepted_per_position for one in stats.values()):
            yield _accepted(stats)
        yield _waiting(stats)
        yield _step_tokens(stats)


def _each(family: GaugeMetricFamily | CounterMetricFamily, stats: Mapping[str, EngineStats], read: Callable[[EngineStats], float]) -> Metric:
    for name, one in stats.items():
        family.add_metric([name], read(one))
    return family


def _cache_config(known: Mapping[str, EngineInfo]) -> Metric:
    shown = [name for name in _CACHE_FIELDS if any(hasattr(info, name) for info in known.values())]
    family = GaugeMetricFamily("llmx:cache_config_info", "The KV cache and the limits of the engine; always 1", labels=_LABELS + shown)
    for model_name, info in known.items():
        family.add_metric([model_name, *(str(getattr(info, name)) for name in shown)], 1)
    return family


def _waiting(stats: Mapping[str, EngineStats]) -> Metric:
    family = GaugeMetricFamily("llmx:num_requests_waiting_by_reason", "Waiting requests by what they wait for", labels=[*_LABELS, "reason"])
    for name, one in stats.items():
        family.add_metric([name, "capacity"], one.requests_waiting)
    return family


def _accepted(stats: Mapping[str, EngineStats]) -> Metric:
    family = CounterMetricFamily(*ACCEPTED_PER_POSITION, labels=[*_LABELS, "position"])
    for name, one in stats.items():
        for position, count in enumerate(one.accepted_per_position):
            family.add_metric([name, str(position)], count)
    return family


def _step_tokens(stats: Mapping[str, EngineStats]) -> Metric:
    family = HistogramMetricFamily("llmx:iteration_tokens_total", "Tokens that a step computed, of prompts and answers", labels=_LABELS)
    bounds = [*(str(float(bound)) for bound in STEP_TOKEN_BOUNDS), "+Inf"]
    for name, one in stats.items():
        family.add_metric([name], list(zip(bounds, accumulate(one.step_token_buckets), strict=True)), one.step_tokens)
    return family
