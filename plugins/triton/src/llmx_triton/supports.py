"""What each kernel takes, and why not. Imports neither torch nor triton."""

from __future__ import annotations

from llmx.platform import OpSpec
from llmx.program.attrs import ActAttrs, AttentionAttrs, MlaAttrs, MoeAttrs, NormAttrs, QkvAttrs, QkvSpec

__all__ = ["ACTIVATIONS", "DENSE", "EIGHT_BITS", "FORMATS", "act_mul", "attention", "eight_bits", "linear", "mla", "moe_experts", "norm", "qkv_prep"]

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
FORMATS = ("q8_0", "q4_0", "q4_1", *(f"{name}_g{group}" for name in ("int4", "int4z", "int8") for group in (32, 64, 128)))
EIGHT_BITS = tuple(name for name in FORMATS if name.startswith(("q8", "int8")))
DENSE = ("f32", "bf16", "f16")
_WIDEST = 16384  # elements of a row that one program holds
_LARGEST_HEAD = 256
_LARGEST_LATENT = 640  # elements of a page's row: DeepSeek-V3 has 576


def _refused(*reasons: tuple[bool, str]) -> str | None:
    found = [reason for applies, reason in reasons if applies]
    return f"not implemented: {', '.join(found)}" if found else None


def norm(spec: OpSpec) -> str | None:
    """rms over the whole row."""
    a: NormAttrs = spec.attrs
    wide = spec.rows > _WIDEST, f"rows of {spec.rows} (up to {_WIDEST})"
    return _refused((a.kind != "rms", f"{a.kind} norm"), (a.groups != 1, "groups"), (a.gated, "a gate"), (spec.bias, "a bias"), wide)


def act_mul(spec: OpSpec) -> str | None:
    """Four activations, without sparsity."""
    a: ActAttrs = spec.attrs
    return _refused((a.kind not in ACTIVATIONS, a.kind), (bool(a.sparsity), "sparsity"))


def qkv_prep(spec: OpSpec) -> str | None:
    """Split, norm per head before rope, rope."""
    s = _qkv(spec)
    rope = s.rope
    return _refused(
        (not (s.has_q and s.has_kv), "q alone, or k and v alone"),
        (s.gate, "gates"),
        (s.clip is not None, "clipping"),
        (s.qk_norm == "full", "norm over the full width"),
        (s.qk_norm != "none" and s.qk_norm_kind != "rms", f"{s.qk_norm_kind} norm"),
        (s.qk_norm != "none" and not s.qk_norm_before_rope, "norm after rope"),
        (s.v_norm, "norm of v"),
        (s.q_position_scale is not None, "scaling by position"),
        (rope is not None and bool(rope.mrope_sections), "several rows of positions"),
        (max(s.head_dim, s.v_head_dim) > _LARGEST_HEAD, f"heads of {max(s.head_dim, s.v_head_dim)} (up to {_LARGEST_HEAD})"),
    )


def _qkv(spec: OpSpec) -> QkvSpec:
    attrs: QkvAttrs = spec.attrs
    return attrs.spec


def attention(spec: OpSpec) -> str | None:
    """Over pages; causal, or a whole request."""
    attrs: AttentionAttrs = spec.attrs
    s = attrs.spec
    return _refused(
        (not spec.kv_dtype, "attention without pages"),
        (s.mask not in ("causal", "bidirectional"), f"the mask {s.mask}"),
        (s.alibi, "alibi"),
        (s.relative_buckets is not None, "relative position bias"),
        (s.cross, "cross attention"),
        (attrs.lse, "log-sum-exp as a result"),
        (max(s.head_dim, s.v_head_dim) > _LARGEST_HEAD, f"heads of {max(s.head_dim, s.v_head_dim)} (up to {_LARGEST_HEAD})"),
    )


def linear(spec: OpSpec) -> str | None:
    """Weights of 8 and 4 bits, in blocks of 32 and in groups."""
    other = [quant for quant in spec.quants if quant not in FORMATS]
    return _refused((bool(other), f"weights of {', '.join(other)} (there are {', '.join(FORMATS)})"))


def eight_bits(spec: OpSpec) -> str | None:
    """int8 weights, and rows that may be rounded to int8."""
    other = [quant for quant in spec.quants if quant not in EIGHT_BITS]
    return _refused(
        (bool(other), f"weights of {', '.join(other)} (there are {', '.join(EIGHT_BITS)})"),
        (spec.dtype == "f32", "values of float32 (--dtype float32); it rounds them to 8 bits"),
    )


def mla(spec: OpSpec) -> str | None:
    """Latent attention over pages."""
    attrs: MlaAttrs = spec.attrs
    s = attrs.spec
    wide = s.kv_lora + s.qk_rope
    return _refused(
        (s.indexer_top_k is not None, "a choice of keys by an indexer"),
        (attrs.lse, "log-sum-exp as a result"),
        (bool(s.rope.mrope_sections), "several rows of positions"),
        (wide > _LARGEST_LATENT, f"latent rows of {wide} (up to {_LARGEST_LATENT})"),
    )


def moe_experts(spec: OpSpec) -> str | None:
    """Experts with dense weights of one format."""
    attrs: MoeAttrs = spec.attrs
    other = [quant for quant in spec.quants if quant not in DENSE]
    return _refused(
        (attrs.spec.act not in ACTIVATIONS, attrs.spec.act),
        (bool(other), f"experts stored as {', '.join(other)} (there are {', '.join(DENSE)})"),
        (not other and len(spec.quants) > 1, f"experts of several formats ({', '.join(spec.quants)})"),
    )
