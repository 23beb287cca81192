"""Probe of the CPU platform. Standard library only: it runs before anything of the platform is imported."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["detect"]

_MACHINES = ("x86_64", "amd64", "aarch64", "arm64")


def detect(env: Mapping[str, str] | None = None) -> Any:
    """Detection of this machine's CPUs. Score 10: any accelerator that is present goes first."""
    from llmx.hooks.types import Detection  # core is there whenever a probe is called

    machine = platform.machine()
    if sys.platform != "linux":
        return Detection(False, why=f"{sys.platform} is not supported; Linux (or WSL2) is")
    if machine.lower() not in _MACHINES:
        return Detection(False, why=f"machine {machine} is not supported; x86-64 and aarch64 are")
    cpus = len(os.sched_getaffinity(0))
    return Detection(True, count=cpus, score=10, why=f"{machine}, {cpus} CPU{'' if cpus == 1 else 's'} usable")
