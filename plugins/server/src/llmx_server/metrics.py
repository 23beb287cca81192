"""Prometheus metrics: what the engine counts, read when scraped, and what only the server sees, recorded as it happens.

Names follow the field's usual ones under the prefix `llmx:`, so that dashboards need a rename only.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from llmx.engine.outputs import EngineStats, RequestMetrics, RequestOutput
from llmx.errors import QueueFull, QueueTimeout
from llmx.sampling_params import SamplingParams
from llmx_server.engine_metrics import EngineCollector, EngineNumbers
from llmx_server.recent import Recent

if TYPE_CHECKING:
    from llmx.engine.messages import EngineInfo
    from llmx_server.plugins import ServerPlugins
    from llmx_server.watching import WatchedGeneration

__all__ = ["CONTENT_TYPE_LATEST", "Metrics", "Stopwatch"]

# Seconds. Wide enough for a laptop CPU and for a fast accelerator.
_FIRST_TOKEN_S = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_BETWEEN_TOKENS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)
_REQUEST_S = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_CHOICES = (1, 2, 5, 10, 20, 50, 100)
_TIMES = (0, 1, 2, 5, 10, 20, 50)

# name -> (help, buckets); each is observed once for a request that ran to its end
_PER_REQUEST: dict[str, tuple[str, tuple[float, ...]]] = {
    "e2e_request_latency_seconds": ("From arrival to the end of the answer", _REQUEST_S),
    "request_queue_time_seconds": ("From arrival to the first step that computed something for the request", _REQUEST_S),
    "request_prefill_time_seconds": ("From that step to the first token", _REQUEST_S),
    "request_decode_time_seconds": ("From the first token to the last", _REQUEST_S),
    "request_inference_time_seconds": ("From the first step to the last token", _REQUEST_S),
    "request_time_per_output_token_seconds": ("Mean time between the tokens of a request's longest answer", _BETWEEN_TOKENS_S),
    "request_prompt_tokens": ("Prompt tokens of a request", _TOKENS),
    "request_generation_tokens": ("Generated tokens of a request, all answers", _TOKENS),
    "request_max_num_generation_tokens": ("Generated tokens of a request's longest answer", _TOKENS),
    "request_prefill_kv_computed_tokens": ("Prompt tokens that the prefix cache did not have", _TOKENS),
    "request_params_n": ("The parameter n", _CHOICES),
    "request_params_max_tokens": ("The parameter max_tokens, where there is one", _TOKENS),
    "request_num_preemptions": ("How often a request gave up its KV blocks", _TIMES),
}


class _Families:
    """The metrics that the server records, and the collector of those that engines count, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.collector = EngineCollector()
        self.registry.register(self.collector)
        self.plugins: ServerPlugins | None = None
        self.first_token = self._histogram("time_to_first_token_seconds", "From arrival to the first token", _FIRST_TOKEN_S)
        self.between_tokens = self._histogram("inter_token_latency_seconds", "Between two tokens of an answer", _BETWEEN_TOKENS_S)
        self.per_request = {name: self._histogram(name, text, buckets) for name, (text, buckets) in _PER_REQUEST.items()}
        self.success = self._counter("request_success", "Answers that ended, by why", "finished_reason")
        self.failures = self._counter("request_failure", "Requests that ended with an error or an abort", "reason")
        self.rejections = self._counter("request_rejections", "Requests that were refused before they ran, by the error's code", "reason")
        self.admission = self._counter("admission_rejections", "Requests that were refused because a queue is full, by the limit", "reason")
        self.by_source = self._counter("prompt_tokens_by_source", "Prompt tokens of finished requests: computed, or found in the prefix cache", "source")
        self.cached = self._counter("prompt_tokens_cached", "Prompt tokens of finished requests that the prefix cache had")

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"llmx:{name}", text, ["model_name"], buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"llmx:{name}", text, ["model_name", *labels], registry=self.registry)


class Metrics:
    """The metrics of one model. beside: those of another model of the same server, whose registry they share."""

    def __init__(self, model_name: str = "", beside: Metrics | None = None) -> None:
        self._all: _Families = beside._all if beside is not None else _Families()
        self._engine = EngineNumbers()
        self._all.collector.engines.append(self._engine)
        self.recent = {"first_token": Recent(), "between_tokens": Recent(), "whole_answer": Recent()}  # seconds
        self.name_model(model_name)

    @property
    def registry(self) -> CollectorRegistry:
        """Everything that the server shows."""
        return self._all.registry

    def name_model(self, model_name: str, info: EngineInfo | None = None) -> None:
        """Sets the `model_name` label, and what the engine is: both are known when it is ready."""
        self._model_name = model_name
        self._engine.model_name, self._engine.info = model_name, info

    def forget(self) -> None:
        """The model is not served any more: its engine's numbers are not shown. What was counted of its requests stays."""
        self._all.collector.engines.remove(self._engine)

    def watch(self, plugins: ServerPlugins) -> None:
        """What plugins want to be told, of every model of the server."""
        self._all.plugins = plugins

    def counted(self, stats: EngineStats | None) -> None:
        """What the engine counts now; None (loading, asleep or dead) leaves its metrics out."""
        self._engine.stats = stats
        if stats is not None and self._all.plugins is not None:
            self._all.plugins.loggers.tell(self._model_name, stats)

    def render(self) -> bytes:
        """The text that Prometheus scrapes, of all models of the server."""
        return generate_latest(self.registry)

    def stopwatch(self, params: SamplingParams, name: str, prompt_tokens: int, *, pools: bool = False) -> Stopwatch:
        """A Stopwatch for a request that arrives now. name: its id in the engine. pools: it wants vectors or scores."""
        watchers = self._all.plugins.watchers if self._all.plugins is not None else None
        watched = None if watchers is None else watchers.generation(name, self._model_name, params, prompt_tokens, pools=pools)
        return Stopwatch(self, params, watched)

    def first_token(self, seconds: float) -> None:
        """Records the time to the first token."""
        self._all.first_token.labels(self._model_name).observe(seconds)
        self.recent["first_token"].add(seconds)

    def next_token(self, seconds: float) -> None:
        """Records the time between two tokens."""
        self._all.between_tokens.labels(self._model_name).observe(seconds)
        self.recent["between_tokens"].add(seconds)

    def finished(self, output: RequestOutput, params: SamplingParams, seconds: float) -> None:
        """Records a request that ran to its end, `seconds` after its arrival."""
        name = self._model_name
        self.recent["whole_answer"].add(seconds)
        for key, value in _values(output, params, seconds).items():
            self._all.per_request[key].labels(name).observe(value)
        cached = output.num_cached_tokens
        self._all.cached.labels(name).inc(cached)
        self._all.by_source.labels(name, "local_cache_hit").inc(cached)
        self._all.by_source.labels(name, "local_compute").inc(len(output.prompt_token_ids) - cached)
        for answer in output.outputs:
            self._all.success.labels(name, answer.finish_reason or "abort").inc()

    def failed(self, reason: str) -> None:
        """Records a request that did not."""
        self._all.failures.labels(self._model_name, reason).inc()
        if reason == "abort":
            self._all.success.labels(self._model_name, reason).inc()

    def refused(self, error: Exception, code: str | None) -> None:
        """Records a request that an error with this code ended before it ran."""
        limit = None
        if isinstance(error, QueueFull) and not isinstance(error, QueueTimeout):
            limit = "max_num_queued_tokens" if "--max-num-queued-tokens" in str(error) else "max_num_queued_reqs"
        self.rejected(code or "invalid_request", limit)

    def rejected(self, code: str, queue_limit: str | None = None) -> None:
        """Records a request that was answered with an error before it ran. queue_limit: the limit, when a queue is full."""
        self._all.rejections.labels(self._model_name, code).inc()
        if queue_limit:
            self._all.admission.labels(self._model_name, queue_limit).inc()


class Stopwatch:
    """Times one request from its arrival. `step` is to be called with each output that brings tokens, `failed` when it does not come to its end.

    watched: what tells plugins of it.
    """

    def __init__(self, metrics: Metrics, params: SamplingParams, watched: WatchedGeneration | None = None) -> None:
        self._metrics, self._params, self._watched = metrics, params, watched
        self._arrival = time.monotonic()
        self._last = 0.0

    def step(self, output: RequestOutput) -> None:
        """Records the token times of an output and, with the last one, the request. Tokens that came together share the time."""
        now = time.monotonic()
        new = max((len(answer.new_token_ids) for answer in output.outputs), default=0)
        if new and not self._last:
            self._metrics.first_token(now - self._arrival)
            self._last, new = now, new - 1
        for _ in range(new):
            self._metrics.next_token((now - self._last) / new)
        if new:
            self._last = now
        if output.finished:
            self._metrics.finished(output, self._params, now - self._arrival)
        if self._watched is not None:
            self._watched.step(output)

    def failed(self, reason: str) -> None:
        """Records a request that did not come to its end."""
        self._metrics.failed(reason)
        if self._watched is not None:
            self._watched.failed(reason)


def _values(output: RequestOutput, params: SamplingParams, seconds: float) -> dict[str, float]:
    """What a finished request adds to the histograms of _PER_REQUEST; times only where the request came to a token."""
    lengths = [len(answer.token_ids) for answer in output.outputs]
    prompt = len(output.prompt_token_ids)
    values: dict[str, float] = {
        "e2e_request_latency_seconds": seconds,
        "request_prompt_tokens": prompt,
        "request_generation_tokens": sum(lengths),
        "request_max_num_generation_tokens": max(lengths),
        "request_prefill_kv_computed_tokens": prompt - output.num_cached_tokens,
        "request_params_n": params.n,
    }
    if params.max_tokens is not None:
        values["request_params_max_tokens"] = params.max_tokens
    if output.metrics is not None:
        values |= _times(output.metrics, max(lengths))
    return values


def _times(times: RequestMetrics, longest: int) -> dict[str, float]:
    values: dict[str, float] = {"request_num_preemptions": times.num_preemptions}
    if times.scheduled_ts:
        values["request_queue_time_seconds"] = max(times.scheduled_ts - times.queued_ts, 0.0)
    if times.scheduled_ts and times.first_token_ts:
        values["request_prefill_time_seconds"] = times.first_token_ts - times.scheduled_ts
        values["request_decode_time_seconds"] = times.last_token_ts - times.first_token_ts
        values["request_inference_time_seconds"] = times.last_token_ts - times.scheduled_ts
    if longest > 1:
        values["request_time_per_output_token_seconds"] = (times.last_token_ts - times.first_token_ts) / (longest - 1)
    return values
