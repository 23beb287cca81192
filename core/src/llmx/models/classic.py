"""What GPT-2, GPT-J and OPT share: multi-head attention of one row of q, k and v, an MLP without a gate, facts under old names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmx.errors import ModelError
from llmx.kv.spec import KVSpec
from llmx.models.fields import Fields
from llmx.models.registry import ModelFacts, facts_from
from llmx.program.attrs import AttnSpec, QkvSpec, RopeSpec
from llmx.program.builder import PartDef, ProgramBuilder
from llmx.program.ops import Value

__all__ = ["gpt_facts", "head_size", "mlp", "multi_head"]


def head_size(width: int, heads: int, fields: str) -> int:
    """Elements of a head. Raises ModelError naming both fields when the heads do not share the width."""
    if width % heads:
        raise ModelError(f"config fields {fields} are {width} and {heads}: the first must be a multiple of the second")
    return width // heads


def multi_head(
    b: ProgramBuilder, qkv: Value, positions: Value, layer: int, heads: int, head_dim: int, scale: float | None = None, rope: RopeSpec | None = None
) -> Value:
    """Attention of a qkv row [T, 3 * heads * head_dim]. scale: of the scores, None: head_dim ** -0.5."""
    q, k, v = b.qkv_prep(qkv, QkvSpec(heads, heads, head_dim, head_dim, rope=rope), None if rope is None else positions)
    state = b.state(f"layers.{layer}.attn", KVSpec("full", heads, head_dim, head_dim))
    b.kv_write(state, k, v)
    spec = AttnSpec(heads, heads, head_dim, head_dim, scale=head_dim**-0.5 if scale is None else scale)
    return b.attention(state, q, k, v, spec=spec)


def mlp(b: ProgramBuilder, h: Value, act: str, up: PartDef, down: PartDef) -> Value:
    """down(act(up(h)))."""
    return b.linear(b.act(b.linear(h, up), act), down)


def gpt_facts(config: Mapping[str, Any]) -> ModelFacts:
    """Facts of a configuration that calls its longest context n_positions."""
    return facts_from({**config, "max_position_embeddings": Fields(config).integer("n_positions")})
