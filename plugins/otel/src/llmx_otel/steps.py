"""StepSpans: a span for each step of an engine."""

from __future__ import annotations

from dataclasses import asdict

from opentelemetry.context import Context
from opentelemetry.trace import TracerProvider

from llmx.hooks import StepRecord

__all__ = ["StepSpans"]


class StepSpans:
    """A step observer. Every span is a trace of its own: a step is no one request's."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("llmx.engine")

    def __call__(self, record: StepRecord) -> None:
        """A step has ended."""
        facts = {f"llmx.step.{name}": value for name, value in asdict(record).items() if name != "ended_ns"}
        began = record.ended_ns - record.total_us * 1000
        self._tracer.start_span("llmx.step", Context(), start_time=began, attributes=facts).end(record.ended_ns)
