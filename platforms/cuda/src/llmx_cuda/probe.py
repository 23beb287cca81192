"""Is there an NVIDIA GPU that torch can use? Reads device files alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llmx.hooks.probing import DeviceFiles, detect_devices
from llmx.hooks.types import Detection

__all__ = ["detect"]


def detect(environ: Mapping[str, str], root: Path = Path("/")) -> Detection:
    """/dev/nvidia0 and so on; under WSL2 /dev/dxg beside its driver library. root: where dev and usr are (tests)."""
    files = sorted(path.name for path in (root / "dev").glob("nvidia[0-9]*"))
    if not files and (root / "dev/dxg").exists() and (root / "usr/lib/wsl/lib/libcuda.so.1").exists():
        files = ["dxg"]
    return detect_devices(environ, DeviceFiles("cuda", files, "no /dev/nvidia0 and so on", ("CUDA_VISIBLE_DEVICES",), "cuda"))
