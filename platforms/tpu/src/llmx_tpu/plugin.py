"""Hooks of the TPU platform. JAX is imported in the engine process only, by what they return or call."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from llmx.config import EngineConfig
from llmx.executor import Executor, ModelBundle
from llmx.hooks import ConfigIssue, ConfigPatch, DeviceCaps, DiagItem, ImplDef, OptionDef, PlatformInfo, hookimpl

__all__ = [
    "llmx_add_options",
    "llmx_attention_backends",
    "llmx_config_check",
    "llmx_config_defaults",
    "llmx_device_caps",
    "llmx_diagnostics",
    "llmx_executor",
    "llmx_gemm_kernels",
    "llmx_op_kernels",
    "llmx_platform_info",
]

_ATTENTION = ("qkv_prep", "kv_write", "attention", "mla")
_BASIC = (
    "embed", "pos_embed", "take", "norm", "act", "act_mul", "add", "mul", "mix", "reduce", "softmax", "scale", "softcap", "clip",
    "split", "concat", "view", "pool", "output",
)  # fmt: skip
_OTHER = {"rows": "basic:take", "rope": "attention:rope", "position_scale": "attention:position_scale"} | {
    "moe_route": "moe:moe_route", "moe_experts": "moe:moe_experts", "recurrent": "recurrent:recurrent",
}  # fmt: skip
_CHECKED = ("attention", "mla", "recurrent")  # kinds with a function in llmx_tpu.supports
_TAGS = frozenset({"deterministic"})
_NOT_VERIFIED = "the TPU platform is not verified on hardware: it was only run on JAX's CPU backend"


def _xla(kind: str, target: str) -> ImplDef:
    supports = f"llmx_tpu.supports:{kind}" if kind in _CHECKED else None
    return ImplDef((kind,), "jax.xla", "jax/1", f"llmx_tpu.kernels.{target}", priority=30, tags=_TAGS, supports=supports)


@hookimpl
def llmx_platform_info() -> PlatformInfo:
    """Who the platform is."""
    return PlatformInfo("tpu", "tpu", (1, 1), "llmx-platform-tpu", vendor="Google")


@hookimpl
def llmx_add_options() -> list[OptionDef]:
    """--tpu-backend and --tpu-devices."""
    return [
        OptionDef("backend", "str", "Where JAX runs: tpu, or cpu to try the platform without one.", default="tpu", choices=("tpu", "cpu")),
        OptionDef("devices", "int", "Devices that a model is spread over, weights and pages cut between them.", default=1, minimum=1, maximum=1024),
    ]


@hookimpl
def llmx_device_caps(config: EngineConfig) -> DeviceCaps:
    """Facts about the devices, once JAX opened them."""
    from llmx_tpu.backend import device_caps

    return device_caps(config)


@hookimpl
def llmx_config_defaults(config: EngineConfig, caps: DeviceCaps) -> list[ConfigPatch]:
    """Long steps where there is hardware for them, short ones on the CPU; pages in float32 there, which it computes in."""
    if caps.props["backend"] == "tpu":
        return [ConfigPatch("scheduler.max_num_batched_tokens", 1024, "prompts are computed in chunks of at most this many tokens")]
    return [
        ConfigPatch("scheduler.max_num_batched_tokens", 256, "prompts are computed in chunks of at most this many tokens"),
        ConfigPatch("cache.kv_dtype", "float32", "JAX's CPU backend computes in float32"),
        ConfigPatch("cache.kv_bytes", 1 << 30, "pages take all their memory at the start, and here it is the machine's"),
    ]


@hookimpl
def llmx_config_check(config: EngineConfig, caps: DeviceCaps) -> list[ConfigIssue]:
    """That no TPU has run it yet; what it lacks."""
    issues = [ConfigIssue("warn", "platform.name", _NOT_VERIFIED)]
    if config.platform.threads is not None and config.platform.threads != caps.props["threads"]:
        why = f"--threads changes nothing here: XLA takes the {caps.props['threads']} CPUs that the process may use"
        issues.append(ConfigIssue("warn", "platform.threads", why))
    if config.platform.enforce_eager:
        issues.append(ConfigIssue("warn", "platform.enforce_eager", "--enforce-eager changes nothing here: steps are always compiled"))
    if config.page_type in ("i8", "f8"):
        issues.append(ConfigIssue("error", "cache.kv_dtype", "the TPU platform has pages of float32 and bfloat16: give one of these"))
    return issues


@hookimpl
def llmx_attention_backends(config: EngineConfig, caps: DeviceCaps) -> list[ImplDef]:
    """Pages and attention in jax.numpy, and a Pallas kernel: first on TPUs; elsewhere it runs in Pallas' interpreter, when it is ordered."""
    priority = 70 if caps.has("vendor.tpu.mosaic") else 10
    target, supports = "llmx_tpu.kernels.pallas_attention:attention", "llmx_tpu.supports:pallas_attention"
    pallas = ImplDef(("attention",), "jax.pallas", "jax/1", target, priority=priority, tags=_TAGS, supports=supports)
    return [pallas, *(_xla(kind, f"attention:{kind}") for kind in _ATTENTION)]


@hookimpl
def llmx_gemm_kernels(config: EngineConfig, caps: DeviceCaps) -> list[ImplDef]:
    """Products with dense weights: float32, or bfloat16 on TPUs."""
    return [_xla("linear", "basic:linear")]


@hookimpl
def llmx_op_kernels(config: EngineConfig, caps: DeviceCaps) -> list[ImplDef]:
    """All other ops."""
    return [*(_xla(kind, f"basic:{kind}") for kind in _BASIC), *(_xla(kind, target) for kind, target in _OTHER.items())]


@hookimpl
def llmx_executor(config: EngineConfig, caps: DeviceCaps, bundle: ModelBundle) -> Executor:
    """The JAX executor."""
    from llmx_tpu.executor import JaxExecutor

    return JaxExecutor(config, caps, bundle)


@hookimpl
def llmx_diagnostics() -> list[DiagItem]:
    """Which JAX there is. It is not imported for that."""
    found = []
    for name in ("jax", "jaxlib", "libtpu"):
        try:
            found.append(DiagItem(f"tpu.{name}", version(name)))
        except PackageNotFoundError:
            needed = name != "libtpu"
            found.append(DiagItem(f"tpu.{name}", "not installed", ok=not needed, remedy="pip install llmx-platform-tpu" if needed else ""))
    return [*found, DiagItem("tpu.verified", "on JAX's CPU backend only, not on hardware")]
