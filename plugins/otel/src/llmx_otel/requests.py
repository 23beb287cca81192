"""RequestSpans: a span for each request, below it one for each prompt, and below that its queue, prefill and decode.

Names and attributes follow OpenTelemetry's conventions for HTTP and for generative AI; beside them stand those of vLLM: gen_ai.latency.*, gen_ai.request.id,
gen_ai.request.n, gen_ai.usage.num_sequences, and the older names of the two token counts.
"""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from llmx.hooks import GenerationRecord, RequestRecord

__all__ = ["RequestSpans"]

_NOTE = "llmx_otel"  # the key of a request's span among its notes
_QUIET = frozenset({"/health", "/ready", "/ping", "/version", "/metrics", "/engine/state", "/"})  # asked every few seconds by those who watch
_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/chat/completions/batch": "chat", "/v1/chat/ws": "chat", "/v1/messages": "chat", "/v1/responses": "chat"}


class RequestSpans:
    """A request observer."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("llmx.server")
        self._incoming = TraceContextTextMapPropagator()

    def arrived(self, request: RequestRecord) -> None:
        """Begins the request's span, as a child of the client's where traceparent says so."""
        if not request.method or request.path in _QUIET or request.path.startswith("/web/"):
            return
        facts = {"http.request.method": request.method, "url.path": request.path, "llmx.request_id": request.id}
        if agent := request.headers.get("user-agent"):
            facts["user_agent.original"] = agent
        context = self._incoming.extract(request.headers, Context())
        request.notes[_NOTE] = self._tracer.start_span(request.method, context, SpanKind.SERVER, facts, start_time=request.arrived_ns)

    def first_token(self, request: RequestRecord, generation: GenerationRecord) -> None:
        """Nothing: the prompt's span is written when all of it is known."""

    def generated(self, request: RequestRecord, generation: GenerationRecord) -> None:
        """Writes the prompt's spans."""
        parent: Span | None = request.notes.get(_NOTE)
        operation = "embeddings" if generation.kind == "pool" else _OPERATIONS.get(request.path, "text_completion")
        context = Context() if parent is None else set_span_in_context(parent, Context())
        facts = {name: value for name, value in _facts(operation, generation).items() if value is not None}
        span = self._tracer.start_span(f"{operation} {generation.model}", context, SpanKind.INTERNAL, facts, start_time=generation.arrived_ns)
        if generation.first_token_ns:
            span.add_event("first token", timestamp=generation.first_token_ns)
        if generation.error:
            span.set_attribute("error.type", generation.error)
            span.set_status(Status(StatusCode.ERROR, generation.error))
        below = set_span_in_context(span, Context())
        for name, began, ended in _phases(generation):
            self._tracer.start_span(name, below, start_time=began).end(ended)
        span.end(generation.ended_ns)

    def ended(self, request: RequestRecord) -> None:
        """Ends the request's span."""
        span: Span | None = request.notes.get(_NOTE)
        if span is None:
            return
        if request.route:
            span.update_name(f"{request.method} {request.route}")
            span.set_attribute("http.route", request.route)
        if request.status:
            span.set_attribute("http.response.status_code", request.status)
        if request.error or request.status >= 500:
            span.set_attribute("error.type", request.error or str(request.status))
            span.set_status(Status(StatusCode.ERROR))
        span.end(request.ended_ns)


def _phases(one: GenerationRecord) -> list[tuple[str, int, int]]:
    """(name, begin, end) of what the prompt went through, in unix ns, as far as it came."""
    marks = [("queue", one.arrived_ns, one.scheduled_ns), ("prefill", one.scheduled_ns, one.first_token_ns), ("decode", one.first_token_ns, one.last_token_ns)]
    return [(name, began, max(ended, began)) for name, began, ended in marks if began and ended]


def _facts(operation: str, one: GenerationRecord) -> dict[str, str | int | float | tuple[str, ...] | None]:
    first, last, began = one.first_token_ns, one.last_token_ns, one.scheduled_ns
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "llmx",
        "gen_ai.request.model": one.model,
        "gen_ai.response.model": one.model,
        "gen_ai.request.id": one.id,
        "gen_ai.response.id": one.id,
        "gen_ai.request.max_tokens": one.max_tokens,
        "gen_ai.request.temperature": one.temperature,
        "gen_ai.request.top_p": one.top_p,
        "gen_ai.request.n": one.n,
        "gen_ai.request.choice.count": one.n if one.n > 1 else None,
        "gen_ai.response.finish_reasons": one.finish_reasons or None,
        "gen_ai.usage.input_tokens": one.prompt_tokens,
        "gen_ai.usage.output_tokens": one.generated_tokens,
        "gen_ai.usage.cache_read.input_tokens": one.cached_tokens,
        "gen_ai.usage.prompt_tokens": one.prompt_tokens,
        "gen_ai.usage.completion_tokens": one.generated_tokens,
        "gen_ai.usage.num_sequences": one.n,
        "gen_ai.latency.time_in_queue": _seconds(one.arrived_ns, began),
        "gen_ai.latency.time_to_first_token": _seconds(one.arrived_ns, first),
        "gen_ai.latency.e2e": _seconds(one.arrived_ns, one.ended_ns),
        "gen_ai.latency.time_in_model_prefill": _seconds(began, first),
        "gen_ai.latency.time_in_model_decode": _seconds(first, last),
        "gen_ai.latency.time_in_model_inference": _seconds(began, last),
        "llmx.preemptions": one.preemptions,
    }


def _seconds(began: int, ended: int) -> float | None:
    return max(ended - began, 0) / 1e9 if began and ended else None
