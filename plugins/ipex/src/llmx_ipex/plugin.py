"""Hooks: rms norm and gated activations of Intel Extension for PyTorch 2.8, on a CPU. Imports neither torch nor the extension.

They are taken when the user orders them (`--kernel norm=ipex`). The extension ends a process that has another torch than its own, so both
versions are read from what is installed before it is imported.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from llmx.config import EngineConfig
from llmx.hooks import DeviceCaps, ImplDef, hookimpl
from llmx.platform.libraries import library_impls

__all__ = ["llmx_op_kernels", "usable"]

_RELEASE = "2.8"
_HOST = "numpy.ops"  # values lie in host memory


@hookimpl
def llmx_op_kernels(config: EngineConfig, caps: DeviceCaps) -> list[ImplDef]:
    """norm and act_mul, for a device whose values lie in host memory."""
    if not caps.has(_HOST):
        return []
    activations = ("silu", "gelu", "gelu_tanh")
    kernels = "llmx_ipex.kernels"
    return list(library_impls("intel_extension_for_pytorch", "ipex", kernels, activations=activations, exact=True, usable=usable, requires=_HOST, priority=-10))


def usable() -> str | None:
    """None, or why the installed extension cannot be imported here."""
    found = {name: _version(name) for name in ("intel_extension_for_pytorch", "torch")}
    for name, number in found.items():
        if not number.startswith(f"{_RELEASE}."):
            return f"{name} is {number or 'not installed'}: {_RELEASE} is needed, with torch {_RELEASE}"
    return None


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
