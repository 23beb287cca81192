"""What a platform, a kernel or a plugin is tested with: tiny models, a numpy reading of Programs, a driver for executors.

`llmx.testing.conformance` is the suite that every platform passes.
"""

from llmx.testing.driver import Driver, kv_plan, logits_of, mask_of
from llmx.testing.engine_runner import Answers, EngineRunner
from llmx.testing.tiny_models import TINY, MemorySource, bundle_from, bundle_of, memory, stored, tensors_of, tiny_llama

__all__ = [
    "TINY",
    "Answers",
    "Driver",
    "EngineRunner",
    "MemorySource",
    "bundle_from",
    "bundle_of",
    "kv_plan",
    "logits_of",
    "mask_of",
    "memory",
    "stored",
    "tensors_of",
    "tiny_llama",
]
