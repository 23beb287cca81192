"""bind: the modules of an adapter on the Parts of a model's main Program."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

from llmx.errors import ModelError
from llmx.executor.adapters import AdapterPart
from llmx.program.ops import Model, Part
from llmx.weights.host_tensor import HostTensor

if TYPE_CHECKING:
    from llmx.lora.peft import Module, PeftAdapter

__all__ = ["bind"]


def bind(adapter: PeftAdapter, model: Model) -> dict[str, AdapterPart]:
    """Part.target -> what the adapter adds there. Raises ModelError for a module that is unknown or no linear, and for shapes that do not fit.

    A checkpoint tensor that several Parts share (qkv in one) gives each its rows of B.
    """
    linears, others = _modules(model)
    bound: dict[str, AdapterPart] = {}
    for name, module in adapter.modules.items():
        found = next((one for one in _spellings(name) if one in linears), None)
        if found is None:
            raise ModelError(_unknown(name, linears, others), path=adapter.path)
        bound.update(_fit(name, module, linears[found], adapter.path))
    return bound


def _modules(model: Model) -> tuple[dict[str, list[Part]], dict[str, str]]:
    """(module name -> its Parts of linears in the order of their rows, module name -> kind of the other op that has it)."""
    linears: dict[str, list[Part]] = {}
    others: dict[str, str] = {}
    for op in model.programs["main"].ops:  # a drafter guesses without the adapter
        for part in (part for parts in op.weights.values() for part in parts):
            module = part.weight.name.removesuffix(".weight")
            shared = part.target.startswith(f"{module}.")  # one of several Parts of a tensor
            if op.kind != "linear":
                others[module] = op.kind
            elif part not in linears.setdefault(module if shared else part.target, []):
                linears[module if shared else part.target].append(part)
    return linears, others


def _spellings(name: str) -> Iterator[str]:
    """A module's name with and without the prefix that models with a head have."""
    yield name
    for prefix in ("model.", "transformer."):
        yield f"{prefix}{name}"
        if name.startswith(prefix):
            yield name.removeprefix(prefix)


def _unknown(name: str, linears: dict[str, list[Part]], others: dict[str, str]) -> str:
    kind = next((others[one] for one in _spellings(name) if one in others), None)
    if kind is not None:
        return f"module {name!r} is no linear but {kind!r}: adapters of linear modules are served; train without it, or merge it into the model's weights"
    near = get_close_matches(name, linears, n=1)
    return f"module {name!r} is not in this model" + (f"; nearest: {near[0]!r}" if near else "") + ": the adapter belongs to another model"


def _fit(name: str, module: Module, parts: list[Part], path: str) -> Iterator[tuple[str, AdapterPart]]:
    first, width, rows = 0, parts[0].weight.shape[-1], sum(part.rows for part in parts)
    if module.a.shape[1] != width or module.b.shape[0] != rows:
        have = f"lora_A takes {module.a.shape[1]} inputs and lora_B gives {module.b.shape[0]} outputs"
        raise ModelError(f"module {name!r}: {have}, but the model's has {width} and {rows}: the adapter belongs to another model", path=path)
    if module.base_shape is not None and module.base_shape != (rows, width):
        have = f"it was trained beside a weight of {list(module.base_shape)}, but the model's is {[rows, width]}"
        raise ModelError(f"module {name!r}: {have}: a vocabulary that was changed is not served; merge the adapter", path=path)
    for part in parts:
        span = slice(first, first + part.rows)
        b = HostTensor(module.b.dtype, (part.rows, module.b.shape[1]), module.b.data[span])
        yield part.target, AdapterPart(module.a, b, module.scale, None if module.magnitude is None else module.magnitude[span])
        first += part.rows
