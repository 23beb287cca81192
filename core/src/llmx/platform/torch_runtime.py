"""What core adds for a platform that gives a torch device and no executor of its own: the torch executor and its reference kernels.

torch itself is imported through targets only, when such a platform was chosen.
"""

from __future__ import annotations

from typing import Any

from llmx.config import EngineConfig
from llmx.errors import PlatformError
from llmx.executor.base import Executor
from llmx.executor.bundle import ModelBundle
from llmx.hooks.devices import NO_PARTS, DeviceParts
from llmx.hooks.loader import load_target
from llmx.hooks.types import DeviceCaps, ImplDef
from llmx.platform.plan import OpSpec
from llmx.program.attrs import AttentionAttrs, MlaAttrs, RecurrentAttrs

__all__ = ["INSTALL_TORCH", "load_torch", "reference_kernels", "torch_executor"]

INSTALL_TORCH = 'pip install "llmx-core[torch]"'

_ROOT = "llmx.executor.torch"
_ATTENTION = ("rope", "position_scale", "qkv_prep", "kv_write", "attention", "mla")
_BASIC = (
    "embed", "pos_embed", "take", "linear", "norm", "act", "act_mul", "add", "mul", "mix", "reduce", "softmax", "scale", "softcap", "clip",
    "split", "concat", "view", "pool", "output",
)  # fmt: skip
_TARGETS: dict[str, str] = {
    **{kind: f"basic:{kind}" for kind in _BASIC},
    **{kind: f"attention:{kind}" for kind in _ATTENTION},
    "rows": "basic:take",
    "moe_route": "moe:moe_route",
    "moe_experts": "moe:moe_experts",
    "recurrent": "recurrent:recurrent",
    "collective": "collectives:collective",
}
_HOST = ("pool", "kv_write", "attention", "mla", "moe_route", "moe_experts", "recurrent", "collective")  # look at requests, or at values, on the host
_CHECKED = ("attention", "mla", "recurrent")  # kinds that have a function below


def load_torch(target: str) -> Any:
    """The object below llmx.executor.torch that `target` names. Raises PlatformError with the command when torch is not installed."""
    try:
        return load_target(f"{_ROOT}.{target}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "torch":
            raise
        raise PlatformError(f"this platform runs on torch, which is not installed: {INSTALL_TORCH}") from error


def torch_executor(config: EngineConfig, caps: DeviceCaps, bundle: ModelBundle, device: str, parts: DeviceParts = NO_PARTS) -> Executor:
    """Core's torch executor on a torch device ("cpu", or whatever torch calls it). parts: what else the platform gives."""
    executor: Executor = load_torch("executor:TorchExecutor")(config, caps, bundle, device, parts)
    return executor


def reference_kernels() -> list[ImplDef]:
    """One kernel of abi torch/1 per op kind, of priority 0: any other that fits comes first."""
    return [
        ImplDef(
            (kind,),
            "torch.reference",
            "torch/1",
            f"{_ROOT}.kernels.{target}",
            priority=0,
            tags=frozenset({"deterministic"} if kind in _HOST else {"deterministic", "graph_safe"}),
            supports=f"{__name__}:{kind}" if kind in _CHECKED else None,
        )
        for kind, target in _TARGETS.items()
    ]


def attention(spec: OpSpec) -> str | None:
    """Everything but relative bias and cross attention."""
    attrs: AttentionAttrs = spec.attrs
    missing = [name for name, on in (("relative position bias", attrs.spec.relative_buckets is not None), ("cross attention", attrs.spec.cross)) if on]
    return f"not implemented: {', '.join(missing)}" if missing else None


def mla(spec: OpSpec) -> str | None:
    """Everything but the sparse form."""
    attrs: MlaAttrs = spec.attrs
    return None if attrs.spec.indexer_top_k is None else "not implemented: sparse attention (indexer_top_k)"


def recurrent(spec: OpSpec) -> str | None:
    """mamba1, mamba2, gated_delta and short_conv."""
    attrs: RecurrentAttrs = spec.attrs
    return "not implemented: kda" if attrs.spec.kind == "kda" else None
