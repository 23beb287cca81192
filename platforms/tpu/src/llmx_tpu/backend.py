"""The backend: which devices JAX uses, and what core is told of them. Only here is JAX's own configuration set."""

from __future__ import annotations

import os
import re
from pathlib import Path

import jax

from llmx.config import EngineConfig
from llmx.errors import ConfigError, PlatformError
from llmx.hooks import DeviceCaps
from llmx_tpu.mesh import Mesh

__all__ = ["backend_name", "device_caps", "mesh_size", "on_hardware", "open_mesh", "use_cache"]

NOT_VERIFIED = "not verified on hardware"
_DEVICE = re.compile(r"(tpu|cpu)(?::(\d+))?")


def backend_name(config: EngineConfig) -> str:
    """"tpu" or "cpu": --tpu-backend."""
    return str(config.plugins.get("tpu", {}).get("backend") or "tpu")


def mesh_size(config: EngineConfig) -> int:
    """Devices that one engine uses: --tpu-devices."""
    return int(config.plugins.get("tpu", {}).get("devices") or 1)


def on_hardware(config: EngineConfig) -> bool:
    """True when it runs on TPUs, and not on JAX's CPU backend."""
    return backend_name(config) == "tpu"


def open_mesh(config: EngineConfig) -> Mesh:
    """The devices. Raises PlatformError where JAX has no such backend, ConfigError for a --device or a number of devices that there is not."""
    name, wanted = backend_name(config), mesh_size(config)
    try:
        devices = jax.devices(name)
    except RuntimeError as error:
        why = str(error).strip().splitlines()[0]
        remedy = "on JAX's CPU backend: --tpu-backend cpu" if name == "tpu" else "reinstall jax"
        raise PlatformError(f"JAX {jax.__version__} has no {name} backend here ({why}); {remedy}; for TPUs: pip install 'llmx-platform-tpu[tpu]'") from error
    first = _first(config.platform.device, name)
    if first >= len(devices) or wanted > len(devices) - first:
        raise ConfigError(
            f"--tpu-devices {wanted} from {name}:{first} on, but JAX has {len(devices)} {name} devices: ask for fewer",
            field="device" if first >= len(devices) else "tpu_devices",
        )
    return Mesh(devices[first : first + wanted])


def _first(device: str | None, name: str) -> int:
    """The number of the first device in --device: "tpu:2", or nothing."""
    if device is None:
        return 0
    found = _DEVICE.fullmatch(device)
    if found is None or found[1] != name:
        raise ConfigError(f"--device is {device!r}: the backend is {name}, whose devices are {name}:0, {name}:1, ...", field="device")
    return int(found[2] or 0)


def use_cache(config: EngineConfig) -> str | None:
    """Compiled programs are kept in a folder between starts; gives it, or None where there is none."""
    if config.model.cache_dir is None:
        return None
    folder = Path(config.model.cache_dir) / "jax"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return str(folder)


def device_caps(config: EngineConfig) -> DeviceCaps:
    """Facts about the devices. Raises as `open_mesh` does."""
    mesh, hardware = open_mesh(config), on_hardware(config)
    kind = mesh.devices[0].device_kind
    features = {"vendor.tpu.mosaic", "dtype.bf16"} if hardware else {"host.unified", "vendor.tpu.interpreter"}
    return DeviceCaps(
        arch=f"jax {jax.__version__} {kind} x{mesh.size}" + ("" if hardware else f" ({NOT_VERIFIED})"),  # part of plan.numerics
        dtypes=frozenset({"f32", "bf16"}),
        features=frozenset(features),
        compute_units=mesh.size,
        total_bytes=mesh.size * _bytes(mesh.devices[0]),
        props={"backend": backend_name(config), "devices": mesh.size, "threads": len(os.sched_getaffinity(0))},
    )


def _bytes(device: jax.Device) -> int:
    """Memory of a device; of the CPU backend the machine's."""
    if device.platform != "cpu":
        return int((device.memory_stats() or {}).get("bytes_limit", 0)) or 16 << 30
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
