"""Kernels in Triton, run by Triton's interpreter on CPU tensors, each against numpy at odd shapes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from llmx.platform import OpSpec  # noqa: E402
from llmx.program.attrs import ActAttrs, AttentionAttrs, AttnSpec, MlaAttrs, MlaSpec, MoeAttrs, MoeSpec, NormAttrs, QkvAttrs, QkvSpec, RopeSpec  # noqa: E402
from llmx_triton import supports  # noqa: E402

QUICK = ("providers", "no interpreter", "norm rms with a floor", "norm rms of 131", "act_mul", "linear 33x64 q4_0", "linear 33x64 q4_1", "linear 97x96 q8_0")
QUICK += ("linear 33x64 int4z_g32", "linear 97x128 int4_g128", "linear 33x64 int8_g64", "mla", "experts f32", "experts bf16 of one", "gptq checkpoint")
QUICK += ("fp8 pages", "awq checkpoint", "eight bits 33x64 q8_0", "eight bits 97x128 int8_g64", "eight bits in a model")
GRAPHS = ("one graph",)
LONG = (
    *(f"norm rms of {width}" for width in (1, 7, 33, 64)),
    *(f"linear {shape} {scheme}" for shape in ("1x32", "257x160") for scheme in ("q4_0", "q4_1", "q8_0")),
    *(f"linear {shape} {name}_g{group}" for shape in ("97x128", "1x256") for name in ("int4", "int4z", "int8") for group in (32, 64, 128)),
    "eight bits 1x256 int8_g128",
    "eight bits 257x160 int8_g32",
    "experts f16",
    "deepseek-v3",
    *(f"qkv {name}" for name in ("plain", "pairs, part of the head", "no rope", "norm per head")),
    *(f"attention {name}" for name in ("causal", "three heads to one", "soft cap", "window", "window over full pages", "sinks", "chunks", "wide v")),
    *(f"attention {name}" for name in ("8/1 heads of 64", "2/2 heads of 128", "4/2 heads of 80", "3/3 heads of 16")),
)


def run(names: tuple[str, ...], graphs: str, timeout: int) -> dict[str, str]:
    """Name of a check -> what went wrong, empty when nothing did."""
    environ = {**os.environ, "TRITON_INTERPRET": "1", "LLMX_CUDA_KERNELS": "on", "LLMX_CUDA_GRAPHS": graphs, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "tests.triton.checks", *names], env=environ, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        found |= json.loads(line)
    assert list(found) == list(names)
    return found


def test_ops_equal_numpy() -> None:
    failed = {name: why for name, why in run(QUICK, "off", 250).items() if why}
    assert not failed, "\n".join(f"{name}: {why}" for name, why in failed.items())


def test_a_step_is_one_graph() -> None:
    """Every kernel of a llama, prompts and decode steps, recorded and replayed."""
    assert run(GRAPHS, "auto", 250) == {"one graph": ""}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_more_shapes_equal_numpy() -> None:
    failed = {name: why for name, why in run(LONG, "off", 1700).items() if why}
    assert not failed, "\n".join(f"{name}: {why}" for name, why in failed.items())


ROPE = RopeSpec("neox", 16, 10000.0)
PLAIN = AttnSpec(4, 2, 16, 16, 0.25)
LATENT = MlaSpec(16, 512, 128, 64, 128, 0.07, RopeSpec("gptj", 64, 10000.0))
REFUSED = (
    (supports.norm, "norm", NormAttrs("layer", 1e-5), "layer norm"),
    (supports.norm, "norm", NormAttrs("rms", 1e-5, groups=2), "groups"),
    (supports.norm, "norm", NormAttrs("rms", 1e-5, gated=True), "a gate"),
    (supports.act_mul, "act_mul", ActAttrs("tanh"), "tanh"),
    (supports.act_mul, "act_mul", ActAttrs("silu", 0.5), "sparsity"),
    (supports.qkv_prep, "qkv_prep", QkvAttrs(QkvSpec(4, 2, 16, 16, gate=True)), "gates"),
    (supports.qkv_prep, "qkv_prep", QkvAttrs(QkvSpec(4, 2, 16, 16, qk_norm="full")), "norm over the full width"),
    (supports.qkv_prep, "qkv_prep", QkvAttrs(QkvSpec(4, 2, 512, 16)), "heads of 512 (up to 256)"),
    (supports.attention, "attention", AttentionAttrs(PLAIN, True), "log-sum-exp as a result"),
    (supports.mla, "mla", MlaAttrs(LATENT, True), "log-sum-exp as a result"),
    (supports.mla, "mla", MlaAttrs(replace(LATENT, indexer_top_k=4)), "a choice of keys by an indexer"),
    (supports.mla, "mla", MlaAttrs(replace(LATENT, kv_lora=1024)), "latent rows of 1088 (up to 640)"),
    (supports.moe_experts, "moe_experts", MoeAttrs(MoeSpec(8, 2, act="relu2", ffn=32)), "relu2"),
    (supports.attention, "attention", AttentionAttrs(AttnSpec(4, 2, 16, 16, 0.25, alibi=True)), "alibi"),
    (supports.attention, "attention", AttentionAttrs(AttnSpec(4, 2, 16, 16, 0.25, mask="prefix")), "the mask prefix"),
)


@pytest.mark.parametrize(("supported", "kind", "attrs", "reason"), REFUSED)
def test_what_is_not_taken_has_its_reason(supported: object, kind: str, attrs: object, reason: str) -> None:
    assert supported(OpSpec(kind, attrs, kv_dtype="bf16")) == f"not implemented: {reason}"  # type: ignore[operator]


def test_what_is_taken() -> None:
    assert supports.qkv_prep(OpSpec("qkv_prep", QkvAttrs(QkvSpec(4, 2, 16, 16, rope=ROPE)))) is None
    assert supports.attention(OpSpec("attention", AttentionAttrs(PLAIN), kv_dtype="f32")) is None
    assert "without pages" in str(supports.attention(OpSpec("attention", AttentionAttrs(PLAIN))))
    assert supports.mla(OpSpec("mla", MlaAttrs(LATENT))) is None
    experts = MoeAttrs(MoeSpec(8, 2, ffn=32))
    assert supports.moe_experts(OpSpec("moe_experts", experts, ("bf16",))) is None
    assert "experts stored as q4_0" in str(supports.moe_experts(OpSpec("moe_experts", experts, ("q4_0",))))
    assert "several formats (f16, f32)" in str(supports.moe_experts(OpSpec("moe_experts", experts, ("f16", "f32"))))
    assert supports.linear(OpSpec("linear", None, ("q4_1", "int4z_g64", "q8_0"))) is None
    assert "bf16" in str(supports.linear(OpSpec("linear", None, ("q4_1", "bf16"))))
    assert supports.eight_bits(OpSpec("linear", None, ("int8_g64", "q8_0"), dtype="auto")) is None
    assert "weights of q4_1" in str(supports.eight_bits(OpSpec("linear", None, ("q4_1",), dtype="auto")))
    assert "values of float32" in str(supports.eight_bits(OpSpec("linear", None, ("q8_0",))))
