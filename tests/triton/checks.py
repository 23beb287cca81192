"""Runs in a process of its own, which Triton's interpreter wants to know before Triton is imported: checks by name, a JSON object on each line.

Each op goes through the executor that serves, on the emulated platform cuda, and is compared with the numpy reading of Programs.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from llmx.config import ModelConfig
from llmx.executor import Control, Executor, ModelBundle
from llmx.kv.spec import KVSpec
from llmx.models.load import load_model
from llmx.program.attrs import AttnSpec, MlaAttrs, MlaSpec, MoeAttrs, MoeSpec, RopeSpec
from llmx.program.builder import ProgramBuilder, part
from llmx.program.ops import Part, Value
from llmx.testing import Driver, MemorySource, logits_of, tiny_llama
from llmx.testing.conformance.graphs import _compare
from llmx.testing.conformance.op_programs import op_model
from llmx.testing.conformance.ops import _cases, run_case
from llmx.testing.conformance.subject import Subject
from llmx.testing.op_cases import attention_width, attention_write
from llmx.weights.quant import dequantize, quantize
from llmx.weights.safetensors import SafetensorsSource
from llmx_triton.supports import FORMATS
from tests.grouped_checkpoints import write_grouped

KINDS = {"norm", "act_mul", "linear", "qkv_prep", "kv_write", "attention"}
SINKS = AttnSpec(4, 2, 16, 16, 0.3, sinks=True)
CHUNKS = AttnSpec(4, 4, 16, 16, 0.3, chunk=11)
WIDE = AttnSpec(6, 2, 24, 40, 0.2)
LATENT = MlaSpec(3, 20, 10, 6, 12, 0.25, RopeSpec("gptj", 6, 100.0))
MIXTURES = {
    "f32": (MoeSpec(7, 3, ffn=20), 24, "f32", True),
    "bf16 of one": (MoeSpec(1, 1, act="gelu", ffn=33), 8, "bf16", False),
    "f16": (MoeSpec(40, 2, ffn=65), 40, "f16", False),
}

EIGHT = ((33, 64, "q8_0"), (97, 128, "int8_g64"), (1, 256, "int8_g128"), (257, 160, "int8_g32"))


def _providers(subject: Subject) -> None:
    """The kernels are taken for a quantised llama; what they do not take goes to the reference, with the reason."""
    chosen = {choice.resolution.kinds[0]: choice.resolution for choice in subject.choices(tiny_llama("q4_1", "q8_0"))}
    assert {kind for kind, one in chosen.items() if one.provider == "triton"} == KINDS
    grouped = {choice.resolution.kinds[0]: choice.resolution for choice in subject.choices(tiny_llama("int4z_g32", "int4z_g32"))}
    assert {kind for kind, one in grouped.items() if one.provider == "triton"} == KINDS
    plain = {choice.resolution.kinds[0]: choice.resolution for choice in subject.choices(tiny_llama())}
    assert plain["linear"].provider == "torch.reference"
    assert ("triton", "supports", f"not implemented: weights of f32 (there are {', '.join(FORMATS)})") in plain["linear"].rejected


def _one_graph(subject: Subject) -> None:
    """With these kernels a step is one graph per size, and replays of it compute what the ops compute, padded or not."""
    config, _ = subject.configured(dtype="float32", max_num_seqs=2, max_num_batched_tokens=32)
    driver = Driver(subject.executor(tiny_llama(), blocks=200, config=config))
    assert driver.executor.control(Control("stats")).value["graphs"] == 2  # sizes 1 and 2
    rng = np.random.default_rng(5)
    prompts = {slot: [int(x) for x in rng.integers(3, 512, 12)] for slot in range(2)}
    steps = [{0: 5, 1: 3}, {1: 1, 0: 1}, {1: 2}, {0: 1}, {0: 1, 1: 1}]
    _compare(subject, driver, prompts, steps)
    stats = driver.executor.control(Control("stats")).value
    assert stats["replays"] == 4 and stats["graphs"] == 2


def _attention(spec: AttnSpec, weights: dict[str, None], subject: Subject) -> None:
    kv = KVSpec("full", spec.kv_heads, spec.head_dim, spec.v_head_dim)
    _against_reference("attention", op_model(attention_write(spec, kv, **weights), attention_width(spec)), subject)  # type: ignore[arg-type]


def _fp8_pages(subject: Subject) -> None:
    """Keys and values beyond the type's range, by these kernels and by core's reference: what is written, and what is read of it."""
    from llmx_triton.kv_write import write_rows

    pages, rows = torch.zeros(3, 16, 2, 5, dtype=torch.float8_e4m3fn), torch.tensor([[1e4, -1e4, 449.0, 448.0, 0.3] * 2, [0.0, -0.0, 1e-9, 17.0, -3.3] * 2])
    write_rows(rows.view(2, 2, 5), pages, torch.tensor([17, -1]))
    assert torch.equal(pages.float()[1, 1].flatten(), rows[0].clamp(-448, 448).to(pages.dtype).float()) and pages.float().count_nonzero() == 10
    small = torch.randn(32, 1, 5) * torch.logspace(-4, 1, 32)[:, None, None]
    one = torch.zeros(2, 16, 1, 5, dtype=torch.float8_e4m3fn)
    write_rows(small, one, torch.arange(32))
    assert torch.equal(one.float().flatten(0, 1), small.to(one.dtype).float())
    bundle, found = tiny_llama("int8_g32"), []
    for kernels in ([], ["attention=torch.reference", "kv_write=torch.reference"]):
        config, _ = subject.configured(dtype="float32", kv_cache_dtype="fp8", kernel=kernels)
        chosen = {one.resolution.kinds[0]: one.resolution for one in subject.choices(bundle, config)}
        wanted = "torch.reference" if kernels else "triton"
        assert {chosen[kind].provider for kind in ("attention", "kv_write")} == {wanted} and chosen["attention"].spec.endswith("kv=f8")
        driver = Driver(subject.executor(bundle, blocks=200, config=config))
        driver.join({0: list(range(5, 36))})
        first = logits_of(driver.executor, driver.seq, {0: list(range(5, 25))}, {0: 0})[0]
        found.append(np.concatenate([first, logits_of(driver.executor, driver.seq + 1, {0: list(range(25, 36))}, {0: 20})[0]]))
    subject.near(found[0], found[1], "rows")


def _mla(spec: MlaSpec, subject: Subject) -> None:
    wide = spec.kv_lora + spec.qk_rope
    heads = spec.q_heads * (spec.qk_nope + spec.qk_rope)

    def write(b: ProgramBuilder, x: Value, p: Value) -> Value:
        q, c_kv, k_pe = b.split(x, heads, spec.kv_lora, spec.qk_rope)
        kv_b = b.tensor("kv_b.weight", spec.q_heads * (spec.qk_nope + spec.v_head_dim), spec.kv_lora)
        return b.emit1("mla", q, c_kv, k_pe, p, attrs=MlaAttrs(spec), states=[b.state("s", KVSpec("latent", 1, wide))], weights={"kv_b": kv_b})

    _against_reference("mla", op_model(write, heads + wide), subject)


def _experts(spec: MoeSpec, width: int, quant: str, bias: bool, subject: Subject) -> None:
    shapes = {"gate": (spec.ffn, width), "up": (spec.ffn, width), "down": (width, spec.ffn)}
    names = {f"{role}.{i}.weight": quant for role in shapes for i in range(spec.experts)}

    def write(b: ProgramBuilder, x: Value, p: Value) -> Value:
        w, ids = b.emit("moe_route", x, attrs=MoeAttrs(spec), weights={"router": b.tensor("router.weight", spec.experts, width)})

        def stack(role: str) -> list[Part]:
            return [b.tensor(f"{role}.{i}.weight", *shapes[role], bias=f"{role}.{i}.bias" if bias else None) for i in range(spec.experts)]

        return b.emit1("moe_experts", x, w, ids, attrs=MoeAttrs(spec), weights={role: stack(role) for role in shapes})

    _against_reference("moe_experts", op_model(write, width, names), subject)


def _group_linear(rows: int, width: int, scheme: str, subject: Subject) -> None:
    def write(b: ProgramBuilder, x: Value, p: Value) -> Value:
        return b.linear(x, part("a", rows))

    bundle = op_model(write, width, {"a.weight": scheme})
    run_case(write, width, {"a.weight": scheme}, subject)
    assert {one.resolution.provider for one in subject.choices(bundle) if f" {scheme}" in one.resolution.spec} == {"triton"}


def _deepseek(subject: Subject) -> None:
    """Latent attention and experts in a model, against transformers in float32."""
    from tests.torch_executor.decoder_logits import check_logits

    config, _ = subject.configured(dtype="float32")
    providers = []

    def make(bundle: ModelBundle) -> Executor:
        providers.extend(one.resolution.provider for one in subject.choices(bundle) if one.resolution.kinds[0] in ("mla", "moe_experts"))
        return subject.executor(bundle, blocks=200, config=config)

    check_logits("deepseek-v3", make)
    assert set(providers) == {"triton"}


def _awq(subject: Subject) -> None:
    """A checkpoint's words are kept as they are stored, and its model runs on them."""
    from llmx_triton.products import group_part

    with tempfile.TemporaryDirectory() as folder:
        write_grouped(Path(folder), "awq", group=32, sym=False)
        bundle = load_model(ModelConfig(folder)).bundle
        name = "model.layers.0.mlp.down_proj"
        stored = SafetensorsSource(Path(folder)).raw(f"{name}.qweight")
        ref = next(ref for ref in bundle.model.weights().values() if ref.name == f"{name}.weight")
        made = group_part(bundle.weights.get(ref), None, torch.device("cpu"))
        assert made.awq and made.words.numpy().tobytes() == stored.data.tobytes() and tuple(made.words.shape) == stored.shape
        _against_reference("linear", replace(bundle, weights=_copied(bundle)), subject)


def _copied(bundle: ModelBundle) -> MemorySource:
    """Its weights in memory: an executor closes the files that it has loaded from."""
    tensors = {ref.name: bundle.weights.get(ref) for ref in bundle.model.weights().values()}
    return MemorySource({name: replace(t, data=t.data.copy()) for name, t in tensors.items()})


def _eight_bits(rows: int, width: int, scheme: str, subject: Subject) -> None:
    """Rows rounded to int8 in runs of 32: equal to the same in numpy, and near the product with exact rows."""
    from llmx_triton.eight_bits import eight_part

    rng = np.random.default_rng(rows + width)
    x, weight = rng.normal(size=(7, width)).astype(np.float32), quantize(rng.normal(size=(rows, width)).astype(np.float32), scheme)
    x[2], x[3, :32], bias = 0.0, 0.0, rng.normal(size=rows).astype(np.float32)
    runs = x.reshape(7, -1, 32)
    scale = np.abs(runs).max(axis=2, keepdims=True) / np.float32(127)
    codes = np.floor(runs / np.where(scale == 0, np.float32(1), scale) + np.float32(0.5))
    found = eight_part(weight, torch.from_numpy(bias), torch.device("cpu")).times(torch.from_numpy(x)).numpy()
    exact = x.astype(np.float64) @ dequantize(weight).T.astype(np.float64) + bias
    subject.near(found, ((codes * scale).reshape(7, -1).astype(np.float64) @ dequantize(weight).T.astype(np.float64) + bias).astype(np.float32), "rows")
    assert 0 < np.square(found - exact).mean() < 0.02**2 * exact.var()


def _eight_bits_in_a_model(subject: Subject) -> None:
    """Where the user puts it first it computes what it takes, and the other kernels the rest; never where values are float32."""
    bundle, order = tiny_llama("int8_g32", "q4_1"), ["linear=triton.w8a8,triton"]
    found = []
    for options in ({"dtype": "auto", "kernel": order}, {"dtype": "float32"}):
        config, _ = subject.configured(kv_cache_dtype="float32", **options)
        linear = [one.resolution for one in subject.choices(bundle, config) if one.resolution.kinds == ("linear",)]
        assert {one.provider for one in linear} == ({"triton.w8a8", "triton"} if "kernel" in options else {"triton"})
        driver = Driver(subject.executor(bundle, blocks=200, config=config))
        driver.join({0: list(range(5, 36))})
        found.append(logits_of(driver.executor, driver.seq, {0: list(range(5, 36))}, {0: 0})[0])
    config, _ = subject.configured(dtype="float32", kernel=order)
    refused = {one[2] for choice in subject.choices(bundle, config) for one in choice.resolution.rejected if one[:2] == ("triton.w8a8", "supports")}
    assert any("values of float32" in why for why in refused)
    error = float(np.square(found[0] - found[1]).mean() / found[1].var())
    assert 0 < error < 0.06**2, error  # of a product 0.5%, which random layers enlarge


def _gptq(subject: Subject) -> None:
    """A checkpoint as it is published, through the reader."""
    with tempfile.TemporaryDirectory() as folder:
        write_grouped(Path(folder), "gptq", group=64, sym=False)
        bundle = load_model(ModelConfig(folder)).bundle
        _against_reference("linear", replace(bundle, weights=_copied(bundle)), subject)


def _against_reference(kind: str, bundle: ModelBundle, subject: Subject) -> None:
    """What the numpy reading has not: an op by this kernel and by core's reference, which tests of its own compare with numpy."""
    stored = [one.resolution for one in subject.choices(bundle) if one.resolution.kinds == (kind,) and not one.resolution.spec.endswith(" f32")]
    assert {one.provider for one in stored} <= {"triton"} and len(stored) + (kind == "moe_experts") > 0
    found = []
    for kernels in ([], [f"{kind}=torch.reference"]):
        config, _ = subject.configured(dtype="float32", kernel=kernels)
        driver = Driver(subject.executor(bundle, blocks=200, config=config))
        prompts = {slot: [int(x) for x in np.random.default_rng(slot).integers(3, 512, rows)] for slot, rows in ((0, 29), (3, 7))}
        driver.join(prompts)
        first = logits_of(driver.executor, driver.seq, {0: prompts[0][:20], 3: prompts[3]}, {0: 0, 3: 0})
        second = logits_of(driver.executor, driver.seq + 1, {0: prompts[0][20:]}, {0: 20})
        found.append(np.concatenate([first[0], first[3], second[0]]))
    subject.near(found[0], found[1], "rows")


def _refused_on_a_cpu(subject: Subject) -> None:
    """Without the interpreter the error names the variable."""
    import triton

    from llmx.errors import PlatformError
    from llmx_triton.rowwise import rms_norm

    triton.knobs.runtime.interpret = False
    try:
        rms_norm(torch.ones(2, 4), None, 1e-5, 0.0, False)
    except PlatformError as error:
        assert "TRITON_INTERPRET=1" in str(error)
    else:
        raise AssertionError("a CPU tensor was taken without the interpreter")
    finally:
        triton.knobs.runtime.interpret = True


def checks() -> dict[str, Callable[[Subject], None]]:
    """By name: every case of the suite's ops that one of these kernels takes, and what the suite has no case for."""
    found: dict[str, Callable[[Subject], None]] = {"providers": _providers, "one graph": _one_graph, "no interpreter": _refused_on_a_cpu}
    found |= {name: partial(run_case, write, width, quants) for name, write, width, quants in _cases()}
    for name, spec, weights in (("sinks", SINKS, {"sinks": None}), ("chunks", CHUNKS, {}), ("wide v", WIDE, {})):
        found[f"attention {name}"] = partial(_attention, spec, weights)
    found |= {"mla": partial(_mla, LATENT), "fp8 pages": _fp8_pages}
    found |= {f"experts {name}": partial(_experts, *case) for name, case in MIXTURES.items()}
    for n, k in ((33, 64), (97, 128), (1, 256)):
        found |= {f"linear {n}x{k} {scheme}": partial(_group_linear, n, k, scheme) for scheme in FORMATS[3:] if k % int(scheme.split("_g")[1]) == 0}
    found |= {f"eight bits {n}x{k} {scheme}": partial(_eight_bits, n, k, scheme) for n, k, scheme in EIGHT}
    found |= {"gptq checkpoint": _gptq, "awq checkpoint": _awq, "eight bits in a model": _eight_bits_in_a_model}
    found["deepseek-v3"] = _deepseek
    return found


def main(names: list[str]) -> None:
    """Run the checks whose names are given."""
    torch.set_num_threads(1)
    subject = Subject("cuda", emulate=True)
    for name in names:
        try:
            checks()[name](subject)
            print(json.dumps({name: ""}), flush=True)
        except Exception:  # noqa: BLE001 - the other side raises it
            print(json.dumps({name: traceback.format_exc(limit=-3)}), flush=True)
        subject.close()


if __name__ == "__main__":
    main(sys.argv[1:])
