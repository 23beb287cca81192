"""Probe of the TPU platform. Standard library only: it runs before anything of the platform is imported."""

from __future__ import annotations

from collections.abc import Mapping
from glob import glob
from importlib.util import find_spec
from typing import Any

__all__ = ["detect"]

_VENDOR, _CLASSES = "0x1ae0", ("0x120000", "0x1200")  # Google's number on the PCI bus; processing accelerators


def detect(env: Mapping[str, str] | None = None) -> Any:
    """Detection of TPU chips on the PCI bus, or under /dev. Without one the platform runs on JAX's CPU backend, but only when it is named."""
    from llmx.hooks.types import Detection  # core is there whenever a probe is called

    chips = _chips()
    if chips and find_spec("libtpu") is None:
        return Detection(False, count=chips, named=True, why=f"{chips} TPU chips, but libtpu is not installed: pip install 'llmx-platform-tpu[tpu]'")
    if chips:
        return Detection(True, count=chips, score=80, why=f"{chips} TPU chip{'' if chips == 1 else 's'}; this platform is not verified on hardware")
    return Detection(False, named=True, why="no TPU; named, with --tpu-backend cpu, it runs on JAX's CPU backend; not verified on hardware")


def _chips() -> int:
    found = 0
    for path in glob("/sys/bus/pci/devices/*/vendor"):
        folder = path.rpartition("/")[0]
        found += _read(path) == _VENDOR and _read(f"{folder}/class").startswith(_CLASSES)
    return found or len(glob("/dev/accel[0-9]*"))


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
