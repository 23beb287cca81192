"""A loaded JAX executor over a model in memory."""

from __future__ import annotations

from typing import Any

from llmx.config import EngineConfig, ModelConfig, PlatformConfig, SchedulerConfig
from llmx.executor import ModelBundle
from llmx.platform.kernels import KernelResolver
from llmx.platform.plan import Plan
from llmx.testing import kv_plan
from llmx_tpu import plugin
from llmx_tpu.backend import device_caps
from llmx_tpu.executor import JaxExecutor

__all__ = ["config_for", "jax_executor"]


def config_for(max_tokens: int = 64, seqs: int = 8, *, cache: str | None = None, devices: int = 1, kernels: dict[str, str] | None = None) -> EngineConfig:
    """An engine configuration for the platform on JAX's CPU backend. cache: a folder for compiled programs."""
    return EngineConfig(
        model=ModelConfig(dtype="float32", cache_dir=cache),
        scheduler=SchedulerConfig(max_num_batched_tokens=max_tokens, max_num_seqs=seqs),
        platform=PlatformConfig(kernels=tuple((kind, (provider,)) for kind, provider in (kernels or {}).items())),
        plugins={"tpu": {"backend": "cpu", "devices": devices}},
    )


def jax_executor(bundle: ModelBundle, config: EngineConfig, blocks: int = 200, *, warm: bool = False) -> Any:
    """An executor with pages, its kernels chosen by core's resolver."""
    caps = device_caps(config)
    executor = JaxExecutor(config, caps, bundle)
    impls = [impl for offer in (plugin.llmx_attention_backends, plugin.llmx_gemm_kernels, plugin.llmx_op_kernels) for impl in offer(config, caps)]
    resolver = KernelResolver(impls, caps, abis=executor.limits.abis, orders=dict(config.platform.kernels))
    choices = resolver.resolve(bundle.model.programs["main"], kv_dtype="f32", dtype="f32")
    executor.load(Plan("tpu", "test", (), {}, bundle.digest, (), tuple(choices)), lambda what, fraction: None)
    executor.kv_allocate(kv_plan(executor, blocks, bundle.max_model_len))
    if warm:
        executor.warm_up(lambda what, fraction: None)
    return executor
