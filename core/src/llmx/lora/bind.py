"""bind: the modules of an adapter on the Parts of a model's main Program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING

from llmx.errors import ModelError
from llmx.executor.adapters import AdapterPart, LoraPart, WholePart
from llmx.program.ops import Model, Part
from llmx.weights.host_tensor import HostTensor

if TYPE_CHECKING:
    from llmx.lora.peft import Module, PeftAdapter

__all__ = ["bind", "embedding_targets"]

_DENSE = ("f32", "f16", "bf16")


@dataclass(slots=True)
class _Modules:
    """The modules of a model by name. linears: Parts in the order of their rows; others: the kind of the op that has it."""

    linears: dict[str, list[Part]] = field(default_factory=dict)
    embeddings: dict[str, list[Part]] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)


def bind(adapter: PeftAdapter, model: Model) -> dict[str, LoraPart]:
    """Part.target -> what the adapter adds there. Raises ModelError for a module that is unknown or cannot be adapted, and for shapes that do not fit.

    A checkpoint tensor that several Parts share (qkv in one) gives each its rows of B.
    """
    known = _modules(model)
    bound: dict[str, LoraPart] = {}
    for name, module in adapter.modules.items():
        have = known.embeddings if module.embedding else known.linears
        bound.update(_fit(name, module, have[_find(name, have, known, adapter.path)], adapter.path))
    every = {**known.linears, **known.embeddings}
    for name, weight in adapter.whole.items():
        bound.update(_replace(name, weight, every[_find(name, every, known, adapter.path)], adapter.path))
    return bound


def embedding_targets(model: Model) -> set[str]:
    """Part.target of the tables that tokens are looked up in."""
    return {part.target for parts in _modules(model).embeddings.values() for part in parts}


def _modules(model: Model) -> _Modules:
    found = _Modules()
    for op in model.programs["main"].ops:  # a drafter guesses without the adapter
        for part in (part for parts in op.weights.values() for part in parts):
            module = part.weight.name.removesuffix(".weight")
            shared = part.target.startswith(f"{module}.")  # one of several Parts of a tensor
            if op.kind == "embed":
                found.embeddings[part.target] = [part]
            elif op.kind != "linear":
                found.others[module] = op.kind
            elif part not in found.linears.setdefault(module if shared else part.target, []):
                found.linears[module if shared else part.target].append(part)
    return found


def _find(name: str, have: dict[str, list[Part]], known: _Modules, path: str) -> str:
    found = next((one for one in _spellings(name) if one in have), None)
    if found is None:
        raise ModelError(_unknown(name, have, known), path=path)
    return found


def _spellings(name: str) -> Iterator[str]:
    """A module's name with and without the prefix that models with a head have."""
    yield name
    for prefix in ("model.", "transformer."):
        yield f"{prefix}{name}"
        if name.startswith(prefix):
            yield name.removeprefix(prefix)


def _unknown(name: str, have: dict[str, list[Part]], known: _Modules) -> str:
    others = {**known.others, **dict.fromkeys(known.embeddings, "embed"), **dict.fromkeys(known.linears, "linear")}
    kind = next((others[one] for one in _spellings(name) if one in others), None)
    if kind is not None:
        wanted = "no linear" if have is known.linears else "no embedding" if have is known.embeddings else "neither linear nor embedding"
        remedy = "adapters of linear modules and embeddings are served; train without it, or merge it into the model's weights"
        return f"module {name!r} is {wanted} but {kind!r}: {remedy}"
    near = get_close_matches(name, have, n=1)
    return f"module {name!r} is not in this model" + (f"; nearest: {near[0]!r}" if near else "") + ": the adapter belongs to another model"


def _fit(name: str, module: Module, parts: list[Part], path: str) -> Iterator[tuple[str, LoraPart]]:
    first, width, rows = 0, parts[0].weight.shape[-1], sum(part.rows for part in parts)
    table = (rows, width)
    if module.embedding:
        width, rows = table = (parts[0].weight.shape[0], parts[0].weight.shape[1])
    if module.a.shape[1] != width or module.b.shape[0] != rows:
        have = f"lora_A takes {module.a.shape[1]} inputs and lora_B gives {module.b.shape[0]} outputs"
        raise ModelError(f"module {name!r}: {have}, but the model's has {width} and {rows}: the adapter belongs to another model", path=path)
    if module.base_shape is not None and module.base_shape != table:
        have = f"it was trained beside a weight of {list(module.base_shape)}, but the model's is {list(table)}"
        raise ModelError(f"module {name!r}: {have}: a vocabulary that was changed is not served; merge the adapter", path=path)
    if module.embedding:
        yield parts[0].target, AdapterPart(module.a, module.b, module.scale, module.magnitude)
        return
    for part in parts:
        span = slice(first, first + part.rows)
        b = HostTensor(module.b.dtype, (part.rows, module.b.shape[1]), module.b.data[span])
        yield part.target, AdapterPart(module.a, b, module.scale, None if module.magnitude is None else module.magnitude[span])
        first += part.rows


def _replace(name: str, weight: HostTensor, parts: list[Part], path: str) -> Iterator[tuple[str, LoraPart]]:
    first, wanted = 0, (sum(part.rows for part in parts), parts[0].weight.shape[-1])
    if weight.shape != wanted:
        why = "a vocabulary that was changed is not served; merge the adapter, or serve it on its own model"
        raise ModelError(f"module {name!r} is saved whole with a weight of {list(weight.shape)}, but the model's is {list(wanted)}: {why}", path=path)
    if weight.dtype not in _DENSE:
        raise ModelError(f"module {name!r} is saved whole as {weight.dtype}: {', '.join(_DENSE)} are served", path=path)
    if any(part.bias is not None for part in parts):
        raise ModelError(f"module {name!r} is saved whole and has a bias: such modules are not served; merge the adapter", path=path)
    if any(transform.name == "transpose" for part in parts for transform in part.weight.transforms):
        raise ModelError(f"module {name!r} is saved whole, and its matrix is stored turned over: such modules are not served; merge the adapter", path=path)
    for part in parts:
        yield part.target, WholePart(HostTensor(weight.dtype, (part.rows, wanted[1]), weight.data[first : first + part.rows]))
        first += part.rows
