"""Types of a Program: values, weights, states, ops, and the open registry of op kinds.

A Program is a flat list of ops in SSA form over symbolic shapes. Model files emit no fusions. Between ops a value has dtype
"act" (the executor's choice: f32 on native), "f32" where required, or "i32". Changing this file needs an ADR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from llmx.errors import ProgramError
from llmx.kv.spec import KVSpec
from llmx.record import record

__all__ = [
    "DENSE_BF16",
    "ActKey",
    "Dim",
    "DType",
    "Model",
    "Op",
    "OpDef",
    "OpRegistry",
    "Part",
    "Program",
    "QuantKey",
    "QuantOf",
    "Region",
    "State",
    "Sym",
    "SymDiv",
    "Transform",
    "Value",
    "WeightRef",
]

DType = Literal["act", "f32", "i32"]
Split = Literal["heads", "kv_heads", "ffn", "vocab", "expert"]


@record
class Sym:
    """A size known only when a step runs: T tokens, N requests, R head rows, E.<tower> encoder rows."""

    name: str

    def __str__(self) -> str:
        return self.name

    def __floordiv__(self, by: int) -> SymDiv:
        return SymDiv(self, by)


@record
class SymDiv:
    """A symbolic size divided by a whole number (strided convolution, patch merging)."""

    sym: Sym
    by: int

    def __str__(self) -> str:
        return f"{self.sym}//{self.by}"


Dim = int | Sym | SymDiv


@record
class Value:
    """The result of an op or an input. Ids are unique in a Program."""

    id: int
    shape: tuple[Dim, ...]
    dtype: DType = "act"


@record
class ActKey:
    """How an input row is quantised before a product: element dtype and elements per scale."""

    dtype: str
    block: int


@record
class QuantKey:
    """How a weight is stored: a scheme and its tensors as (role, dtype, elements per block).

    The meaning is the numpy dequantisation in llmx.weights.quant. Dense weights: scheme "dense", one tensor, block 1.
    """

    scheme: str
    tensors: tuple[tuple[str, str, int], ...]
    act: ActKey | None = None

    def __str__(self) -> str:
        return self.tensors[0][1] if self.scheme == "dense" else self.scheme


QuantOf = Callable[[str], QuantKey]  # canonical tensor name -> how it is stored

DENSE_BF16 = QuantKey("dense", (("data", "bf16", 1),))


@record
class Transform:
    """A named change of a stored tensor, exact on quantised data: it moves whole rows, or slices columns at block borders.

    slice_rows(start, stop) | permute_rows(heads): rotary halves <-> pairs per head, as in GGUF llama files | transpose()
    | slice_cols(start, stop) | row(i): one item of a stacked tensor | flatten(): all axes but the first become one (dense only).
    """

    name: str
    args: tuple[int, ...] = ()


@record
class WeightRef:
    """A tensor of the checkpoint: its canonical (Hugging Face) name, the shape after the transforms, its storage."""

    name: str
    shape: tuple[int, ...]
    quant: QuantKey = DENSE_BF16
    transforms: tuple[Transform, ...] = ()


@record
class Part:
    """One weight of an op under the name that checkpoints and LoRA adapters use.

    rows: output rows (linear) or elements. split: how tensor parallelism cuts it; None: replicated.
    """

    target: str
    weight: WeightRef
    bias: WeightRef | None = None
    rows: int = 0
    split: Split | None = None


@record
class State:
    """Memory that outlives a step: KV pages or recurrent state. Several ops may name one (KV sharing)."""

    name: str
    spec: KVSpec
    owner: str  # the Program whose op writes it


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """Place of an op in a repeated structure: ("layer", 3, "attn"). Equal blocks may be scanned, compiled or captured once."""

    block: str
    index: int
    part: str

    def __str__(self) -> str:
        return f"{self.block}.{self.index}.{self.part}"


@record
class Op:
    """One operation. weights: role -> Parts in order (linear: role "w")."""

    kind: str
    ins: tuple[Value | None, ...]
    outs: tuple[Value, ...]
    attrs: Any
    weights: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)
    states: tuple[str, ...] = ()
    region: Region = Region("model", 0, "")


@record
class Program:
    """A named flat list of ops. inputs: name -> Value (ids [T] i32, positions [T] or [3, T] i32, head [R] i32, ...)."""

    name: str
    inputs: Mapping[str, Value]
    ops: tuple[Op, ...]

    def outputs(self) -> dict[str, Value]:
        """Named results: attrs.name of each `output` op -> its input."""
        return {op.attrs.name: op.ins[0] for op in self.ops if op.kind == "output" and op.ins[0] is not None}

    def parts(self) -> Iterator[Part]:
        """Every Part of every op, in order; one that several ops use comes several times."""
        for op in self.ops:
            for parts in op.weights.values():
                yield from parts


@record
class Model:
    """programs ("main"; where present "encode.<tower>", "cross_kv", "draft", "pool") and the table of states.

    The weight table is what the Programs' Parts name (`weights()`).
    """

    programs: Mapping[str, Program]
    states: Mapping[str, State]

    def weights(self) -> dict[tuple[str, tuple[Transform, ...]], WeightRef]:
        """Every weight used, by (name, transforms); biases included. A tied weight stands once."""
        table: dict[tuple[str, tuple[Transform, ...]], WeightRef] = {}
        for program in self.programs.values():
            for part in program.parts():
                for ref in (part.weight, part.bias):
                    if ref is not None:
                        table[ref.name, ref.transforms] = ref
        return table


ShapeRule = Callable[[Op], tuple[tuple[tuple[Dim, ...], DType], ...]]


@record
class OpDef:
    """A kind of op. attrs: the class its attrs must have. shape: (op) -> ((shape, dtype), ...) of the outputs, raising
    ProgramError for inputs or weights that do not fit. decompose: (op, fresh values) -> primitive ops, or reference: a
    "package.module:attribute" target that computes it; at least one of the two unless the kind is a primitive.
    """

    kind: str
    attrs: type
    shape: ShapeRule
    decompose: Callable[[Op, Callable[[tuple[Dim, ...], DType], Value]], list[Op]] | None = None
    reference: str | None = None


class OpRegistry:
    """Op kinds by name. Core's own are in llmx.program.kinds; a registry can be extended, and `verify` takes one."""

    def __init__(self, defs: Mapping[str, OpDef] | None = None) -> None:
        self._defs = dict(defs or {})

    def add(self, definition: OpDef) -> None:
        """Register a kind. Raises ProgramError for a kind that exists."""
        if definition.kind in self._defs:
            raise ProgramError(f"op kind {definition.kind!r} is registered twice")
        self._defs[definition.kind] = definition

    def get(self, kind: str) -> OpDef:
        """The definition of a kind. Raises ProgramError naming the known kinds."""
        try:
            return self._defs[kind]
        except KeyError:
            raise ProgramError(f"unknown op kind {kind!r}; known: {', '.join(sorted(self._defs))}") from None

    def kinds(self) -> list[str]:
        """All registered kinds, sorted."""
        return sorted(self._defs)
