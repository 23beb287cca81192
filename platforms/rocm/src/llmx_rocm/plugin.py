"""The platform rocm: AMD GPUs, which torch for ROCm calls "cuda". Everything else is core's AcceleratorPlatform."""

from __future__ import annotations

from llmx.platform.accelerator import Accelerator, AcceleratorPlatform
from llmx.platform.libraries import library_impls

__all__ = ["PLATFORM"]

PLATFORM = AcceleratorPlatform(
    Accelerator(
        name="rocm",
        device_type="cuda",
        dist="llmx-platform-rocm",
        vendor="AMD",
        build="hip",
        kernels="llmx_triton",
        features=frozenset({"graph.capture", "graph.piecewise", "collectives.int64"}),
        libraries=library_impls("aiter", "aiter", "llmx_rocm.aiter_kernels", activations=("silu", "gelu", "gelu_tanh")),
        ranks="ProcessGroupNCCL",  # which is RCCL in torch for ROCm
    )
)
