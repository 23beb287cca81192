"""ChosenPlatform: the hooks of the platform that was chosen, called in the order of a start, their results checked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pluggy

from llmx.config import Change, EngineConfig
from llmx.errors import ConfigError, PlatformError
from llmx.executor.base import Executor
from llmx.executor.bundle import ModelBundle
from llmx.hooks.collectives import Communicator, ProcessGroup
from llmx.hooks.devices import DeviceParts
from llmx.hooks.types import DeviceCaps, ImplDef
from llmx.platform.caps import check_caps
from llmx.platform.kernels import KernelResolver
from llmx.platform.plan import KernelChoice
from llmx.platform.torch_runtime import reference_kernels, torch_executor
from llmx.plugin_options import with_plugin_defaults
from llmx.program.ops import Model
from llmx.record import record
from llmx.resolve import apply_patches

__all__ = ["ChosenPlatform", "value_dtypes"]


@record
class ChosenPlatform:
    """One platform by name, loaded into `manager`. Raises ConfigError and PlatformError with what the platform lacks."""

    name: str
    manager: pluggy.PluginManager

    def caps(self, config: EngineConfig) -> DeviceCaps:
        """Facts about its device; every capability name is known."""
        config = with_plugin_defaults(config, self.manager)
        return check_caps(self._required(self.manager.hook.llmx_device_caps(config=config), "llmx_device_caps"), self.name)

    def configure(self, config: EngineConfig, caps: DeviceCaps, user_set: Iterable[str]) -> tuple[EngineConfig, list[Change], list[str]]:
        """The configuration with the defaults of the platform and of plugins' options, what the platform's changed, and its warnings."""
        hook, warnings = self.manager.hook, []
        config = with_plugin_defaults(config, self.manager)
        patches = [patch for patches in hook.llmx_config_defaults(config=config, caps=caps) for patch in patches]
        config, changes = apply_patches(config, patches, user_set)
        for issue in (issue for issues in hook.llmx_config_check(config=config, caps=caps) for issue in issues):
            if issue.level == "error":
                raise ConfigError(f"{issue.path}: {issue.why}", field=issue.path)
            warnings.append(issue.why)
        return config, changes, warnings

    def executor(self, config: EngineConfig, caps: DeviceCaps, bundle: ModelBundle) -> tuple[Executor, list[ImplDef]]:
        """The platform's executor, or core's torch executor on the platform's torch device, with the kernels that core adds for it."""
        hook = self.manager.hook
        executor: Executor | None = hook.llmx_executor(config=config, caps=caps, bundle=bundle)
        if executor is not None:
            return executor, []
        device = self._required(hook.llmx_device_runtime(config=config, caps=caps), "llmx_executor (or llmx_device_runtime)")
        recorders = () if config.platform.enforce_eager else (("graphs", hook.llmx_graph_backend), ("compiler", hook.llmx_compiler))
        parts = DeviceParts(**{name: one(config=config, caps=caps) for name, one in (*recorders, ("allocator", hook.llmx_allocator))})
        return torch_executor(config, caps, bundle, device, parts), reference_kernels()

    def process_group(self, config: EngineConfig, caps: DeviceCaps, size: int) -> ProcessGroup:
        """Where `size` ranks meet. Raises PlatformError for a platform whose ranks cannot."""
        group: ProcessGroup | None = self.manager.hook.llmx_process_group(config=config, caps=caps, size=size)
        if group is None:
            raise PlatformError(f"platform {self.name!r} has no collectives (llmx_process_group): leave tensor_parallel_size out, or take --platform cpu")
        return group

    def communicator(self, config: EngineConfig, caps: DeviceCaps, group: ProcessGroup) -> Communicator:
        """This rank's end of a group; it comes back when all ranks are there."""
        found: Communicator = self._required(self.manager.hook.llmx_communicator(config=config, caps=caps, group=group), "llmx_communicator")
        return found

    def kernels(self, config: EngineConfig, caps: DeviceCaps) -> list[ImplDef]:
        """Every implementation that is offered for its ops, by the platform and by kernel providers."""
        hook = self.manager.hook
        offers = (hook.llmx_attention_backends, hook.llmx_gemm_kernels, hook.llmx_op_kernels)
        return [impl for offer in offers for defs in offer(config=config, caps=caps) for impl in defs]

    def choices(self, config: EngineConfig, caps: DeviceCaps, model: Model, executor: Executor, kernels: list[ImplDef]) -> list[KernelChoice]:
        """The implementation of every op of a model. kernels: what core adds, from `executor`."""
        impls, platform = [*kernels, *self.kernels(config, caps)], config.platform
        if config.lora.on and not executor.limits.has("lora.fusions"):  # adapters are added to the result of a linear, which a fusion does not show
            impls = [impl for impl in impls if len(impl.kinds) == 1 or "linear" not in impl.kinds]
        resolver = KernelResolver(impls, caps, abis=executor.limits.abis, orders=dict(platform.kernels), disabled=platform.disabled)
        dtype, kv_dtype = value_dtypes(config)
        return [choice for program in model.programs.values() for choice in resolver.resolve(program, kv_dtype=kv_dtype, dtype=dtype)]

    def _required(self, value: Any, hook: str) -> Any:
        if value is None:
            raise PlatformError(f"platform {self.name!r} does not implement the required hook {hook}")
        return value


def value_dtypes(config: EngineConfig) -> tuple[str, str]:
    """(dtype mode, page element type): ("auto" or "f32", "bf16", "f32", "i8" or "f8")."""
    return ("f32" if config.model.dtype == "float32" else "auto"), config.page_type
