"""The platform xpu: Intel GPUs through torch.xpu. Everything else is core's AcceleratorPlatform."""

from __future__ import annotations

from llmx.platform.accelerator import Accelerator, AcceleratorPlatform
from llmx.platform.libraries import library_impls

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
        libraries=library_impls("vllm_xpu_kernels", "vllm-xpu-kernels", "llmx_xpu.sycl_kernels", activations=("silu", "gelu", "gelu_tanh")),
        ranks="ProcessGroupXCCL",
    )
)
