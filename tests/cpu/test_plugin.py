"""The platform's hooks: probe, capabilities, options, and honest refusals."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cgroups import cgroup
from tests.cpu.native_model import bundle_of, config_for, native_executor, tiny_llama

from llmx.config import EngineConfig, PlatformConfig
from llmx.errors import ConfigError, ModelError, PlatformError, ProgramError
from llmx.kv.spec import KVSpec
from llmx.platform.caps import check_caps
from llmx.platform.kernels import KernelResolver
from llmx.platform.plan import Plan
from llmx.program.attrs import AttnSpec, QkvSpec, RopeSpec
from llmx.program.builder import ModelBuilder, R, part
from llmx.program.ops import Model, QuantKey
from llmx.weights.quant import quant_key
from llmx_cpu import machine, plugin
from llmx_cpu.executor import NativeExecutor
from llmx_cpu.native import ISA_NAMES, best_isa
from llmx_cpu.probe import detect


def with_options(**options: str) -> EngineConfig:
    return EngineConfig(platform=PlatformConfig(options=tuple(options.items())))


def small(changes: dict[str, object] | None = None, rope: RopeSpec | None = None, state: KVSpec | None = None) -> Model:
    """One attention layer with an AttnSpec changed."""
    model = ModelBuilder(lambda name: quant_key("f32"))
    b = model.program("main")
    x = b.embed(b.input("ids"), "embed", 512, 32)
    positions = b.input("positions", (len(rope.mrope_sections), *x.shape[:1])) if rope else None
    q, k, v = b.qkv_prep(b.linear(x, part("qkv", 96)), QkvSpec(2, 2, 16, 16, rope=rope), positions)
    name = b.state("s", state or KVSpec("full", 2, 16, 16))
    b.kv_write(name, k, v)
    o = b.attention(name, q, k, v, spec=replace(AttnSpec(2, 2, 16, 16, 0.25), **(changes or {})))
    b.output("logits", b.linear(b.rows(o, b.input("head", (R,))), part("head", 512)))
    return model.build()


def test_probe_and_info() -> None:
    found = detect({})
    assert found.present and found.score == 10 and found.count >= 1 and "CPU" in found.why
    info = plugin.llmx_platform_info()
    assert (info.name, info.api, info.dist) == ("cpu", (1, 1), "llmx-platform-cpu")


@pytest.mark.parametrize("isa", ISA_NAMES[: ISA_NAMES.index(best_isa()) + 1])
def test_level_is_a_capability_and_names_the_kernels(isa: str) -> None:
    config = with_options(LLMX_CPU_ISA=isa)
    caps = check_caps(plugin.llmx_device_caps(config), "cpu")
    assert caps.has(f"vendor.cpu.{isa}") and caps.has("batch_invariant") and caps.arch.endswith(f"{isa} int16+int8")
    offers = [*plugin.llmx_attention_backends(config, caps), *plugin.llmx_gemm_kernels(config, caps), *plugin.llmx_op_kernels(config, caps)]
    program = tiny_llama("q4_1", "q8_0").model.programs["main"]
    choices = KernelResolver(offers, caps).resolve(program, kv_dtype="bf16", dtype="auto")
    assert {c.resolution.provider for c in choices} == {f"native.{isa}"}
    why = {(provider.partition(" ")[0], stage) for c in choices for provider, stage, _ in c.resolution.rejected}
    assert why - {(f"native.{isa}", "priority")} == {(f"native.{name}", "capabilities") for name in ISA_NAMES if name != isa}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("LLMX_CPU_ISA", "sse9", "give auto, portable"),
        ("LLMX_CPU_FUSE", "yes", "give 0 or 1"),
        ("LLMX_CPU_PREFAULT", "2", "give 0 or 1"),
        ("LLMX_CPU_TURN_US", "fast", "0 to 1000000"),
        ("LLMX_CPU_TURN_US", "1000001", "0 to 1000000"),
        ("LLMX_CPU_ACT", "int4", "give auto, int16, int8"),
        ("LLMX_CPU_THREADS", "-3", "give a number"),
        ("LLMX_CPU_THREADS", "5000", "give 1 to 1024"),
    ],
)
def test_wrong_options_say_what_is_right(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plugin.llmx_device_caps(with_options(**{name: value}))
    assert name in {variable.name for variable in plugin.llmx_env_vars()}


def test_threads_follow_option_then_quota(tmp_path: Path) -> None:
    assert machine.thread_count(with_options(LLMX_CPU_THREADS="3")) == 3
    assert machine.thread_count(replace(with_options(LLMX_CPU_THREADS="3"), platform=PlatformConfig(threads=1))) == 1
    for version, files in ((2, {"cpu.max": "100000 100000\n"}), (1, {"cpu.cfs_quota_us": "100000\n", "cpu.cfs_period_us": "100000\n"})):
        root = cgroup(tmp_path / str(version), version, "cpu", "user/llmx", {"user": files})
        assert machine.usable_cpus(root) == 1
        root = cgroup(tmp_path / f"{version} none", version, "cpu", "user/llmx", {"user": {name: "max 100000\n" if "." in name else "-1" for name in files}})
        assert machine.usable_cpus(root) == machine.usable_cpus(tmp_path / "absent")
    assert os.sched_getaffinity(0) and machine.usable_cpus() <= len(os.sched_getaffinity(0))
    many = with_options(LLMX_CPU_THREADS="500")
    assert [issue.level for issue in plugin.llmx_config_check(many, plugin.llmx_device_caps(many))] == ["warn"]


def test_the_budget_is_the_servers_and_not_the_models() -> None:
    def budget(threads: int | None, shared: tuple[str, int] | None, ranks: int = 1, **options: str) -> tuple[int, int]:
        config = with_options(**options)
        config = replace(config, platform=replace(config.platform, threads=threads, shared_threads=shared, tensor_parallel_size=ranks))
        props = plugin.llmx_device_caps(config).props
        return props["threads"], props["thread_budget"]

    assert budget(2, None) == (2, 0)
    assert budget(1, ("file", 3)) == (1, 3)
    assert budget(1, ("file", 0), LLMX_CPU_THREADS="5") == (1, 5)
    assert budget(None, ("file", 0)) == (machine.usable_cpus(), machine.usable_cpus())
    assert budget(2, ("file", 2), LLMX_CPU_TURN_US="0") == (2, 0)
    assert budget(2, ("file", 2), ranks=2) == (1, 0), "ranks wait for each other within a step"


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: small({"mask": "prefix"}), "mask prefix"),
        (lambda: small({"chunk": 64}), "chunked attention"),
        (lambda: small(rope=RopeSpec("neox", 16, 1e4, mrope_sections=(4, 2, 2))), "mrope"),
    ],
)
def test_what_is_not_computed_is_refused_with_its_reason(model: object, reason: str) -> None:
    with pytest.raises(PlatformError, match=reason):
        native_executor(bundle_of(model()), config_for())  # type: ignore[operator]


def test_ops_and_states_without_a_kernel_are_refused_by_name() -> None:
    config = config_for()
    caps = plugin.llmx_device_caps(config)
    with pytest.raises(ProgramError, match="state 's' is of kind 'chunked'"):
        NativeExecutor(config, caps, bundle_of(small({"chunk": 64}, state=KVSpec("chunked", 2, 16, 16, 64))))
    executor = NativeExecutor(config, caps, bundle_of(small()))
    with pytest.raises(ProgramError, match=r"op 0 \(embed in .*\) of program 'main' has no kernel"):
        executor.load(Plan("cpu", "", (), {}, "", (), ()), lambda what, fraction: None)
    executor.close()


def test_storage_without_a_kernel_is_refused() -> None:
    bundle = tiny_llama("f32")
    spec = QuantKey("iq4_nl", (("d", "f16", 32), ("q", "u4", 32)))
    model = ModelBuilder(lambda name: spec)
    b = model.program("main")
    x = b.embed(b.input("ids"), "embed", 512, 32)
    b.output("logits", b.linear(b.rows(x, b.input("head", (R,))), part("head", 512)))
    with pytest.raises((PlatformError, ModelError), match="iq4_nl"):
        native_executor(replace(bundle, model=model.build()), config_for())


@pytest.mark.parametrize(
    ("outside", "pieces", "error", "reason"),
    [(3, 2, PlatformError, r"ids past the table's end \(outside=3\)"), (None, 5, ProgramError, "split in .*: 5 pieces; the native executor takes up to 4")],
)
def test_attributes_without_a_kernel_are_refused(outside: int | None, pieces: int, error: type[Exception], reason: str) -> None:
    model = ModelBuilder(lambda name: quant_key("f32"))
    b = model.program("main")
    x = b.embed(b.input("ids"), "embed", 500, 40, outside=outside)
    x = b.add(*b.split(x, *[40 // pieces] * pieces)[:2])
    b.output("logits", b.linear(b.rows(x, b.input("head", (R,))), part("head", 512)))
    with pytest.raises(error, match=reason):
        native_executor(bundle_of(model.build()), config_for())
