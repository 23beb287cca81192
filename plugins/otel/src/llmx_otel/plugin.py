"""Hooks of the traces. OpenTelemetry itself is imported only where an endpoint is set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from llmx.config import EngineConfig
from llmx.errors import ConfigError
from llmx.hooks import ConfigIssue, OptionDef, RequestObserver, StepObserver, hookimpl

__all__ = ["llmx_add_options", "llmx_config_check", "llmx_request_observers", "llmx_step_observers"]

_PATH = "/v1/traces"  # where collectors take traces


@hookimpl
def llmx_add_options() -> list[OptionDef]:
    """Where traces go, how many, and whether steps are among them."""
    return [
        OptionDef(
            "traces_endpoint", "str", "URL that takes OTLP over HTTP, e.g. http://127.0.0.1:4318; traces are off without it", aliases=("otlp_traces_endpoint",)
        ),
        OptionDef("sample", "float", "share of requests that are traced where no traceparent decides", default=1.0, minimum=0.0, maximum=1.0),
        OptionDef("service_name", "str", "service.name of the traces", default="llmx"),
        OptionDef("steps", "bool", "also a span for each step of the engine", default=False),
    ]


@hookimpl
def llmx_request_observers(config: EngineConfig) -> list[RequestObserver]:
    """What turns requests into spans."""
    options = config.plugins["otel"]
    if not options["traces_endpoint"]:
        return []
    from llmx_otel.provider import open_provider
    from llmx_otel.requests import RequestSpans

    return [RequestSpans(open_provider(_endpoint(options), options["service_name"], options["sample"]))]


@hookimpl
def llmx_config_check(config: EngineConfig) -> list[ConfigIssue]:
    """An endpoint that is none, and steps that would go nowhere."""
    options = config.plugins["otel"]
    if options["traces_endpoint"]:
        try:
            _endpoint(options)
        except ConfigError as error:
            return [ConfigIssue("error", "plugins.otel.traces_endpoint", str(error))]
    elif options["steps"]:
        why = "--otel-steps asks for spans of steps, but no --otlp-traces-endpoint says where they go: give one"
        return [ConfigIssue("error", "plugins.otel.steps", why)]
    return []


@hookimpl
def llmx_step_observers(config: EngineConfig) -> list[StepObserver]:
    """What turns steps into spans, where they are asked for."""
    options = config.plugins["otel"]
    if not options["steps"]:
        return []
    from llmx_otel.provider import open_provider
    from llmx_otel.steps import StepSpans

    return [StepSpans(open_provider(_endpoint(options), options["service_name"], 1.0))]


def _endpoint(options: Mapping[str, Any]) -> str:
    """The URL, with the usual path where it has none. Raises ConfigError."""
    url = str(options["traces_endpoint"])
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        why = "it must be a URL of OTLP over HTTP such as http://127.0.0.1:4318 (collectors take OTLP over gRPC at another port, 4317)"
        raise ConfigError(f"--otlp-traces-endpoint is {url!r}: {why}", field="otlp_traces_endpoint")
    return url if parts.path.strip("/") else f"{url.rstrip('/')}{_PATH}"
