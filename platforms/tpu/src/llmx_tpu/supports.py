"""What the kernels take: None for yes, else why not. Imports no JAX."""

from __future__ import annotations

from llmx.platform.plan import OpSpec
from llmx.program.attrs import AttentionAttrs, MlaAttrs, RecurrentAttrs

__all__ = ["attention", "mla", "pallas_attention", "recurrent"]


def attention(spec: OpSpec) -> str | None:
    """Everything but relative bias and cross attention."""
    attrs: AttentionAttrs = spec.attrs
    missing = [name for name, on in (("relative position bias", attrs.spec.relative_buckets is not None), ("cross attention", attrs.spec.cross)) if on]
    return f"not implemented: {', '.join(missing)}" if missing else None


def pallas_attention(spec: OpSpec) -> str | None:
    """Causal attention over pages, with window and soft cap."""
    attrs: AttentionAttrs = spec.attrs
    s = attrs.spec
    if not spec.kv_dtype:
        return "reads pages only, and this op has none"
    named = (
        (f"mask {s.mask}", s.mask != "causal"), ("chunk", s.chunk is not None), ("sinks", s.sinks), ("alibi", s.alibi), ("log-sum-exp", attrs.lse),
        ("relative position bias", s.relative_buckets is not None), ("cross attention", s.cross),
    )  # fmt: skip
    missing = [name for name, on in named if on]
    return f"not implemented: {', '.join(missing)}" if missing else None


def mla(spec: OpSpec) -> str | None:
    """Everything but the sparse form."""
    attrs: MlaAttrs = spec.attrs
    return None if attrs.spec.indexer_top_k is None else "not implemented: sparse attention (indexer_top_k)"


def recurrent(spec: OpSpec) -> str | None:
    """mamba1, mamba2, gated_delta and short_conv."""
    attrs: RecurrentAttrs = spec.attrs
    return "not implemented: kda" if attrs.spec.kind == "kda" else None
