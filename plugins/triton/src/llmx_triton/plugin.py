"""Hooks: what kernels there are. Imports neither torch nor triton."""

from __future__ import annotations

from llmx.config import EngineConfig
from llmx.hooks import DeviceCaps, ImplDef, hookimpl

__all__ = ["llmx_attention_backends", "llmx_gemm_kernels", "llmx_op_kernels"]


def _impl(kind: str, target: str, supports: str | None, provider: str = "triton", priority: int = 30) -> ImplDef:
    return ImplDef(
        kinds=(kind,),
        provider=provider,
        abi="torch/1",
        target=f"llmx_triton.{target}",
        priority=priority,
        requires=frozenset({"kernels.tiles"}),
        tags=frozenset({"deterministic", "graph_safe"}),
        supports=None if supports is None else f"llmx_triton.supports:{supports}",
    )


@hookimpl
def llmx_attention_backends(config: EngineConfig, caps: DeviceCaps) -> list[ImplDef]:
    """qkv_prep, kv_write, and attention over pages of keys and values or of latent rows."""
    return [
        _impl("qkv_prep", "qkv:QkvPrep", "qkv_prep"),
        _impl("kv_write", "kv_write:KvWrite", None),
        _impl("attention", "attention:Attention", "attention"),
        _impl("mla", "latent:Latent", "mla"),
    ]


@hookimpl
def llmx_gemm_kernels(config: EngineConfig, caps: DeviceCaps) -> list[ImplDef]:
    """Products with weights of 8 and 4 bits, and of the experts of a mixture."""
    return [
        _impl("linear", "gemm:Linear", "linear"),
        _impl("linear", "gemm:EightBits", "eight_bits", "triton.w8a8", 20),  # rounds what comes in: only where the user puts it first
        _impl("moe_experts", "experts:Experts", "moe_experts"),
    ]


@hookimpl
def llmx_op_kernels(config: EngineConfig, caps: DeviceCaps) -> list[ImplDef]:
    """norm and act_mul."""
    return [_impl("norm", "rowwise:Norm", "norm"), _impl("act_mul", "rowwise:ActMul", "act_mul")]
