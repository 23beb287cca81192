"""Capability names: what core and kernels may ask of a device. Unknown names fail when a platform is loaded.

Core asks `caps.has("graph.capture")`, never who the vendor is. A platform's own names are `vendor.<platform>.<name>`.
"""

from __future__ import annotations

from llmx.errors import PlatformError
from llmx.hooks.types import DeviceCaps

__all__ = ["CAPABILITIES", "check_caps"]

CAPABILITIES: frozenset[str] = frozenset(
    {
        "batch_invariant",  # a row's result does not depend on the other rows
        "collectives.int64",  # reductions over 64-bit integers
        "dtype.bf16",  # bf16 arithmetic in hardware
        "dtype.fp8_e4m3",
        "dtype.int8",
        "fp8.native",
        "graph.capture",  # a recorded sequence of kernels can be replayed
        "graph.piecewise",
        "host.mapped",  # device reads host memory directly
        "host.unified",  # device memory is host memory
        "kernels.tiles",  # kernels that are written as tile programs in Python can be compiled for it, or interpreted
        "memory.sleep",  # device memory can be given back while the engine waits
        "numpy.ops",  # float32 views of values can be handed to numpy kernels
        "streams",
    }
)


def check_caps(caps: DeviceCaps, platform: str) -> DeviceCaps:
    """The same caps. Raises PlatformError for a feature that is neither registered nor the platform's own."""
    own = f"vendor.{platform}."
    unknown = sorted(name for name in caps.features if name not in CAPABILITIES and not name.startswith(own))
    if unknown:
        raise PlatformError(f"platform {platform!r} declares unknown capabilities {unknown}: use registered names (llmx.platform.caps) or {own}*")
    return caps
