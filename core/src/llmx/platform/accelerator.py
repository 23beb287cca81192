"""AcceleratorPlatform: every hook of a platform whose devices torch runs. What differs from one to the next is data: an `Accelerator`.

torch is imported by the hooks that need a device, in the engine process.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

from llmx.config import EngineConfig
from llmx.errors import PlatformError
from llmx.hooks.collectives import Communicator, ProcessGroup
from llmx.hooks.devices import CompilerBackend, DeviceAllocator, GraphBackend
from llmx.hooks.probing import emulated, torch_build
from llmx.hooks.specs import hookimpl
from llmx.hooks.types import ConfigIssue, ConfigPatch, DeviceCaps, DiagItem, EnvVar, ImplDef, PlatformInfo
from llmx.platform.torch_runtime import load_torch
from llmx.record import record

__all__ = ["Accelerator", "AcceleratorPlatform"]

_STEP_TOKENS = 2048  # of a device: a step's cost is nearly all weights until here
_MEMORY = 0.9  # share of the memory that is free beside the weights
_MODES = {"GRAPHS": ("auto", "piecewise", "off"), "KERNELS": ("auto", "on", "off"), "COMPILE": ("0", "1"), "EMULATE": ("0", "1")}


@record
class Accelerator:
    """One kind of device.

    device_type: its name in torch. build: the name in torch's version file that says whether torch was built for it. features: capabilities that
    every such device has with such a torch, beside those that are asked of the device (bf16, streams). kernels: the import name of a package
    with kernels for it. libraries: kernels of optional libraries. ranks: the class of torch.distributed that joins such devices; empty: none does.
    """

    name: str
    device_type: str
    dist: str
    vendor: str
    build: str
    kernels: str = ""
    features: frozenset[str] = frozenset()
    libraries: tuple[ImplDef, ...] = ()
    ranks: str = ""


class AcceleratorPlatform:
    """Hook implementations for one Accelerator; a subclass changes what it must."""

    def __init__(self, kind: Accelerator) -> None:
        self.kind = kind

    # -- what the user may set -----------------------------------------------------------------------------------------

    def option(self, config: EngineConfig, name: str) -> str:
        """The value of LLMX_<PLATFORM>_<name>, by default the first of its values. Raises PlatformError for one that is none."""
        values, variable = _MODES[name], f"LLMX_{self.kind.name.upper()}_{name}"
        value = dict(config.platform.options).get(variable, values[0])
        if value not in values:
            raise PlatformError(f"{variable} is {value!r}: it takes {', '.join(values)}")
        return value

    def device(self, config: EngineConfig) -> str:
        """The device of this rank by its torch name, counted from the one given; "cpu" when it is emulated. Raises PlatformError for another kind."""
        kind, given = self.kind, config.platform.device
        if given is None:
            given = "cpu" if emulated(dict(config.platform.options), kind.name) else f"{kind.device_type}:0"
        if given.split(":")[0] not in (kind.device_type, "cpu"):
            raise PlatformError(f"--device {given!r}: platform {kind.name!r} has the devices {kind.device_type}:0, :1 and so on, and cpu (emulated)")
        first, _, number = given.partition(":")
        return given if first == "cpu" else f"{first}:{int(number or 0) + config.platform.rank}"

    # -- hooks ---------------------------------------------------------------------------------------------------------

    @hookimpl
    def llmx_platform_info(self) -> PlatformInfo:
        """Who it is."""
        return PlatformInfo(self.kind.name, self.kind.device_type, (1, 1), self.kind.dist, self.kind.vendor)

    @hookimpl
    def llmx_device_caps(self, config: EngineConfig) -> DeviceCaps:
        """What torch says of the device, and the kind's own capabilities. Raises PlatformError for a device that torch cannot use."""
        device = self.device(config)
        on_cpu = device == "cpu"  # where threads that wait for each other would cost more than they gain
        caps: DeviceCaps = load_torch("device:device_caps")(device, config.platform.rank_threads(1) if on_cpu else config.platform.threads)
        features = caps.features | self.kind.features | {"memory.sleep"}
        wanted = self.option(config, "KERNELS")
        if wanted == "on" or (wanted == "auto" and not on_cpu):
            features |= {"kernels.tiles"}
        if self.option(config, "GRAPHS") == "off":
            features -= {"graph.capture", "graph.piecewise"}
        return replace(caps, arch=f"{self.kind.name} emulated on {caps.arch}" if on_cpu else caps.arch, features=features)

    @hookimpl
    def llmx_device_runtime(self, config: EngineConfig) -> str:
        """The torch device."""
        return self.device(config)

    @hookimpl
    def llmx_op_kernels(self, config: EngineConfig, caps: DeviceCaps) -> list[ImplDef]:
        """What optional libraries compute."""
        return list(self.kind.libraries)

    @hookimpl
    def llmx_graph_backend(self, config: EngineConfig, caps: DeviceCaps) -> GraphBackend | None:
        """torch's graphs on the device; in emulation a recorder that replays the recorded operations on the same buffers."""
        if not caps.has("graph.capture") or (self.device(config) == "cpu" and self.option(config, "COMPILE") == "1"):
            return None  # the recorder sees torch's operations, not what is inside compiled code
        backend: GraphBackend = load_torch("graphs:graphs_for")(self.device(config), piecewise=self.option(config, "GRAPHS") == "piecewise")
        return backend

    @hookimpl
    def llmx_compiler(self, config: EngineConfig, caps: DeviceCaps) -> CompilerBackend | None:
        """torch.compile, where the user asks for it; compiled code is kept in the configured cache folder."""
        if self.option(config, "COMPILE") == "0":
            return None
        backend: CompilerBackend = load_torch("compiling:TorchCompiler")(config.model.cache_dir, f"{caps.arch} {config.model.source} {config.model.dtype}")
        return backend

    @hookimpl
    def llmx_allocator(self, config: EngineConfig, caps: DeviceCaps) -> DeviceAllocator:
        """Memory under torch's tensors is given back and taken again."""
        allocator: DeviceAllocator = load_torch("storage:StorageAllocator")()
        return allocator

    @hookimpl
    def llmx_process_group(self, size: int) -> ProcessGroup | None:
        """A store of torch's on this host."""
        if not self.kind.ranks:
            return None
        group: ProcessGroup = load_torch("communicator:store_group")(size)
        return group

    @hookimpl
    def llmx_communicator(self, config: EngineConfig, group: ProcessGroup) -> Communicator:
        """torch's process group for such devices, each rank on its own; in emulation the one for host memory."""
        device = self.device(config)
        backend = {} if device == "cpu" else {"backend": self.kind.ranks}
        communicator: Communicator = load_torch("communicator:TorchCommunicator")(group, device, **backend)
        return communicator

    @hookimpl
    def llmx_config_defaults(self, config: EngineConfig, caps: DeviceCaps) -> list[ConfigPatch]:
        """Steps and a KV cache as large as a device with memory of its own makes use of."""
        if caps.has("host.unified"):
            return []
        return [
            ConfigPatch("scheduler.max_num_batched_tokens", _STEP_TOKENS, "prompts are computed in chunks of at most this many tokens"),
            ConfigPatch("cache.memory_fraction", _MEMORY, "nobody else needs the device's memory"),
        ]

    @hookimpl
    def llmx_config_check(self, config: EngineConfig, caps: DeviceCaps) -> list[ConfigIssue]:
        """Pages of int8, which the torch executor does not have; and that an emulated device is slow."""
        issues = []
        if config.page_type == "i8":
            issues.append(ConfigIssue("error", "cache.kv_dtype", "pages of int8 are not there on this platform: take auto, fp8, bfloat16 or float32"))
        if self.device(config) == "cpu":
            issues.append(ConfigIssue("warn", "platform.device", f"{self.kind.name} is emulated on torch's CPU device: for tests, not for speed"))
        return issues

    @hookimpl
    def llmx_env_vars(self) -> list[EnvVar]:
        """Variables of the platform."""
        name = f"LLMX_{self.kind.name.upper()}_"
        return [
            EnvVar(f"{name}GRAPHS", "auto", "graph capture of small steps: auto (runs of ops as long as kernels allow), piecewise (attention outside), off"),
            EnvVar(f"{name}KERNELS", "auto", "tile kernels, where a package with them is installed: auto (not in emulation), on, off"),
            EnvVar(f"{name}COMPILE", "0", "1: torch.compile for runs of ops in small steps; the first start takes minutes, code is kept in --cache-dir"),
            EnvVar(f"{name}EMULATE", "0", "1: run on torch's CPU device, without the hardware"),
        ]

    @hookimpl
    def llmx_diagnostics(self) -> list[DiagItem]:
        """The build of torch, the kernels, and that no such hardware has run this yet."""
        kind = self.kind
        version, built = torch_build(kind.build)
        what = f"torch {version or 'not installed'}, built for {kind.build} {built or '(not)'}"
        kernels = "installed" if kind.kernels and find_spec(kind.kernels) else "not installed: reference kernels run"
        return [
            DiagItem(f"{kind.name}.torch", what, ok=built is not None, remedy="" if built else f"install the build of torch for {kind.name} (docs/install.md)"),
            DiagItem(f"{kind.name}.kernels", kernels),
            DiagItem(f"{kind.name}.verified", "emulated only: not verified on hardware"),
        ]
