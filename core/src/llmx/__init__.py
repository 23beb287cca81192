"""llmx: a hardware-neutral engine for large language models.

The names below are loaded when first used, so that `import llmx` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmx.engine.async_engine import AsyncEngine
    from llmx.engine.llm import LLM
    from llmx.engine.outputs import CompletionOutput, RequestOutput
    from llmx.errors import ConfigError, EngineDead, LlmxError, ModelError, PlatformError, PluginError, RequestError
    from llmx.sampling_params import SamplingParams

    AsyncLLMEngine = AsyncEngine

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncEngine",
    "AsyncLLMEngine",
    "CompletionOutput",
    "ConfigError",
    "EngineDead",
    "LlmxError",
    "ModelError",
    "PlatformError",
    "PluginError",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]

_HOMES = {
    "LLM": "llmx.engine.llm:LLM",
    "AsyncEngine": "llmx.engine.async_engine:AsyncEngine",
    "AsyncLLMEngine": "llmx.engine.async_engine:AsyncEngine",
    "CompletionOutput": "llmx.engine.outputs:CompletionOutput",
    "RequestOutput": "llmx.engine.outputs:RequestOutput",
    "SamplingParams": "llmx.sampling_params:SamplingParams",
    **{name: f"llmx.errors:{name}" for name in __all__ if name.endswith(("Error", "Dead"))},
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'llmx' has no attribute {name!r}")
    module, _, attribute = home.partition(":")
    return getattr(import_module(module), attribute)
