"""Hooks of the CPU platform. Every kernel is offered once per instruction-set level; the device's capabilities leave one."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from typing import Any

from llmx.config import EngineConfig
from llmx.errors import LlmxError
from llmx.executor import Executor, ModelBundle
from llmx.hooks import Communicator, ConfigIssue, ConfigPatch, DeviceCaps, DiagItem, EnvVar, ImplDef, PlatformInfo, ProcessGroup, hookimpl
from llmx_cpu.lower.tape import ABI
from llmx_cpu.machine import (
    ACTIVATIONS,
    STEP_TOKENS,
    VARIABLES,
    activation_mode,
    chosen_isa,
    cpu_model,
    fusion_on,
    prefault_on,
    thread_budget,
    thread_count,
    total_bytes,
    usable_cpus,
)
from llmx_cpu.native import ISA_NAMES, best_isa

__all__ = [
    "llmx_attention_backends",
    "llmx_communicator",
    "llmx_config_check",
    "llmx_config_defaults",
    "llmx_device_caps",
    "llmx_diagnostics",
    "llmx_env_vars",
    "llmx_executor",
    "llmx_gemm_kernels",
    "llmx_op_kernels",
    "llmx_platform_info",
    "llmx_process_group",
]

_TAGS = frozenset({"batch_invariant", "deterministic"})
_PRIORITY = {"portable": 60, "avx2": 70, "avx512": 80}
_FUSED = (
    (("norm", "linear", "act_mul", "linear", "add"), "fused:mlp", "fused"),
    (("norm", "linear"), "fused:norm_linear", "fused"),
    (("linear", "add"), "fused:linear_add", "fused"),
)
_ATTENTION = (
    ("qkv_prep", "attention:qkv_prep", "qkv"),
    ("kv_write", "attention:kv_write", "kv"),
    ("attention", "attention:attention", "attention"),
)
_OPS = (
    ("embed", "basic:embed", "embed"),
    ("pos_embed", "basic:pos_embed", "linear"),
    ("norm", "basic:norm", "dense"),
    ("act", "basic:act", "act"),
    ("act_mul", "basic:act_mul", "act"),
    ("add", "basic:binary", None),
    ("mul", "basic:binary", "dense"),
    ("scale", "basic:unary", None),
    ("softcap", "basic:unary", None),
    ("clip", "basic:unary", None),
    ("softmax", "basic:softmax", None),
    ("split", "basic:split", None),
    ("concat", "basic:concat", None),
    ("view", "basic:copy_view", None),
    ("rows", "basic:rows", None),
    ("rope", "attention:rope", "rope"),
    ("position_scale", "attention:position_scale", None),
    ("output", "basic:output", None),
    ("collective", "basic:collective", None),
)


def _impls(table: Iterable[tuple[str | tuple[str, ...], str, str | None]]) -> list[ImplDef]:
    return [
        ImplDef(
            kinds=(kind,) if isinstance(kind, str) else kind,
            provider=f"native.{isa}",
            abi=ABI,
            target=f"llmx_cpu.lower.{target}",
            priority=_PRIORITY[isa],
            requires=frozenset({f"vendor.cpu.{isa}"}),
            tags=_TAGS,
            supports=None if supports is None else f"llmx_cpu.supports:{supports}",
        )
        for kind, target, supports in table
        for isa in ISA_NAMES
    ]


@hookimpl
def llmx_platform_info() -> PlatformInfo:
    """Who the platform is."""
    return PlatformInfo(name="cpu", device_type="cpu", api=(1, 1), dist="llmx-platform-cpu")


@hookimpl
def llmx_device_caps(config: EngineConfig) -> DeviceCaps:
    """The CPU at the chosen instruction-set level. One level is a capability: kernels of two levels never meet in a process."""
    isa, threads, mode = chosen_isa(config), thread_count(config), activation_mode(config)
    features = {f"vendor.cpu.{isa}", "batch_invariant", "host.unified"}
    if isa == "avx512":
        features |= {"dtype.bf16", "dtype.int8"}
    return DeviceCaps(
        arch=f"{platform.machine()} {isa} {ACTIVATIONS[mode]}",  # part of plan.numerics
        dtypes=frozenset({"f32", "bf16", "f16"}),
        features=frozenset(features),
        compute_units=usable_cpus(),
        total_bytes=total_bytes(),
        alignment=64,
        props={
            **{"isa": isa, "threads": threads, "thread_budget": thread_budget(config), "activations": mode},
            **{"fuse": fusion_on(config), "prefault": prefault_on(config), "cpu": cpu_model()},
        },
    )


@hookimpl
def llmx_config_defaults(config: EngineConfig, caps: DeviceCaps) -> list[ConfigPatch]:
    """Steps as long as the caches make use of."""
    return [ConfigPatch("scheduler.max_num_batched_tokens", STEP_TOKENS, "prompts are computed in chunks of at most this many tokens")]


@hookimpl
def llmx_config_check(config: EngineConfig, caps: DeviceCaps) -> list[ConfigIssue]:
    """A device that is none, and more threads than CPUs, which slow every step down."""
    threads, cpus, issues = caps.props["threads"] * config.platform.tensor_parallel_size, caps.compute_units, []
    if config.platform.device not in (None, "cpu"):
        issues.append(ConfigIssue("error", "platform.device", f"--device is {config.platform.device!r}: the CPU platform has the device 'cpu' alone"))
    if config.page_type == "f8":
        issues.append(ConfigIssue("error", "cache.kv_dtype", "the CPU platform has pages of bfloat16, float32 and int8: give one of these instead of fp8"))
    if threads > cpus:
        issues.append(ConfigIssue("warn", "platform.threads", f"{threads} threads on {cpus} usable CPUs: steps will wait for each other"))
    return issues


@hookimpl
def llmx_attention_backends(config: EngineConfig, caps: DeviceCaps) -> list[ImplDef]:
    """qkv_prep, kv_write and attention over pages."""
    return _impls(_ATTENTION)


@hookimpl
def llmx_gemm_kernels(config: EngineConfig, caps: DeviceCaps) -> list[ImplDef]:
    """Products with packed weights, and fusions around them unless LLMX_CPU_FUSE=0."""
    return _impls([("linear", "basic:linear", "linear"), *(_FUSED if caps.props["fuse"] else ())])


@hookimpl
def llmx_op_kernels(config: EngineConfig, caps: DeviceCaps) -> list[ImplDef]:
    """All other ops."""
    return _impls(_OPS)


@hookimpl
def llmx_executor(config: EngineConfig, caps: DeviceCaps, bundle: ModelBundle) -> Executor:
    """The native executor."""
    from llmx_cpu.executor import NativeExecutor

    return NativeExecutor(config, caps, bundle)


@hookimpl
def llmx_process_group(config: EngineConfig, caps: DeviceCaps, size: int) -> ProcessGroup:
    """A piece of memory that the ranks of this host share."""
    from llmx_cpu.collectives import shared_memory

    return shared_memory(size)


@hookimpl
def llmx_communicator(config: EngineConfig, caps: DeviceCaps, group: ProcessGroup) -> Communicator:
    """Native collectives in that memory."""
    from llmx_cpu.collectives import MemoryCommunicator

    return MemoryCommunicator(group)


@hookimpl
def llmx_env_vars() -> list[EnvVar]:
    """Variables of the platform."""
    return list(VARIABLES)


@hookimpl
def llmx_diagnostics() -> list[DiagItem]:
    """The library, the CPU, and huge pages."""
    try:
        level = DiagItem("cpu.isa", best_isa())
    except LlmxError as error:
        level = DiagItem("cpu.isa", str(error), ok=False, remedy="pip install --force-reinstall llmx-platform-cpu")
    return [level, DiagItem("cpu.model", cpu_model()), DiagItem("cpu.usable", str(usable_cpus())), _huge_pages()]


def _huge_pages() -> DiagItem:
    path = "/sys/kernel/mm/transparent_hugepage/enabled"
    try:
        with open(path) as file:
            text: Any = file.read()
    except OSError:
        return DiagItem("cpu.hugepages", "not offered by this kernel")
    chosen = text.partition("[")[2].partition("]")[0]
    return DiagItem("cpu.hugepages", chosen, ok=chosen != "never", remedy="" if chosen != "never" else f"echo madvise > {path} (weights stream faster)")
