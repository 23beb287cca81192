"""Is there an AMD GPU that torch can use? Reads files of the kernel driver alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llmx.hooks.probing import DeviceFiles, detect_devices
from llmx.hooks.types import Detection

__all__ = ["detect"]

_VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")  # torch for ROCm heeds the last one too


def detect(environ: Mapping[str, str], root: Path = Path("/")) -> Detection:
    """Nodes of the compute driver that are GPUs: /dev/kfd, and a gpu_id other than 0. root: where dev and sys are (tests)."""
    files = [f"kfd node {path.parent.name}" for path in _nodes(root) if _gpu_id(path)] if (root / "dev/kfd").exists() else []
    return detect_devices(environ, DeviceFiles("rocm", files, "no GPU behind /dev/kfd", _VISIBLE, "hip"))


def _nodes(root: Path) -> list[Path]:
    return sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id"))


def _gpu_id(path: Path) -> bool:
    """False for a CPU, whose id is 0, and for a GPU that this process may not see, whose file cannot be read."""
    try:
        return path.read_text().strip() not in ("", "0")
    except OSError:
        return False
