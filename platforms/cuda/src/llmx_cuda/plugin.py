"""The platform cuda: what NVIDIA GPUs have that others may not. Everything else is core's AcceleratorPlatform."""

from __future__ import annotations

from llmx.platform.accelerator import Accelerator, AcceleratorPlatform

__all__ = ["PLATFORM"]

PLATFORM = AcceleratorPlatform(
    Accelerator(
        name="cuda",
        device_type="cuda",
        dist="llmx-platform-cuda",
        vendor="NVIDIA",
        build="cuda",
        kernels="llmx_triton",
        features=frozenset({"graph.capture", "graph.piecewise", "collectives.int64"}),
    )
)
