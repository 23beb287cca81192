"""The null platform: no device. Serves any model's tokenizer with deterministic nonsense; takes part only when named."""

from __future__ import annotations

from collections.abc import Mapping

from llmx.config import EngineConfig
from llmx.errors import PlatformError
from llmx.executor.base import Executor
from llmx.executor.bundle import ModelBundle
from llmx.executor.null import NullExecutor
from llmx.hooks.specs import hookimpl
from llmx.hooks.types import Detection, DeviceCaps, ImplDef, PlatformInfo
from llmx.kv.spec import BLOCK_TOKENS, GroupNeed, KVSpec

__all__ = ["NullPlatform", "detect"]

_SLOT_BYTES = 8  # one int64 per kv slot


def detect(environ: Mapping[str, str]) -> Detection:
    """Always present; the lowest score, and chosen only when named."""
    return Detection(True, count=1, score=0, why="needs no device; only when named")


class NullPlatform:
    """Hook implementations of the null platform."""

    @hookimpl
    def llmx_platform_info(self) -> PlatformInfo:
        """Who it is."""
        return PlatformInfo("null", "none", (1, 1), "llmx-core")

    @hookimpl
    def llmx_device_caps(self, config: EngineConfig) -> DeviceCaps:
        """No device; results are exact."""
        return DeviceCaps("none", frozenset({"f32"}), frozenset({"batch_invariant"}), 1, 1 << 30)

    @hookimpl
    def llmx_op_kernels(self, config: EngineConfig) -> list[ImplDef]:
        """One implementation for every op kind: the hash."""
        from llmx.program.kinds import core_registry

        return [ImplDef((kind,), "null", "null/1", "llmx.executor.null", priority=1, tags=frozenset({"batch_invariant"})) for kind in core_registry().kinds()]

    @hookimpl
    def llmx_executor(self, config: EngineConfig, bundle: ModelBundle) -> Executor:
        """A NullExecutor with the model's KV groups and vocabulary."""
        if any("pooled" in program.outputs() for program in bundle.model.programs.values()):
            raise PlatformError("the null platform gives tokens of a hash, and this model vectors or scores: choose another with --platform")
        groups: dict[KVSpec, list[str]] = {}
        for state in bundle.model.states.values():
            groups.setdefault(state.spec, []).append(state.name)
        needs = [GroupNeed(spec, tuple(names), BLOCK_TOKENS, BLOCK_TOKENS * _SLOT_BYTES, "i64") for spec, names in groups.items()]
        return NullExecutor(
            needs,
            vocab_size=bundle.vocab_size,
            max_tokens=config.scheduler.max_num_batched_tokens or 2048,
            max_requests=config.scheduler.max_num_seqs,
        )
