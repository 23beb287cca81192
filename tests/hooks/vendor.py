"""Writes fake vendor distributions with real metadata, as pip would leave them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, dist: str, files: dict[str, str], entry_points: str, version: str = "0.1.0") -> None:
    """Modules and a dist-info folder under `folder`, which joins sys.path for the test."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    info = folder / f"{dist.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)
    if str(folder) not in sys.path:
        monkeypatch.syspath_prepend(str(folder))
    for module in list(sys.modules):
        if module.split(".")[0] in {name.split("/")[0].removesuffix(".py") for name in files}:
            monkeypatch.delitem(sys.modules, module)


PROBE = """
from llmx.hooks.types import Detection

def detect(environ):
    return Detection({present}, count=1, score={score}, why="{why}")
"""

PLATFORM = '''
"""A vendor's platform on the null executor: small, whole, and visibly different from the null platform."""
from llmx.hooks import API_VERSION, ConfigIssue, ConfigPatch, DeviceCaps, DiagItem, EnvVar, ImplDef, PlatformInfo, hookimpl
from llmx.executor.null import NullExecutor
from llmx.executor import GroupNeed, KVSpec


class AcmeExecutor(NullExecutor):
    """Answers with one token only; counts its steps."""

    def collect(self, ticket):
        out = super().collect(ticket)
        self.steps = getattr(self, "steps", 0) + 1
        return out


class AcmePlatform:
    @hookimpl
    def llmx_platform_info(self):
        return PlatformInfo("acme", "acme", {api}, "llmx-platform-acme", vendor="Acme")

    @hookimpl
    def llmx_device_caps(self, config):
        return DeviceCaps("acme1", frozenset({{"f32"}}), frozenset({{"vendor.acme.cube", "batch_invariant"}}), 4, 1 << 30)

    @hookimpl
    def llmx_executor(self, config, caps, bundle):
        spec = next(iter(bundle.model.states.values())).spec
        needs = [GroupNeed(spec, tuple(bundle.model.states), 16, 128, "i64")]
        scheduler = config.scheduler
        return AcmeExecutor(needs, vocab_size=bundle.vocab_size, max_tokens=scheduler.max_num_batched_tokens or 64, max_requests=scheduler.max_num_seqs)

    @hookimpl
    def llmx_op_kernels(self, config, caps):
        kinds = ("embed", "norm", "act_mul", "add", "rows", "output")
        return [ImplDef((kind,), "acme.base", "acme/1", "acme_llmx.kernels", priority=10) for kind in kinds]

    @hookimpl
    def llmx_gemm_kernels(self, config, caps):
        return [
            ImplDef(("linear",), "acme.base", "acme/1", "acme_llmx.kernels", priority=10),
            ImplDef(("linear",), "acme.cube", "acme/1", "acme_llmx.kernels:cube", priority=80,
                    requires=frozenset({{"vendor.acme.cube"}}), supports="acme_llmx.kernels:cube_ok"),
            ImplDef(("linear",), "acme.tensor", "acme/1", "acme_llmx.kernels", priority=90, requires=frozenset({{"vendor.acme.tensor"}})),
            ImplDef(("linear",), "acme.broken", "acme/1", "acme_llmx.absent:linear", priority=95),
            ImplDef(("linear", "act_mul"), "acme.fused", "acme/1", "acme_llmx.kernels", priority=60),
        ]

    @hookimpl
    def llmx_attention_backends(self, config, caps):
        return [ImplDef((kind,), "acme.fa", "acme/1", "acme_llmx.kernels", priority=80) for kind in ("qkv_prep", "kv_write", "attention")]

    @hookimpl
    def llmx_config_defaults(self, config, caps):
        return [ConfigPatch("scheduler.max_num_seqs", 3, "the cube has three lanes"), ConfigPatch("scheduler.max_num_batched_tokens", 48, "small memory")]

    @hookimpl
    def llmx_config_check(self, config, caps):
        if config.model.dtype == "float32":
            return [ConfigIssue("error", "model.dtype", "the cube has no fp32: leave --dtype out")]
        return [ConfigIssue("warn", "cache.kv_dtype", "the cube rounds")]

    @hookimpl
    def llmx_env_vars(self):
        return [EnvVar("LLMX_ACME_LANES", "3", "lanes of the cube")]

    @hookimpl
    def llmx_diagnostics(self):
        return [DiagItem("acme driver", "12.3")]
'''

KERNELS = '''
def cube(op):
    return op

def cube_ok(spec):
    return None if spec.cols % 64 == 0 and spec.rows < 10000 else f"{spec.rows} rows: the cube takes fewer than 10000"
'''

ENTRY_POINTS = """[llmx.probes]
acme = acme_llmx.probe:detect
[llmx.platforms]
acme = acme_llmx.plugin:AcmePlatform
"""


def install_acme(folder: Path, monkeypatch: pytest.MonkeyPatch, *, api: str = "(1, 1)", present: bool = True, score: int = 90, extra: str = "") -> None:
    """The Acme platform, which works with the embedded model."""
    files = {
        "acme_llmx/__init__.py": "",
        "acme_llmx/probe.py": PROBE.format(present=present, score=score, why="1 cube"),
        "acme_llmx/plugin.py": PLATFORM.format(api=api) + extra,
        "acme_llmx/kernels.py": KERNELS,
    }
    install(folder, monkeypatch, "llmx-platform-acme", files, ENTRY_POINTS)
