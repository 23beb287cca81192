"""Optional libraries of kernels: chosen when they are there, refused with the reason otherwise, and a model runs through them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from llmx.executor.torch.library import LibraryLinear  # noqa: E402
from llmx.platform import OpSpec  # noqa: E402
from llmx.platform.libraries import library_impls  # noqa: E402
from llmx.program.attrs import ActAttrs, AttentionAttrs, AttnSpec, NormAttrs  # noqa: E402
from llmx.testing import Driver, logits_of, tiny_llama  # noqa: E402
from llmx.testing.conformance.subject import Subject  # noqa: E402
from tests.platforms import libraries  # noqa: E402

CASES = {
    "cuda": ("flashinfer", "flashinfer", {"norm", "act_mul", "attention"}),
    "flash-attn": ("flash_attn", "flash-attn", {"attention"}),
    "rocm": ("aiter", "aiter", {"norm", "act_mul"}),
    "xpu": ("vllm_xpu_kernels", "vllm-xpu-kernels", {"norm", "act_mul"}),
}
ADAPTERS = {
    "cuda": "llmx_cuda.flashinfer_kernels",
    "flash-attn": "llmx_cuda.flash_attention",
    "rocm": "llmx_rocm.aiter_kernels",
    "xpu": "llmx_xpu.sycl_kernels",
}
MODEL = tiny_llama(hidden_size=128, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=256)


def _logits(subject: Subject, **options: object) -> np.ndarray:
    config, _ = subject.configured(kv_cache_dtype="bfloat16", disable_kernel=["triton"], **options)
    driver = Driver(subject.executor(MODEL, blocks=200, config=config))
    prompts = {0: np.random.default_rng(1).integers(3, 512, 37).tolist(), 3: np.random.default_rng(2).integers(3, 512, 5).tolist()}
    driver.join(prompts)
    first = logits_of(driver.executor, driver.seq, {0: prompts[0][:20], 3: prompts[3]}, {0: 0, 3: 0})
    second = logits_of(driver.executor, driver.seq + 1, {0: prompts[0][20:]}, {0: 20})
    return np.concatenate([first[0], first[3], second[0]])


@pytest.mark.parametrize("name", CASES)
def test_a_model_runs_through_the_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library, provider, kinds = CASES[name]
    platform = name if name in ("rocm", "xpu") else "cuda"
    monkeypatch.setenv(f"LLMX_{platform.upper()}_KERNELS", "on")
    monkeypatch.setenv(f"LLMX_{platform.upper()}_GRAPHS", "off")
    subject = Subject(platform, emulate=True)
    config, _ = subject.configured(kv_cache_dtype="bfloat16", disable_kernel=["triton"])
    without = {reason for choice in subject.choices(MODEL, config) for who, _, reason in choice.resolution.rejected if who == provider}
    assert without == {f"the package {library} is not installed"}
    libraries.install(monkeypatch, library)
    monkeypatch.delitem(sys.modules, ADAPTERS[name], raising=False)
    chosen = {choice.resolution.kinds[0]: choice.resolution.provider for choice in subject.choices(MODEL, config)}
    assert {kind for kind, one in chosen.items() if one == provider} == kinds
    wanted = _logits(subject, dtype="float32")
    assert libraries.CALLS == []  # values are float32
    found = _logits(subject)
    assert set(libraries.CALLS) == kinds and libraries.CALLS.count("norm") == (2 * 5 if "norm" in kinds else 0)
    assert 0 < np.square(found - wanted).mean() < 0.03**2 * wanted.var()  # what bfloat16 rounds off
    subject.close()


def test_products_of_bfloat16_weights_go_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLASLt is what torch takes for them on a GPU; other weights keep the reference, with the reason."""
    import torch.nn.functional as F

    from llmx_cuda import cublaslt

    monkeypatch.setenv("LLMX_CUDA_KERNELS", "on")
    monkeypatch.setenv("LLMX_CUDA_GRAPHS", "off")
    calls: list[tuple[str, ...]] = []

    def seen(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        calls.append(tuple(str(one.dtype) for one in (x, w)))
        return F.linear(x, w, bias)

    monkeypatch.setattr(cublaslt, "LINEAR", LibraryLinear(seen))
    subject, found = Subject("cuda", emulate=True), []
    bundle = tiny_llama("bf16", "f32")
    for dtype in ("float32", "auto"):
        config, _ = subject.configured(kv_cache_dtype="float32", dtype=dtype, disable_kernel=["triton"])
        linear = [choice.resolution for choice in subject.choices(bundle, config) if choice.resolution.kinds == ("linear",)]
        assert {one.provider for one in linear} == ({"torch.reference"} if dtype == "float32" else {"cublaslt", "torch.reference"})
        driver = Driver(subject.executor(bundle, blocks=200, config=config))
        driver.join({0: list(range(5, 36))})
        found.append(logits_of(driver.executor, driver.seq, {0: list(range(5, 36))}, {0: 0})[0])
    reasons = {why for one in linear for provider, _, why in one.rejected if provider == "cublaslt"}
    assert reasons == {"not implemented: weights of f32 (there is bf16)"}
    assert set(calls) == {("torch.bfloat16", "torch.bfloat16")} and 0 < np.square(found[1] - found[0]).mean() < 0.06**2 * found[0].var()
    subject.close()


def test_what_is_not_taken_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries.install(monkeypatch, "flashinfer")
    norm, act, attention = (impl.supports for impl in library_impls("flashinfer", "flashinfer", "x", activations=("silu",), attention=True))
    causal = AttnSpec(4, 2, 64, 64, 0.1)
    for supports, spec, reason in (
        (norm, OpSpec("norm", NormAttrs("layer", 1e-5), rows=64, dtype="auto"), "not implemented: layer norm"),
        (norm, OpSpec("norm", NormAttrs("rms", 1e-5, offset=1.0), rows=64, dtype="auto"), "not implemented: 1 + weight"),
        (norm, OpSpec("norm", NormAttrs("rms", 1e-5), rows=64, dtype="auto", bias=True), "not implemented: a bias"),
        (norm, OpSpec("norm", NormAttrs("rms", 1e-5), dtype="auto"), "not implemented: a norm without a weight"),
        (norm, OpSpec("norm", NormAttrs("rms", 1e-5), rows=64), "values are float32 (--dtype float32); it computes in bfloat16"),
        (act, OpSpec("act_mul", ActAttrs("relu"), dtype="auto"), "not implemented: relu"),
        (attention, OpSpec("attention", AttentionAttrs(causal), kv_dtype="f32", dtype="auto"), "not implemented: pages of f32"),
        (attention, OpSpec("attention", AttentionAttrs(AttnSpec(4, 2, 80, 80, 0.1)), kv_dtype="bf16", dtype="auto"), "not implemented: heads of 80 and 80"),
        (attention, OpSpec("attention", AttentionAttrs(causal), kv_dtype="bf16", dtype="auto"), None),
    ):
        assert callable(supports) and supports(spec) == reason


def _parameters(tree: ast.AST, name: str, of: str = "") -> list[list[str]]:
    scope = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == of) if of else tree
    found = [node for node in ast.walk(scope) if isinstance(node, ast.FunctionDef) and node.name == name]
    return [[arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)] for node in found]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_stand_in_has_the_published_parameters(tmp_path: Path) -> None:
    """Names and order of FlashInfer's parameters, from its wheel: the stand-in's come in the same order, and none is its own."""
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--dest", str(tmp_path), "flashinfer-python==0.7.4"]
    if subprocess.run(command, timeout=500).returncode:
        pytest.skip("flashinfer-python 0.7.4 cannot be downloaded")
    [wheel] = tmp_path.glob("*.whl")
    published = zipfile.ZipFile(wheel)

    own = ast.parse(Path(libraries.__file__).read_text())
    wrapper = "BatchPrefillWithPagedKVCacheWrapper"
    for file, name, of in (
        ("norm/__init__.py", "rmsnorm", ""), ("activation.py", "silu_and_mul", ""),
        ("prefill.py", "__init__", wrapper), ("prefill.py", "plan", wrapper), ("prefill.py", "run", wrapper),
    ):  # fmt: skip
        [ours] = _parameters(own, name, "WRAPPER" if of else "")
        theirs = _parameters(ast.parse(published.read(f"flashinfer/{file}")), name, of)
        assert theirs and all(set(ours) <= set(full) and [p for p in full if p in ours] == ours for full in theirs), (name, ours, theirs)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_stand_in_of_flash_attention_has_the_published_parameters(tmp_path: Path) -> None:
    """From its source distribution, whose build script is told to compile nothing."""
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(tmp_path)]
    environ = {**os.environ, "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"}
    if subprocess.run([*command, "flash-attn==2.8.3"], timeout=500, env=environ).returncode:
        pytest.skip("flash-attn 2.8.3 cannot be downloaded")
    with tarfile.open(tmp_path / "flash_attn-2.8.3.tar.gz") as archive:
        file = archive.extractfile("flash_attn-2.8.3/flash_attn/flash_attn_interface.py")
        assert file is not None
        [theirs] = _parameters(ast.parse(file.read()), "flash_attn_varlen_func")
    [ours] = _parameters(ast.parse(Path(libraries.__file__).read_text()), "flash_attn_varlen_func")
    assert set(ours) <= set(theirs) and [name for name in theirs if name in ours] == ours
