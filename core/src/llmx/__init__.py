"""llmx: a hardware-neutral engine for large language models.

The names below are loaded when first used, so that `import llmx` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmx.engine.async_engine import AsyncEngine
    from llmx.engine.async_llm_engine import AsyncLLMEngine
    from llmx.engine.beam_search import BeamSearchOutput
    from llmx.engine.engine_args import EngineArgs
    from llmx.engine.llm import LLM
    from llmx.engine.llm_engine import LLMEngine
    from llmx.engine.outputs import CompletionOutput, RequestOutput
    from llmx.engine.request_input import TextPrompt, TokensPrompt
    from llmx.errors import ConfigError, EngineDead, LlmxError, ModelError, PlatformError, PluginError, RequestError
    from llmx.lora.request import LoRARequest
    from llmx.pooling_params import PoolingParams
    from llmx.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
    from llmx.structured_params import StructuredOutputsParams

    AsyncEngineArgs = EngineArgs

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncEngine",
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "CompletionOutput",
    "ConfigError",
    "EngineArgs",
    "EngineDead",
    "LLMEngine",
    "LlmxError",
    "LoRARequest",
    "ModelError",
    "PlatformError",
    "PluginError",
    "PoolingParams",
    "RequestError",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]

_HOMES = {
    "LLM": "llmx.engine.llm:LLM",
    "AsyncEngine": "llmx.engine.async_engine:AsyncEngine",
    "AsyncEngineArgs": "llmx.engine.engine_args:EngineArgs",
    "AsyncLLMEngine": "llmx.engine.async_llm_engine:AsyncLLMEngine",
    "BeamSearchOutput": "llmx.engine.beam_search:BeamSearchOutput",
    "BeamSearchParams": "llmx.sampling_params:BeamSearchParams",
    "CompletionOutput": "llmx.engine.outputs:CompletionOutput",
    "EngineArgs": "llmx.engine.engine_args:EngineArgs",
    "LLMEngine": "llmx.engine.llm_engine:LLMEngine",
    "LoRARequest": "llmx.lora.request:LoRARequest",
    "PoolingParams": "llmx.pooling_params:PoolingParams",
    "RequestOutput": "llmx.engine.outputs:RequestOutput",
    "RequestOutputKind": "llmx.sampling_params:RequestOutputKind",
    "SamplingParams": "llmx.sampling_params:SamplingParams",
    "StructuredOutputsParams": "llmx.structured_params:StructuredOutputsParams",
    "TextPrompt": "llmx.engine.request_input:TextPrompt",
    "TokensPrompt": "llmx.engine.request_input:TokensPrompt",
    **{name: f"llmx.errors:{name}" for name in __all__ if name.endswith(("Error", "Dead"))},
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'llmx' has no attribute {name!r}")
    module, _, attribute = home.partition(":")
    return getattr(import_module(module), attribute)
