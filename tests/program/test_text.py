"""The printable form: stable, one line per op, with everything that decides a kernel."""

from __future__ import annotations

from llmx.models.llama import build_llama
from llmx.models.registry import TensorLayout
from llmx.program.attrs import MoeSpec
from llmx.program.builder import T
from llmx.program.ops import ActKey, QuantKey
from llmx.program.text import model_text, op_text, program_text
from tests.program.tiny import empty, llama

TINY = """\
program main(%0 ids [T] i32, %1 positions [T] i32, %2 head [R] i32)
  %3 [T, 64] = embed %0 (embed_tokens 512x64 bf16)  @model.0
  %4 [T, 64] = norm %3 {kind=rms, eps=1e-05} (input_layernorm 64 bf16)  @layer.0.attn
  %5 [T, 128] = linear %4 (q_proj 64x64 bf16, k_proj 32x64 bf16, v_proj 32x64 bf16)  @layer.0.attn
  %6 [T, 4, 16], %7 [T, 2, 16], %8 [T, 2, 16] = qkv_prep %5, %1 \
{q_heads=4, kv_heads=2, head_dim=16, v_head_dim=16, norm_eps=1e-05, rope=(style=neox, rotary_dim=16, theta=10000)}  @layer.0.attn
  kv_write %7, %8 [layers.0.attn]  @layer.0.attn
  %9 [T, 64] = attention %6, %7, %8 {q_heads=4, kv_heads=2, head_dim=16, v_head_dim=16, scale=0.25} [layers.0.attn]  @layer.0.attn
  %10 [T, 64] = linear %9 (o_proj 64x64 bf16)  @layer.0.attn
  %11 [T, 64] = add %3, %10  @layer.0.attn
  %12 [T, 64] = norm %11 {kind=rms, eps=1e-05} (post_attention_layernorm 64 bf16)  @layer.0.mlp
  %13 [T, 192] = linear %12 (gate_proj 96x64 bf16, up_proj 96x64 bf16)  @layer.0.mlp
  %14 [T, 96] = act_mul %13 {kind=silu}  @layer.0.mlp
  %15 [T, 64] = linear %14 (down_proj 64x96 bf16)  @layer.0.mlp
  %16 [T, 64] = add %11, %15  @layer.0.mlp
  %17 [T, 64] = norm %16 {kind=rms, eps=1e-05} (norm 64 bf16)  @model.0
  %18 [R, 64] = rows %17, %2  @model.0
  %19 [R, 512] = linear %18 (lm_head 512x64 bf16)  @model.0
  output %19 {name=logits}  @model.0

states
  layers.0.attn: full 2 x (16 + 16), written by main
"""


def test_tiny_llama_reads_like_this() -> None:
    assert model_text(llama(num_hidden_layers=1)) == TINY


def test_storage_changes_and_ties_are_shown() -> None:
    q4 = QuantKey("q4_1", (("data", "q4_1", 32),), ActKey("i8", 32))
    config = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 32, "attention_bias": True}
    model = build_llama({**config, "tie_word_embeddings": True}, lambda name: q4, TensorLayout(rope_pairs=True))
    text = program_text(model.programs["main"])
    assert "(q_proj 64x64 q4_1 +bias permute_rows(4), k_proj 64x64 q4_1 +bias permute_rows(4), v_proj 64x64 q4_1 +bias)" in text
    assert "(lm_head 32x64 q4_1 from model.embed_tokens.weight)" in text


def test_every_op_has_one_line() -> None:
    model = llama()
    lines = program_text(model.programs["main"]).splitlines()
    assert len(lines) == 1 + len(model.programs["main"].ops)
    for op, line in zip(model.programs["main"].ops, lines[1:], strict=True):
        assert op.kind in line and line.endswith(f"@{op.region}".rstrip("."))
        assert all(f"%{v.id}" in line for v in (*op.ins, *op.outs) if v is not None)
        assert all(f"[{state}]" in line for state in op.states)


def test_many_experts_are_one_line() -> None:
    b = empty()
    b.output("y", b.moe(b.input("x", (T, 8), "act"), MoeSpec(64, 4, ffn=6), "mlp.gate", "mlp.experts"))
    line = op_text(b.build().ops[1])
    assert "gate: gate_proj 6x8 bf16 row(0) slice_rows(0,6) from mlp.experts.gate_up_proj, ... 64 in all" in line
    assert "experts=64, top_k=4, ffn=6" in line and "\n" not in line


def test_windows_and_recurrent_states_are_shown() -> None:
    model = build_llama(
        {
            "model_type": "mistral",
            "hidden_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "intermediate_size": 96,
            "vocab_size": 32,
            "sliding_window": 8,
        }
    )
    text = model_text(model)
    assert "window=8} [layers.0.attn]" in text and "layers.0.attn: sliding 4 x (16 + 16) window 8, written by main" in text
