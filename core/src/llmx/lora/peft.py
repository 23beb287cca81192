"""read_peft: an adapter as PEFT saves it, adapter_config.json beside adapter_model.safetensors. Pickled adapters are refused."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from llmx.errors import ModelError
from llmx.lora.settings import AdapterSettings, read_settings
from llmx.weights.host_tensor import HostTensor
from llmx.weights.quant import dequantize
from llmx.weights.safetensors import SafetensorsFile

__all__ = ["Module", "PeftAdapter", "read_peft"]

WEIGHTS_NAME = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_ROLES = {  # end of a tensor's name -> what it is
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
    ".base_layer.weight": "base",  # the model's own, which peft adds where a head is adapted
}


@dataclass(slots=True)
class Module:
    """The adapter of one module. a: [rank, in], b: [out, rank]; magnitude: f32 [out] (DoRA)."""

    a: HostTensor
    b: HostTensor
    scale: float
    magnitude: np.ndarray | None = None
    base_shape: tuple[int, ...] | None = None  # of the weight that it was trained beside, where the file tells


@dataclass(frozen=True, slots=True)
class PeftAdapter:
    """One adapter, in memory of its own. digest: 16 bytes over everything that changes an answer, whatever the files' names are."""

    path: str
    settings: AdapterSettings
    modules: dict[str, Module] = field(default_factory=dict)
    digest: bytes = b""

    @property
    def rank(self) -> int:
        """The largest rank."""
        return max(module.a.shape[0] for module in self.modules.values())


def read_peft(path: str) -> PeftAdapter:
    """The adapter in a folder. Raises ModelError naming the file and the tensor or field at fault."""
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError("is no folder: an adapter is a folder as peft's save_pretrained writes it", path=path)
    settings = read_settings(folder)
    weights = folder / WEIGHTS_NAME
    if not weights.is_file():
        pickled = (folder / "adapter_model.bin").is_file()
        why = "its weights are pickled, which can run code when read: save it again with safe_serialization=True" if pickled else f"holds no {WEIGHTS_NAME}"
        raise ModelError(why, path=path)
    file = SafetensorsFile(str(weights))
    try:
        tensors = _by_module(file)
    finally:
        file.close()
    modules = {name: _module(name, found, settings, str(weights)) for name, found in sorted(tensors.items())}
    if not modules:
        raise ModelError("holds no tensors", path=str(weights))
    if not any(map(_changes, modules.values())):
        raise ModelError("this adapter would change nothing: every product of its matrices is zero, so it was not trained, or not saved", path=str(weights))
    return PeftAdapter(path, settings, modules, _digest(modules))


def _by_module(file: SafetensorsFile) -> dict[str, dict[str, HostTensor]]:
    found: dict[str, dict[str, HostTensor]] = {}
    for name in file.tensors:
        ending = next((one for one in _ROLES if name.endswith(one)), None)
        if ending is None:
            known = ", ".join(one[1:] for one in _ROLES)
            raise ModelError(f"tensor {name!r} is no part of a LoRA that is served here; names end with {known}", path=file.path)
        tensor = file.tensor(name)
        own = HostTensor(tensor.dtype, tensor.shape, np.array(tensor.data))  # the file may be replaced while requests run
        found.setdefault(name.removeprefix(_PREFIX).removesuffix(ending), {})[_ROLES[ending]] = own
    return found


def _module(name: str, found: dict[str, HostTensor], settings: AdapterSettings, path: str) -> Module:
    for role in ("a", "b"):
        if role not in found:
            raise ModelError(f"module {name!r} has no lora_{role.upper()}.weight", path=path)
    a, b, rank = found["a"], found["b"], settings.rank_of(name)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise ModelError(f"module {name!r} has lora_A of shape {list(a.shape)} and lora_B of {list(b.shape)}: matrices are needed", path=path)
    if a.shape[0] != rank or b.shape[1] != rank:
        raise ModelError(f"module {name!r} has rank {a.shape[0]} in lora_A and {b.shape[1]} in lora_B, but adapter_config.json says {rank}", path=path)
    if ("magnitude" in found) != settings.dora:
        which = "no lora_magnitude_vector, but use_dora is true" if settings.dora else "a lora_magnitude_vector, but use_dora is false"
        raise ModelError(f"module {name!r} has {which}", path=path)
    magnitude = dequantize(found["magnitude"]).reshape(-1) if settings.dora else None
    if magnitude is not None and magnitude.size != b.shape[0]:
        raise ModelError(f"module {name!r} has a lora_magnitude_vector of {magnitude.size} numbers for {b.shape[0]} rows", path=path)
    return Module(a, b, settings.scale_of(name), magnitude, found["base"].shape if "base" in found else None)


def _changes(module: Module) -> bool:
    return bool(module.scale != 0 and dequantize(module.a).any() and dequantize(module.b).any()) or module.magnitude is not None


def _digest(modules: dict[str, Module]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name, module in modules.items():
        for tensor in (module.a, module.b):
            digest.update(f"{name} {tensor.dtype} {tensor.shape} {module.scale!r}\n".encode())
            digest.update(tensor.data.tobytes())
        if module.magnitude is not None:
            digest.update(module.magnitude.tobytes())
    return digest.digest()
