"""Hooks: what this package computes for core's torch executor on a CPU. Imports neither torch nor the native library.

None of it is taken by itself, so that a platform on torch's CPU device stays the reference: the user asks, by `--kernel linear=native`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from llmx.config import EngineConfig
from llmx.errors import PlatformError
from llmx.hooks import DeviceCaps, EnvVar, ImplDef, hookimpl
from llmx.platform.plan import OpSpec
from llmx.program.attrs import AttentionAttrs
from llmx_cpu import supports
from llmx_cpu.machine import VARIABLES, option
from llmx_cpu.native import kernel_library

__all__ = ["attention", "linear", "llmx_attention_backends", "llmx_env_vars", "llmx_gemm_kernels", "onednn"]

_WHEN_ASKED = -10  # below the reference kernels
_HOST = "numpy.ops"  # values lie where this package's code can read them
_PAGES = ("f32", "bf16")
_TYPES = ("f32", "bf16", "f16")


def _impl(kind: str, provider: str, target: str, check: Callable[[OpSpec], str | None]) -> ImplDef:
    where = f"llmx_cpu.for_torch.{target}"
    return ImplDef((kind,), provider, "torch/1", where, _WHEN_ASKED, frozenset({_HOST}), frozenset({"deterministic"}), check)


@hookimpl
def llmx_attention_backends(config: EngineConfig, caps: DeviceCaps) -> list[ImplDef]:
    """Native attention over the torch executor's pages, at the level of LLMX_CPU_ISA."""
    return [_impl("attention", "native", f"native:{_level(config)}.attention", attention)] if caps.has(_HOST) else []


@hookimpl
def llmx_gemm_kernels(config: EngineConfig, caps: DeviceCaps) -> list[ImplDef]:
    """Native products, and oneDNN's through torch."""
    if not caps.has(_HOST):
        return []
    return [_impl("linear", "native", f"native:{_level(config)}.linear", linear), _impl("linear", "onednn", "onednn:Linear", onednn)]


@hookimpl
def llmx_env_vars() -> list[EnvVar]:
    """Those of the package: they stay known where another platform uses these kernels."""
    return list(VARIABLES)


def _level(config: EngineConfig) -> str:
    return option(config.platform, "LLMX_CPU_ISA") or "auto"


def linear(spec: OpSpec) -> str | None:
    """What the native executor multiplies, where its library loads."""
    return supports.linear(spec) or _library()


def attention(spec: OpSpec) -> str | None:
    """What the native executor attends to, over pages that the torch executor has."""
    attrs: AttentionAttrs = spec.attrs
    if spec.kv_dtype not in _PAGES:
        return f"pages of {spec.kv_dtype or 'nothing'}; {' and '.join(_PAGES)} are read"
    if spec.kv_dtype == "bf16" and attrs.spec.head_dim % 2:
        return f"heads of {attrs.spec.head_dim} over pages of bf16: an even size is needed"
    return supports.attention(spec) or _library()


def _library() -> str | None:
    try:
        kernel_library()
    except PlatformError as error:
        return str(error)
    return None


def onednn(spec: OpSpec) -> str | None:
    """Dense weights, multiplied in float32, where this build of torch has oneDNN."""
    other = [quant for quant in spec.quants if quant not in _TYPES]
    if other:
        return f"weights of {', '.join(other)} ({', '.join(_TYPES)} are multiplied, in float32)"
    torch = sys.modules.get("torch")  # whoever asks runs on it
    if torch is None or not torch.backends.mkldnn.is_available():
        return "torch is not imported" if torch is None else f"torch {torch.__version__} was built without oneDNN"
    return None if hasattr(torch.ops.mkldnn, "_reorder_linear_weight") else f"torch {torch.__version__} cannot pack weights for oneDNN"
