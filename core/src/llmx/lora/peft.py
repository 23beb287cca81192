"""read_peft: an adapter as PEFT saves it, adapter_config.json beside adapter_model.safetensors. Pickled adapters are refused."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from llmx.errors import ModelError
from llmx.lora.settings import AdapterSettings, read_settings
from llmx.record import record
from llmx.weights.host_tensor import HostTensor
from llmx.weights.quant import dequantize
from llmx.weights.safetensors import SafetensorsFile

__all__ = ["Module", "PeftAdapter", "read_peft"]

WEIGHTS_NAME = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_SOMETIMES = ("classifier", "score")  # names that peft puts into modules_to_save by itself, of which a model has one or none
_ROLES = {  # end of a tensor's name -> what it is
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_embedding_A": "embedding_a",
    ".lora_embedding_B": "embedding_b",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
    ".base_layer.weight": "base",  # the model's own, which peft adds where a head is adapted
    ".weight": "whole",  # of a module that modules_to_save names
}


@dataclass(slots=True)
class Module:
    """The adapter of one module. a: [rank, in], b: [out, rank]; magnitude: f32 [out] (DoRA). embedding: `in` is the vocabulary."""

    a: HostTensor
    b: HostTensor
    scale: float
    magnitude: np.ndarray | None = None
    base_shape: tuple[int, ...] | None = None  # of the weight that it was trained beside, where the file tells
    embedding: bool = False


@record
class PeftAdapter:
    """One adapter, in memory of its own. whole: modules with a weight of their own in place of the model's.

    digest: 16 bytes over everything that changes an answer, whatever the files' names are.
    """

    path: str
    settings: AdapterSettings
    modules: dict[str, Module] = field(default_factory=dict)
    whole: dict[str, HostTensor] = field(default_factory=dict)
    digest: bytes = b""

    @property
    def rank(self) -> int:
        """The largest rank; 0 where all modules are whole."""
        return max((module.a.shape[0] for module in self.modules.values()), default=0)


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
    whole = _whole(tensors, settings, str(weights))
    modules = {name: _module(name, found, settings, str(weights)) for name, found in sorted(tensors.items()) if name not in whole}
    if not modules and not whole:
        raise ModelError("holds no tensors", path=str(weights))
    if not whole and not any(map(_changes, modules.values())):
        raise ModelError("this adapter would change nothing: every product of its matrices is zero, so it was not trained, or not saved", path=str(weights))
    return PeftAdapter(path, settings, modules, whole, _digest(modules, whole))


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


def _whole(tensors: dict[str, dict[str, HostTensor]], settings: AdapterSettings, path: str) -> dict[str, HostTensor]:
    """The weights of modules that are there whole. Raises ModelError where they are not those that modules_to_save names."""
    whole = {name: found["whole"] for name, found in sorted(tensors.items()) if "whole" in found}
    for name, tensor in whole.items():
        if not settings.saves(name):
            why = "modules_to_save does not name it: save the adapter again with save_embedding_layers=False, or merge it"
            raise ModelError(f"tensor {name + '.weight'!r} is the weight of a whole module, but {why}", path=path)
        if len(tensors[name]) > 1 or len(tensor.shape) != 2:
            raise ModelError(f"module {name!r} has a weight of shape {list(tensor.shape)} and {len(tensors[name]) - 1} more: one matrix is needed", path=path)
    for given in settings.whole:
        if given not in _SOMETIMES and not any(AdapterSettings.ends(name, given) for name in whole):
            raise ModelError(f"modules_to_save names {given!r}, but there is no weight of it: save the adapter again", path=path)
    return whole


def _module(name: str, found: dict[str, HostTensor], settings: AdapterSettings, path: str) -> Module:
    embedding = "embedding_a" in found or "embedding_b" in found
    roles = {f"lora_embedding_{one}": f"embedding_{one.lower()}" for one in "AB"} if embedding else {f"lora_{one}.weight": one.lower() for one in "AB"}
    for tensor, role in roles.items():
        if role not in found:
            raise ModelError(f"module {name!r} has no {tensor}", path=path)
    a, b = (found[role] for role in roles.values())
    rank = settings.rank_of(name)
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
    return Module(a, b, settings.scale_of(name), magnitude, found["base"].shape if "base" in found else None, embedding)


def _changes(module: Module) -> bool:
    return bool(module.scale != 0 and dequantize(module.a).any() and dequantize(module.b).any()) or module.magnitude is not None


def _digest(modules: dict[str, Module], whole: dict[str, HostTensor]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in whole.items():
        digest.update(f"{name} is {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(tensor.data.tobytes())
    for name, module in modules.items():
        for tensor in (module.a, module.b):
            digest.update(f"{name} {tensor.dtype} {tensor.shape} {module.scale!r}\n".encode())
            digest.update(tensor.data.tobytes())
        if module.magnitude is not None:
            digest.update(module.magnitude.tobytes())
    return digest.digest()
