"""Which specs the native kernels compute: None for yes, otherwise why not. Asked by the resolver, never per step."""

from __future__ import annotations

from llmx.executor.op_weights import AS_BLOCKS
from llmx.platform.plan import OpSpec
from llmx.program.attrs import ActAttrs, AttentionAttrs, EmbedAttrs, QkvAttrs, RopeSpec
from llmx_cpu.native import WEIGHT_TYPES

__all__ = ["act", "attention", "dense", "embed", "fused", "kv", "linear", "qkv", "rope"]

_MAX_HEAD_DIM = 1024  # csrc/attention_plan.h
_DENSE = ("f32", "f16", "bf16")


def linear(spec: OpSpec) -> str | None:
    """Storages that can be packed; quantised rows must be whole blocks of 32."""
    unknown = [q for q in spec.quants if AS_BLOCKS.get(q, q) not in WEIGHT_TYPES and q not in _DENSE]
    if unknown:
        return f"no kernel for weights stored as {', '.join(unknown)}; there are kernels for {', '.join((*WEIGHT_TYPES, *AS_BLOCKS))}"
    if spec.cols % 32 and any(q not in _DENSE for q in spec.quants):
        return f"{spec.cols} input columns are not a multiple of 32"
    return None


def embed(spec: OpSpec) -> str | None:
    """Tables that hold every id."""
    attrs: EmbedAttrs = spec.attrs
    return linear(spec) if attrs.outside is None else f"ids past the table's end (outside={attrs.outside}) are not implemented"


def dense(spec: OpSpec) -> str | None:
    """Weights that are vectors: unquantised."""
    unknown = [q for q in spec.quants if q not in _DENSE]
    return f"weights stored as {', '.join(unknown)}; {', '.join(_DENSE)} are read here" if unknown else None


def act(spec: OpSpec) -> str | None:
    """All activations, without sparsity."""
    attrs: ActAttrs = spec.attrs
    return "activation sparsity is not implemented" if attrs.sparsity else None


def rope(spec: OpSpec) -> str | None:
    """One row of positions."""
    return _rope(spec.attrs.spec)


def qkv(spec: OpSpec) -> str | None:
    """Everything but several rows of positions."""
    attrs: QkvAttrs = spec.attrs
    return dense(spec) or (None if attrs.spec.rope is None else _rope(attrs.spec.rope))


def kv(spec: OpSpec) -> str | None:
    """Pages of bf16, f32 or int8."""
    return None if spec.kv_dtype in ("bf16", "f32", "i8") else f"pages of {spec.kv_dtype}; bf16, f32 and i8 are implemented"


def attention(spec: OpSpec) -> str | None:
    """Causal attention over pages: any grouping of heads, window, soft cap, sinks, alibi. Bidirectional: without window and alibi."""
    attrs: AttentionAttrs = spec.attrs
    s = attrs.spec
    missing = [
        name
        for name, present in (
            (f"mask {s.mask}", s.mask not in ("causal", "bidirectional")),
            ("a window over a bidirectional mask", s.mask == "bidirectional" and s.window is not None),
            ("alibi over a bidirectional mask", s.mask == "bidirectional" and s.alibi),
            ("chunked attention", s.chunk is not None),
            ("relative position bias", s.relative_buckets is not None),
            ("cross attention", s.cross),
            ("log-sum-exp output", attrs.lse),
            ("attention without pages", not spec.kv_dtype),
        )
        if present
    ]
    if missing:
        return f"not implemented: {', '.join(missing)}"
    if s.head_dim % 2 or not max(s.head_dim, s.v_head_dim) <= _MAX_HEAD_DIM:
        return f"head sizes {s.head_dim} and {s.v_head_dim}: even and at most {_MAX_HEAD_DIM} are implemented"
    return kv(spec)


def fused(specs: tuple[OpSpec, ...]) -> str | None:
    """A run of norm, linear, act_mul and add: what each alone supports."""
    checks = {"linear": linear, "norm": dense, "act_mul": act}
    reasons = [f"{spec.kind}: {why}" for spec in specs if spec.kind in checks and (why := checks[spec.kind](spec))]
    return "; ".join(reasons) or None


def _rope(spec: RopeSpec) -> str | None:
    return "rope over several rows of positions (mrope) is not implemented" if spec.mrope_sections else None
