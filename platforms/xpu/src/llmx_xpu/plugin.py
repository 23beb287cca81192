"""The platform xpu: Intel GPUs through torch.xpu. Everything else is core's AcceleratorPlatform."""

from __future__ import annotations

from llmx.platform.accelerator import Accelerator, AcceleratorPlatform

__all__ = ["PLATFORM"]

PLATFORM = AcceleratorPlatform(
    Accelerator(
        name="xpu",
        device_type="xpu",
        dist="llmx-platform-xpu",
        vendor="Intel",
        build="xpu",
        kernels="llmx_triton",
        features=frozenset({"graph.capture", "graph.piecewise"}),
    )
)
