"""Is there an Intel GPU that torch can use? Reads files of the kernel driver alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llmx.hooks.probing import DeviceFiles, detect_devices
from llmx.hooks.types import Detection

__all__ = ["detect"]

_INTEL = "0x8086"  # PCI vendor


def detect(environ: Mapping[str, str], root: Path = Path("/")) -> Detection:
    """Render nodes of Intel devices. Score 40: beside another accelerator it is most likely the processor's own. root: where dev and sys are (tests)."""
    files = [path.name for path in sorted((root / "dev/dri").glob("renderD*")) if _vendor(root, path.name) == _INTEL]
    return detect_devices(environ, DeviceFiles("xpu", files, "no Intel device among /dev/dri/renderD*", ("ZE_AFFINITY_MASK",), "xpu", score=40))


def _vendor(root: Path, node: str) -> str:
    try:
        return (root / "sys/class/drm" / node / "device/vendor").read_text().strip()
    except OSError:
        return ""
