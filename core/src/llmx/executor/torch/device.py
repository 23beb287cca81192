"""The device of a torch executor: opened by its torch name, and what core is told of it."""

from __future__ import annotations

import os

import torch

from llmx.errors import PlatformError
from llmx.hooks.types import DeviceCaps

__all__ = ["device_caps", "free_bytes", "open_device"]


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
        arch=f"torch {torch.__version__} {device.type}",  # part of plan.numerics, which ranks compare
        dtypes=frozenset({"f32", "bf16", "f16"}),
        features=frozenset({"host.unified", "numpy.ops"} if on_cpu else _features(device)),
        compute_units=(os.cpu_count() or 1) if on_cpu else _compute_units(device),
        total_bytes=_total_bytes(device),
        props={"threads": torch.get_num_threads()},
    )


def _total_bytes(device: torch.device) -> int:
    """Memory of the device in bytes; 0 where its backend does not tell."""
    if device.type == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _memory(device)[1]


def free_bytes(device: torch.device) -> int | None:
    """Bytes that can still be allocated on a device with memory of its own; None where it has none, or its backend does not tell."""
    return None if device.type == "cpu" else _memory(device)[0] or None


def _memory(device: torch.device) -> tuple[int, int]:
    """(free, total) in bytes; zeros where the backend does not tell."""
    info = getattr(torch.get_device_module(device), "mem_get_info", None) or getattr(torch.accelerator, "get_memory_info", None)
    free, total = info(device) if info is not None else (0, 0)
    return int(free), int(total)


def _features(device: torch.device) -> set[str]:
    """What torch's backend tells of a device that is not the CPU."""
    module = torch.get_device_module(device)
    found = {"streams"} if hasattr(module, "Stream") else set()
    return found | ({"dtype.bf16"} if getattr(module, "is_bf16_supported", lambda: False)() else set())


def _compute_units(device: torch.device) -> int:
    """Multiprocessors, or whatever the backend counts; 1 where it counts nothing."""
    properties = getattr(torch.get_device_module(device), "get_device_properties", lambda device: None)(device)
    names = ("multi_processor_count", "gpu_subslice_count", "max_compute_units")
    return next((int(getattr(properties, name)) for name in names if getattr(properties, name, 0)), 1)
