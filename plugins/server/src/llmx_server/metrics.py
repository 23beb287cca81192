"""Prometheus metrics: what the engine counts, read when scraped, and what only the server sees, recorded as it happens.

Names follow the field's usual ones under the prefix `llmx:`, so that dashboards need a rename only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from llmx.engine.outputs import EngineStats, RequestOutput

__all__ = ["CONTENT_TYPE_LATEST", "Metrics", "Stopwatch"]

# Seconds. Wide enough for a laptop CPU and for a fast accelerator.
_FIRST_TOKEN_S = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_BETWEEN_TOKENS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)
_REQUEST_S = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)

_GAUGES: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("llmx:num_requests_running", "Requests in the running batch", lambda s: s.requests_running),
    ("llmx:num_requests_waiting", "Requests waiting for a place in the batch", lambda s: s.requests_waiting),
    ("llmx:kv_cache_usage_perc", "Share of the KV blocks held by running requests, 0 to 1", lambda s: s.kv_blocks_used / max(1, s.kv_blocks_total)),
    ("llmx:step_budget_used_perc", "Share of the token budget that the last step used, 0 to 1", lambda s: s.step_budget_used),
    ("llmx:device_busy_perc", "Share of recent time in which the device worked, 0 to 1", lambda s: s.device_busy),
    ("llmx:queue_delay_seconds", "Age of the oldest waiting request", lambda s: s.queue_delay_s),
)
_COUNTERS: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("llmx:prefix_cache_queries", "Prompt tokens looked up in the prefix cache", lambda s: s.prefix_queries),
    ("llmx:prefix_cache_hits", "Prompt tokens found in the prefix cache", lambda s: s.prefix_hits),
    ("llmx:num_preemptions", "Requests that gave up their KV blocks to run again later", lambda s: s.preemptions),
    ("llmx:prompt_tokens", "Prompt tokens taken in", lambda s: s.prompt_tokens),
    ("llmx:generation_tokens", "Tokens generated", lambda s: s.generation_tokens),
    ("llmx:steps", "Engine steps", lambda s: s.steps),
    ("llmx:forward_seconds", "Time in the model", lambda s: s.forward_us / 1e6),
    ("llmx:sample_seconds", "Time in sampling", lambda s: s.sample_us / 1e6),
    ("llmx:engine_seconds", "Engine time outside the executor", lambda s: s.python_us / 1e6),
)


class Metrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(self, model_name: str = "") -> None:
        self.registry = CollectorRegistry()
        self._engine = _EngineStatsCollector()
        self.registry.register(self._engine)
        self._first_token = self._histogram("llmx:time_to_first_token_seconds", "From arrival to the first token", _FIRST_TOKEN_S)
        self._between_tokens = self._histogram("llmx:inter_token_latency_seconds", "Between two tokens of an answer", _BETWEEN_TOKENS_S)
        self._request = self._histogram("llmx:e2e_request_latency_seconds", "From arrival to the end of the answer", _REQUEST_S)
        self._prompt = self._histogram("llmx:request_prompt_tokens", "Prompt tokens of a request", _TOKENS)
        self._generation = self._histogram("llmx:request_generation_tokens", "Generated tokens of a request", _TOKENS)
        self._success = Counter("llmx:request_success", "Finished answers", ["model_name", "finished_reason"], registry=self.registry)
        self._failures = Counter("llmx:request_failure", "Requests that ended with an error or an abort", ["model_name", "reason"], registry=self.registry)
        self.name_model(model_name)

    def name_model(self, model_name: str) -> None:
        """Sets the `model_name` label: it is known when the engine is ready."""
        self._model_name = model_name
        self._engine.model_name = model_name

    def render(self, stats: EngineStats | None) -> bytes:
        """The text that Prometheus scrapes; without stats (engine loading or dead) the engine's own metrics are left out."""
        self._engine.stats = stats
        return generate_latest(self.registry)

    def stopwatch(self) -> Stopwatch:
        """A Stopwatch for a request that arrives now."""
        return Stopwatch(self)

    def first_token(self, seconds: float) -> None:
        """Records the time to the first token."""
        self._first_token.labels(self._model_name).observe(seconds)

    def next_token(self, seconds: float) -> None:
        """Records the time between two tokens."""
        self._between_tokens.labels(self._model_name).observe(seconds)

    def finished(self, output: RequestOutput, seconds: float) -> None:
        """Records a request that ran to its end."""
        name = self._model_name
        self._request.labels(name).observe(seconds)
        self._prompt.labels(name).observe(len(output.prompt_token_ids))
        self._generation.labels(name).observe(sum(len(answer.token_ids) for answer in output.outputs))
        for answer in output.outputs:
            self._success.labels(name, answer.finish_reason or "abort").inc()

    def failed(self, reason: str) -> None:
        """Records a request that did not."""
        self._failures.labels(self._model_name, reason).inc()

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, ["model_name"], buckets=buckets, registry=self.registry)


class Stopwatch:
    """Times one request from its arrival. `step` is to be called with each output that brings tokens."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._arrival = time.monotonic()
        self._last = 0.0

    def step(self, output: RequestOutput) -> None:
        """Records the token times of an output and, with the last one, the request."""
        now = time.monotonic()
        if any(answer.new_token_ids for answer in output.outputs):
            if self._last:
                self._metrics.next_token(now - self._last)
            else:
                self._metrics.first_token(now - self._arrival)
            self._last = now
        if output.finished:
            self._metrics.finished(output, now - self._arrival)


class _EngineStatsCollector(Collector):
    """Turns the engine's own counters into metric families when a scrape asks for them."""

    def __init__(self) -> None:
        self.stats: EngineStats | None = None
        self.model_name = ""

    def collect(self) -> Iterator[Metric]:
        """The families, with one sample each."""
        if self.stats is None:
            return
        for name, text, read in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=["model_name"])
            gauge.add_metric([self.model_name], read(self.stats))
            yield gauge
        for name, text, read in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=["model_name"])
            counter.add_metric([self.model_name], read(self.stats))
            yield counter
