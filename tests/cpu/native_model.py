"""A native executor over small models in memory; the models and the driver are core's (llmx.testing)."""

from __future__ import annotations

from llmx.config import CacheConfig, EngineConfig, ModelConfig, PlatformConfig, SchedulerConfig
from llmx.executor import GroupPlan, KVPlan, ModelBundle
from llmx.platform.kernels import KernelResolver
from llmx.platform.plan import Plan
from llmx.testing import TINY, Driver, MemorySource, bundle_of, tiny_llama
from llmx_cpu import plugin
from llmx_cpu.executor import NativeExecutor

__all__ = ["TINY", "Driver", "MemorySource", "bundle_of", "config_for", "native_executor", "tiny_llama"]


def config_for(
    dtype: str = "auto",
    threads: int = 1,
    isa: str = "auto",
    fuse: bool = True,
    act: str = "auto",
    kv: str = "auto",
    max_tokens: int = 256,
    seqs: int = 40,
) -> EngineConfig:
    """An engine configuration for the CPU platform."""
    options = (("LLMX_CPU_ISA", isa), ("LLMX_CPU_FUSE", str(int(fuse))), ("LLMX_CPU_ACT", act))
    return EngineConfig(
        model=ModelConfig(dtype=dtype),
        cache=CacheConfig(kv_dtype=kv),
        scheduler=SchedulerConfig(max_num_batched_tokens=max_tokens, max_num_seqs=seqs),
        platform=PlatformConfig(threads=threads, options=options),
    )


def native_executor(bundle: ModelBundle, config: EngineConfig, blocks: int = 800) -> NativeExecutor:
    """A loaded executor with pages. The plan is resolved by core's resolver from the plugin's own offers."""
    caps = plugin.llmx_device_caps(config)
    executor = NativeExecutor(config, caps, bundle)
    offers = [*plugin.llmx_attention_backends(config, caps), *plugin.llmx_gemm_kernels(config, caps), *plugin.llmx_op_kernels(config, caps)]
    resolver = KernelResolver(offers, caps, abis=executor.limits.abis)
    kv_dtype = executor.kv_needs()[0].dtype if bundle.model.states else "f32"
    choices = resolver.resolve(bundle.model.programs["main"], kv_dtype=kv_dtype, dtype="f32")
    plan = Plan("cpu", "test", (), {}, bundle.digest, (), tuple(choices))
    executor.load(plan, lambda what, fraction: None)
    executor.kv_allocate(KVPlan(tuple(GroupPlan(need, blocks) for need in executor.kv_needs()), executor.limits.max_requests, bundle.max_model_len))
    return executor
