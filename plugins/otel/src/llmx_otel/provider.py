"""The way of spans to a collector."""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

__all__ = ["open_provider"]

_TIMEOUT_S = 5  # for one batch; a collector that is away holds up the end of a server for no longer


def open_provider(endpoint: str, service_name: str, sample: float) -> TracerProvider:
    """A provider whose spans go to `endpoint` in batches, from a thread. sample: share of traces that begin here.

    Headers, certificates and the batches' size follow OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_HEADERS, OTEL_BSP_...).
    """
    provider = TracerProvider(ParentBased(TraceIdRatioBased(sample)), Resource.create({SERVICE_NAME: service_name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=_TIMEOUT_S)))
    return provider
