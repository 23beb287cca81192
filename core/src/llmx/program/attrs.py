"""Attributes of ops: frozen, hashable, complete. An executor sees nothing of a model but these and the shapes.

Shape letters: T tokens, N requests, R head rows, H query heads, K kv heads, D head size, V value head size, E experts.
"""

from __future__ import annotations

from typing import Literal

from llmx.record import record

__all__ = [
    "ActAttrs",
    "AttentionAttrs",
    "AttnSpec",
    "CollectiveAttrs",
    "ConvAttrs",
    "EmbedAttrs",
    "HfModuleAttrs",
    "LinearAttrs",
    "MlaAttrs",
    "MlaSpec",
    "MoeAttrs",
    "MoeSpec",
    "NoAttrs",
    "NormAttrs",
    "OutputAttrs",
    "PoolAttrs",
    "PosEmbedAttrs",
    "PositionScaleAttrs",
    "QkvAttrs",
    "QkvSpec",
    "RecurrentAttrs",
    "RecurrentSpec",
    "ReduceAttrs",
    "RopeAttrs",
    "RopeSpec",
    "ScalarAttrs",
    "SplitAttrs",
    "ViewAttrs",
]


@record
class NoAttrs:
    """Nothing to say: add, mul, take, rows."""


@record
class EmbedAttrs:
    """embed: rows of a table. scale multiplies the row (Gemma: sqrt(hidden)), rounded to f32. outside: the row that ids past the
    table's end read (a table smaller than the vocabulary); None: there are none.
    """

    scale: float = 1.0
    outside: int | None = None


@record
class PosEmbedAttrs:
    """pos_embed: row (position + offset) of a learned or sinusoidal table, added by a separate `add`."""

    offset: int = 0


@record
class NormAttrs:
    """norm over the last axis. y = x / rms(x) * (weight + offset) for rms; layer subtracts the mean. Both may add a bias.

    groups: the axis is cut into this many equal parts, each normalised alone. gated: a second input z; y = norm(x) * silu(z)
    when gate_after, norm(x * silu(z)) otherwise. No weight role: scale 1. eps_floor: max(mean, eps) stands for mean + eps.
    """

    kind: Literal["rms", "layer", "l2"]
    eps: float
    offset: float = 0.0
    groups: int = 1
    gated: bool = False
    gate_after: bool = False
    eps_floor: bool = False


@record
class LinearAttrs:
    """linear: the concatenation over its Parts of W x (+ LoRA) + b. Everything is said by the Parts."""


@record
class RopeSpec:
    """Rotary position embedding of the first rotary_dim elements of a head.

    style neox: pairs (i, i + rotary_dim / 2); gptj: pairs (2i, 2i + 1). theta: base of the inverse frequencies
    theta ** (-2i / rotary_dim). scaling: none, linear, dynamic, yarn, llama3, longrope; mrope sections go beside any of them.
    params: sorted (name, value) pairs named as in Hugging Face `rope_parameters`; lists become tuples. mrope_sections: how many
    frequencies each row of positions [len(sections), T] drives, in order, or dealt in turn when mrope_interleaved. axial: each
    section restarts its own frequencies theta ** (-2i / (2 * section)) (vision towers: one section per image axis).
    dynamic and longrope read the engine's max_model_len as the sequence length, so a row never depends on its neighbours.
    """

    style: Literal["neox", "gptj"]
    rotary_dim: int
    theta: float
    scaling: Literal["none", "linear", "dynamic", "yarn", "llama3", "longrope"] = "none"
    params: tuple[tuple[str, float | int | bool | tuple[float, ...]], ...] = ()
    mrope_sections: tuple[int, ...] = ()
    mrope_interleaved: bool = False
    axial: bool = False


@record
class QkvSpec:
    """Everything between a qkv projection and attention.

    The input row is q [H*D (* 2 when gate: per head q then gate)], k [K*D], v [K*V] in that order; a part may be absent.
    Order: split, clip (+-clip), q/k norm if qk_norm_before_rope, rope, q/k norm otherwise, q scale by position.
    qk_norm: head (weight [D], per head) or full (weight [H*D] and [K*D], over the whole width); qk_norm_kind: rms or l2 or
    layer. v_norm: v is normalised too, without weight (Gemma 3n).
    q_position_scale: (scale, floor) q *= 1 + scale * log(1 + floor((pos + 1) / floor)), Llama 4; None: off.
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    has_q: bool = True
    has_kv: bool = True
    gate: bool = False
    clip: float | None = None
    qk_norm: Literal["none", "head", "full"] = "none"
    qk_norm_kind: Literal["rms", "layer", "l2"] = "rms"
    norm_eps: float = 1e-6
    norm_offset: float = 0.0
    qk_norm_before_rope: bool = True
    v_norm: bool = False
    rope: RopeSpec | None = None
    q_position_scale: tuple[float, float] | None = None


@record
class QkvAttrs:
    """qkv_prep."""

    spec: QkvSpec


@record
class RopeAttrs:
    """rope as a primitive: x [T, heads, D]."""

    spec: RopeSpec
    heads: int
    head_dim: int


@record
class AttnSpec:
    """What one attention computes: softmax(scale * q k^T, capped and masked) v over the pages of its State.

    mask: causal; bidirectional (whole request); prefix (bidirectional over the prompt prefix, then causal); block
    (bidirectional inside blocks of `chunk` rows or, with chunk None, among rows of equal `segments`, a fourth input [rows] i32).
    window: key j is seen by query i when i - j < window. chunk: keys of the same chunk only. soft_cap: c * tanh(s / c).
    sinks: one extra logit per head (role "sinks"). alibi: slope per head from H. relative_buckets: bucketed relative bias
    (role "relative_bias") with that many buckets. cross: the keys are another sequence's (an encoder's), all of them seen.
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    scale: float
    mask: Literal["causal", "bidirectional", "prefix", "block"] = "causal"
    window: int | None = None
    chunk: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    alibi: bool = False
    relative_buckets: int | None = None
    cross: bool = False


@record
class AttentionAttrs:
    """attention. lse: also return the log-sum-exp [T, H] f32."""

    spec: AttnSpec
    lse: bool = False


@record
class MlaSpec:
    """Latent attention (DeepSeek). q heads of qk_nope + qk_rope; the page holds c_kv [kv_lora] and k_pe [qk_rope]."""

    q_heads: int
    kv_lora: int
    qk_nope: int
    qk_rope: int
    v_head_dim: int
    scale: float
    rope: RopeSpec
    indexer_top_k: int | None = None


@record
class MlaAttrs:
    """mla. rope is applied inside to q's last qk_rope elements and to k_pe; absorption is the kernel's business."""

    spec: MlaSpec
    lse: bool = False


@record
class RecurrentSpec:
    """A recurrent mixer. dims: sorted (name, size) pairs that the kind documents in llmx.program.kinds."""

    kind: Literal["mamba1", "mamba2", "gated_delta", "kda", "short_conv"]
    dims: tuple[tuple[str, int], ...]
    eps: float = 0.0
    limits: tuple[float, ...] = ()  # e.g. the dt range (low, high)


@record
class RecurrentAttrs:
    """recurrent."""

    spec: RecurrentSpec


@record
class MoeSpec:
    """Routing and experts. Router in f32, ties to the lowest id.

    score: softmax or sigmoid of the router logits; groups: experts are cut into groups and the best top_groups (by the sum of
    their two best scores, correction bias added) are kept; normalize: kept weights sum to 1; scale multiplies them.
    """

    experts: int
    top_k: int
    score: Literal["softmax", "sigmoid"] = "softmax"
    groups: int = 1
    top_groups: int = 1
    normalize: bool = True
    scale: float = 1.0
    act: str = "silu"
    ffn: int = 0


@record
class MoeAttrs:
    """moe_route and moe_experts."""

    spec: MoeSpec


@record
class ActAttrs:
    """act(x) and act_mul(x = [gate, up]) = act(gate) * up. sparsity: Gemma 3n's Gaussian top-k share, 0 off."""

    kind: Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu", "tanh", "sigmoid"]
    sparsity: float = 0.0


@record
class ScalarAttrs:
    """scale (x * value), softcap (value * tanh(x / value)), clip (min(max(x, -value), value))."""

    value: float


@record
class PositionScaleAttrs:
    """position_scale: x * (1 + scale * log(1 + floor((position + 1) / floor))), f32."""

    scale: float
    floor: float


@record
class ReduceAttrs:
    """reduce over one axis (-1 or -2), which stays with size 1: mean, sum or rms (root of the mean square)."""

    kind: Literal["mean", "sum", "rms"]
    axis: Literal[-1, -2] = -1


@record
class SplitAttrs:
    """split of the last axis into `sizes`; concat of the last axis."""

    sizes: tuple[int, ...] = ()


@record
class ViewAttrs:
    """view: the same elements in another shape; the leading symbolic axis is kept or divided."""

    shape: tuple[object, ...]


@record
class ConvAttrs:
    """conv1d over the token axis of an encoder input. Same padding as (kernel - 1) / 2; T -> T // stride."""

    channels: int
    kernel: int
    stride: int = 1


@record
class PoolAttrs:
    """pool: one row per request. kind mean, cls (first), last, or all (every row stays)."""

    kind: Literal["mean", "cls", "last", "all"]
    normalize: bool = False


@record
class OutputAttrs:
    """output: names a result ("logits", "hidden.3", "pooled")."""

    name: str


@record
class CollectiveAttrs:
    """collective, put in by the parallel pass. axis: of the mesh, `size` its ranks; gather and scatter act on the last axis of x.

    reduce_scatter and all_to_all have a shape rule, and no kernel yet.
    """

    op: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
    axis: str
    size: int = 1


@record
class HfModuleAttrs:
    """hf_module: an opaque module of another library, given an `attend(state, q, k, v)` callable.

    specs: what each State's attention computes. outputs: (shape, dtype) of each result; nothing else tells them.
    """

    module: str
    specs: tuple[tuple[str, AttnSpec], ...]
    outputs: tuple[tuple[tuple[object, ...], str], ...] = ()
