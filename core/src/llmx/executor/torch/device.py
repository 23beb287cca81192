"""The device of a torch executor: opened by its torch name, and what core is told of it."""

from __future__ import annotations

import os

import torch

from llmx.errors import PlatformError
from llmx.hooks.types import DeviceCaps

__all__ = ["device_caps", "open_device"]


def open_device(name: str) -> torch.device:
    """The device, once one addition ran on it. Raises PlatformError naming the option for one that torch cannot use."""
    try:
        device = torch.device(name)
        if (torch.ones(1, device=device) + 1).item() != 2:
            raise RuntimeError("1 + 1 is not 2 there")
    except Exception as error:  # noqa: BLE001 - each backend of torch raises errors of its own
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PlatformError(f"--device {name!r}: torch {torch.__version__} cannot use it: {why}; on every machine: --device cpu") from error
    return device


def device_caps(name: str, threads: int | None) -> DeviceCaps:
    """Facts about the device. threads: how many torch may use on the CPU; None leaves torch's own number."""
    device = open_device(name)
    if threads is not None:
        torch.set_num_threads(threads)
    on_cpu = device.type == "cpu"
    return DeviceCaps(
        arch=f"torch {torch.__version__} {name}",  # part of plan.numerics
        dtypes=frozenset({"f32", "bf16", "f16"}),
        features=frozenset({"host.unified"} if on_cpu else ()),
        compute_units=(os.cpu_count() or 1) if on_cpu else 1,
        total_bytes=_total_bytes(device),
        props={"threads": torch.get_num_threads()},
    )


def _total_bytes(device: torch.device) -> int:
    """Memory of the device in bytes; 0 where its backend does not tell."""
    if device.type == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    info = getattr(torch.get_device_module(device), "mem_get_info", None)
    return int(info(device)[1]) if info is not None else 0
