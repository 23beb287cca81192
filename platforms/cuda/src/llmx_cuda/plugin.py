"""The platform cuda: what NVIDIA GPUs have that others may not. Everything else is core's AcceleratorPlatform."""

from __future__ import annotations

from llmx.platform.accelerator import Accelerator, AcceleratorPlatform
from llmx.platform.libraries import library_impls

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
        libraries=(
            *library_impls("flashinfer", "flashinfer", "llmx_cuda.flashinfer_kernels", activations=("silu", "gelu", "gelu_tanh"), attention=True),
            # behind kernels that read pages where they lie: it copies them
            *library_impls("flash_attn", "flash-attn", "llmx_cuda.flash_attention", activations=None, attention=True, priority=25),
            *library_impls("torch", "cublaslt", "llmx_cuda.cublaslt", activations=None, linear=True),
        ),
        ranks="ProcessGroupNCCL",
    )
)
