"""The platform `torch` on a CPU beside what llmx-platform-cpu computes for it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from llmx.config import EngineConfig
from llmx.testing.conformance.subject import Subject

__all__ = ["Asked"]


class Asked(Subject):
    """Every executor of it is made with these kernels in order: KIND=PROVIDER[,PROVIDER]. options: of llmx.resolve, also another platform on that device.

    hooks: the module with the providers, by default the CPU platform's; its entry point need not be installed.
    """

    def __init__(self, *kernels: str, hooks: Any = None, **options: Any) -> None:
        hooks = hooks or import_module("llmx_cpu.providers")
        super().__init__(options.get("platform", "torch"), emulate="device" in options)
        if not any(plugin is hooks for plugin in self.manager.get_plugins()):
            self.manager.register(hooks)
        self.options |= {"kernel": list(kernels), **options}
        self.config, self.caps = self.configured(dtype="float32")

    def configured(self, **options: Any) -> tuple[EngineConfig, Any]:
        """As of the platform."""
        return super().configured(**{**self.options, **options})
