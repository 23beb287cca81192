"""A vendor that gives a torch device and one kernel gets a whole platform: llmx_device_runtime, and abi torch/1 from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from llmx import LLM, SamplingParams  # noqa: E402
from llmx.engine.explain import explain  # noqa: E402
from llmx.engine.start import prepare  # noqa: E402
from llmx.errors import PlatformError  # noqa: E402
from llmx.resolve import resolve  # noqa: E402
from tests.hooks.vendor import PROBE, install  # noqa: E402

PLATFORM = '''
from llmx.hooks import DeviceCaps, ImplDef, PlatformInfo, hookimpl


@hookimpl
def llmx_platform_info():
    return PlatformInfo("zeta", "zeta", (1, 1), "llmx-platform-zeta")


@hookimpl
def llmx_device_caps(config):
    return DeviceCaps("zeta2", frozenset({"f32"}), frozenset(), 1, 1 << 30)


@hookimpl
def llmx_op_kernels(config, caps):
    return [
        ImplDef(("act_mul",), "zeta.gated", "torch/1", "zeta_llmx.kernels:GatedAct", priority=60),
        ImplDef(("linear", "add"), "zeta.fused", "torch/1", "zeta_llmx.kernels:fused", priority=60),
    ]
'''
RUNTIME = """

@hookimpl
def llmx_device_runtime(config):
    return config.platform.device or "cpu"
"""
KERNELS = '''
import torch

CALLS = {"gated": 0, "fused": 0, "uses": set()}


class GatedAct:
    """Named as a class; rounds nothing."""

    def pack(self, weights, spec, uses):
        return None

    def workspace(self, spec, limits):
        return 1000

    def bind(self, spec, packed, states):
        assert spec.attrs.kind == "silu"

        def call(rows, x):
            CALLS["gated"] += 1
            gate, up = x.chunk(2, -1)
            return gate * torch.sigmoid(gate) * up

        return call


class LinearAdd:
    """A fusion: the product and the residual in one call."""

    def pack(self, weights, spec, uses):
        CALLS["uses"] |= set(uses)
        assert [one.kind for one in spec] == ["linear", "add"]
        assert weights["0:w.0"].dtype == spec[0].quants[0]  # as stored
        return weights.dense("0:w.0")

    def workspace(self, spec, limits):
        return 0

    def bind(self, spec, packed, states):
        def call(rows, x, residual):
            CALLS["fused"] += 1
            return torch.addmm(residual, x, packed.T)

        return call


fused = LinearAdd()
'''
ENTRY = "[llmx.probes]\nzeta = zeta_llmx.probe:detect\n[llmx.platforms]\nzeta = zeta_llmx.plugin\n"
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def _install(folder: Path, monkeypatch: pytest.MonkeyPatch, runtime: str = RUNTIME) -> None:
    files = {
        "zeta_llmx/__init__.py": "",
        "zeta_llmx/probe.py": PROBE.format(present=True, score=80, why="1 zeta"),
        "zeta_llmx/plugin.py": PLATFORM + runtime,
        "zeta_llmx/kernels.py": KERNELS,
    }
    install(folder, monkeypatch, "llmx-platform-zeta", files, ENTRY)


def test_a_torch_device_is_a_platform_and_its_kernels_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, monkeypatch)
    prompt = "The capital of France is"
    with LLM(platform="torch", kv_cache_memory_bytes="512M") as llm:
        expected = llm.generate([prompt], GREEDY)[0].outputs[0].token_ids
    with LLM(platform="zeta", dtype="float32", kv_cache_memory_bytes="512M") as llm:
        import zeta_llmx.kernels as kernels  # type: ignore[import-not-found]

        assert (llm.info.platform, llm.info.device) == ("zeta", "zeta2")
        assert type(llm._engine.executor).__name__ == "TorchExecutor"
        kernels.CALLS["gated"] = kernels.CALLS["fused"] = 0
        assert llm.generate([prompt], GREEDY)[0].outputs[0].token_ids == expected
        steps = kernels.CALLS["gated"] // 30
        assert steps >= 6 and kernels.CALLS["gated"] == 30 * steps and kernels.CALLS["fused"] == 60 * steps  # 30 layers, two residuals each
        assert kernels.CALLS["uses"] == {"linear"}


def test_explain_names_the_reference_and_why_it_was_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, monkeypatch)
    config, _ = resolve({"platform": "zeta"}, environ={})
    rows = explain(config).rows
    gated = next(row for row in rows if row.spec.startswith("act_mul"))
    assert gated.provider == "zeta.gated" and ("torch.reference", "priority") in {entry[:2] for entry in gated.rejected}
    assert {row.provider for row in rows if row.spec.startswith("attention")} == {"torch.reference"}
    assert {row.abi for row in rows} == {"torch/1"}


def test_the_user_may_force_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, monkeypatch)
    config, _ = resolve({"platform": "zeta", "kernel": ["act_mul=torch.reference"], "disable_kernel": ["zeta.fused"]}, environ={})
    rows = explain(config).rows
    assert {row.provider for row in rows} == {"torch.reference"}
    assert all(row.forced for row in rows if row.spec.startswith("act_mul"))


def test_a_platform_with_neither_is_told_both_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, monkeypatch, runtime="")
    config, _ = resolve({"platform": "zeta"}, environ={})
    with pytest.raises(PlatformError, match=r"llmx_executor \(or llmx_device_runtime\)"):
        prepare(config)


def test_a_device_that_torch_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, monkeypatch)
    config, _ = resolve({"platform": "zeta", "device": "zeta:0"}, environ={})
    with pytest.raises(PlatformError, match=r"--device 'zeta:0'.*--device cpu"):
        prepare(config)
