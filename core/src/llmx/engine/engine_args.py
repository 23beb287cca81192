"""EngineArgs: options of an engine by name, checked when they are written down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmx.config import Change, EngineConfig
from llmx.errors import ConfigError
from llmx.resolve import resolve

__all__ = ["DEFAULT_MODEL", "EngineArgs"]

DEFAULT_MODEL = "smollm2-135m-instruct"


class EngineArgs:
    """The options of `llmx serve` by name: EngineArgs("model.gguf", max_model_len=2048, threads=2); a name or value that is wrong is a ConfigError.

    options: as given, without those that are None. max_logprobs: the most logprobs a request may ask for; None, or -1: every token's.
    disable_log_stats is taken either way: nothing is logged, and statistics are always counted (LLM.get_metrics).
    """

    def __init__(self, model: str = DEFAULT_MODEL, *, max_logprobs: int | None = None, disable_log_stats: bool | None = None, **options: Any) -> None:
        if max_logprobs is not None and (not isinstance(max_logprobs, int) or max_logprobs < -1):
            raise ConfigError(f"max_logprobs is {max_logprobs!r}: it must be a whole number, or -1 for every token", field="max_logprobs")
        if not isinstance(disable_log_stats, bool | None):
            raise ConfigError(f"disable_log_stats is {disable_log_stats!r}: it must be true or false", field="disable_log_stats")
        self.max_logprobs = None if max_logprobs == -1 else max_logprobs
        self.options = {"model": model, **{name: value for name, value in options.items() if value is not None}}
        self.resolve()

    @classmethod
    def of(cls, given: EngineArgs | Mapping[str, Any]) -> EngineArgs:
        """The same, from options by name where they come so."""
        return given if isinstance(given, EngineArgs) else cls(**given)

    def resolve(self) -> tuple[EngineConfig, list[Change]]:
        """The configuration, and what the user, a file or the environment set in it."""
        return resolve(self.options)

    def __repr__(self) -> str:
        return f"EngineArgs({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"
