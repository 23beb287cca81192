"""ProgramBuilder: writes a Program op by op. Each method appends one op and gives back its results, with shapes from the shape rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

from llmx.errors import ProgramError
from llmx.kv.spec import KVSpec
from llmx.program import attrs as A
from llmx.program.kinds import core_registry
from llmx.program.kinds.recurrent import recurrent_state
from llmx.program.ops import DENSE_BF16, Dim, DType, Model, Op, OpRegistry, Part, Program, QuantOf, Region, Split, State, Sym, Transform, Value, WeightRef
from llmx.record import record

__all__ = ["E", "ModelBuilder", "N", "PartDef", "ProgramBuilder", "QuantOf", "R", "T", "part"]

T, N, R = Sym("T"), Sym("N"), Sym("R")  # token rows, requests, head rows of a step


def E(tower: str) -> Sym:
    """The symbol of a tower's encoder rows."""
    return Sym(f"E.{tower}")


@record
class PartDef:
    """A Part whose input width is not said yet: `linear` takes it from its input. Made by `part`."""

    target: str
    rows: int
    split: Split | None = None
    bias: bool | str = False  # True: target + ".bias"; a tensor name
    weight: str | None = None  # tensor name; None: target + ".weight"
    transforms: tuple[Transform, ...] = ()
    shape: tuple[int, ...] | None = None  # shape of the weight; None: (rows, width of the input)


def part(target: str, rows: int, split: Split | None = None, **options: Any) -> PartDef:
    """One part of a linear: `rows` outputs of the module `target`. options: bias, weight, transforms, shape as in PartDef."""
    return PartDef(target, rows, split, **options)


class ModelBuilder:
    """Collects Programs and States of one Model. quant tells how each tensor is stored (bf16 when not given)."""

    def __init__(self, quant: QuantOf | None = None, registry: OpRegistry | None = None) -> None:
        self.quant: QuantOf = quant or (lambda name: DENSE_BF16)
        self.registry = registry or core_registry()
        self._programs: dict[str, ProgramBuilder] = {}
        self._states: dict[str, State] = {}

    def program(self, name: str) -> ProgramBuilder:
        """A new, empty Program. Raises ProgramError when the name is taken."""
        if name in self._programs:
            raise ProgramError(f"program {name!r} exists already")
        self._programs[name] = ProgramBuilder(name, self)
        return self._programs[name]

    def resume(self, program: Program) -> ProgramBuilder:
        """A Program of another Model, to which ops may be added. Raises ProgramError when the name is taken."""
        b = self.program(program.name)
        b._inputs, b._ops = dict(program.inputs), list(program.ops)
        b._next = 1 + max(v.id for v in (*program.inputs.values(), *(v for op in program.ops for v in op.outs)))
        return b

    def state(self, name: str, spec: KVSpec, owner: str) -> str:
        """Registers a State, or finds the equal one; gives back its name. Raises ProgramError for one that differs."""
        state = State(name, spec, owner)
        if self._states.setdefault(name, state) != state:
            raise ProgramError(f"state {name!r} is {self._states[name]}; it cannot also be {state}")
        return name

    def build(self) -> Model:
        """The Model. Check it with llmx.program.verify."""
        return Model({name: p.build() for name, p in self._programs.items()}, dict(self._states))


class ProgramBuilder:
    """Appends ops to one Program; made by ModelBuilder.program."""

    def __init__(self, name: str, model: ModelBuilder) -> None:
        self.name, self.model = name, model
        self._inputs: dict[str, Value] = {}
        self._ops: list[Op] = []
        self._region = Region("model", 0, "")
        self._next = 0

    # ---- values, weights, places

    def _value(self, shape: tuple[Dim, ...], dtype: DType) -> Value:
        self._next += 1
        return Value(self._next - 1, shape, dtype)

    def input(self, name: str, shape: Sequence[Dim] = (T,), dtype: DType = "i32") -> Value:
        """A named input of the Program."""
        if name in self._inputs:
            raise ProgramError(f"program {self.name}: input {name!r} exists already")
        self._inputs[name] = self._value(tuple(shape), dtype)
        return self._inputs[name]

    @contextmanager
    def region(self, block: str, index: int, part: str = "") -> Iterator[None]:
        """Ops appended inside belong to this place of a repeated structure."""
        before, self._region = self._region, Region(block, index, part)
        yield
        self._region = before

    def weight(self, name: str, shape: Sequence[int], transforms: tuple[Transform, ...] = ()) -> WeightRef:
        """A reference to a tensor, with its storage."""
        return WeightRef(name, tuple(shape), self.model.quant(name), transforms)

    def tensor(self, name: str, *shape: int, bias: str | None = None, bias_shape: Sequence[int] | None = None) -> Part:
        """A Part over the tensor of exactly this name. bias: name of its bias, of shape bias_shape (default: the weight's first axis)."""
        ref = self.weight(name, shape)
        added = self.weight(bias, bias_shape or shape[:1]) if bias else None
        return Part(name.removesuffix(".weight"), ref, added, shape[0])

    def emit(
        self, kind: str, *ins: Value | None, attrs: Any = None, weights: Mapping[str, Sequence[Part] | Part | None] | None = None, states: Sequence[str] = ()
    ) -> tuple[Value, ...]:
        """Append an op of any kind and give back its results. Raises ProgramError when the shape rule refuses."""
        given = {role: (p,) if isinstance(p, Part) else tuple(p) for role, p in (weights or {}).items() if p is not None}
        op = Op(kind, ins, (), A.NoAttrs() if attrs is None else attrs, given, tuple(states), self._region)
        shapes = self.model.registry.get(kind).shape(op)
        outs = tuple(self._value(shape, dtype) for shape, dtype in shapes)
        self._ops.append(replace(op, outs=outs))
        return outs

    def emit1(self, kind: str, *ins: Value | None, **rest: Any) -> Value:
        """`emit` for a kind with one result."""
        (out,) = self.emit(kind, *ins, **rest)
        return out

    def build(self) -> Program:
        """The Program so far."""
        return Program(self.name, dict(self._inputs), tuple(self._ops))

    # ---- rows

    def embed(self, ids: Value, target: str, vocab: int, width: int, scale: float = 1.0, outside: int | None = None) -> Value:
        """Rows of the table `target`.weight."""
        table = replace(self.tensor(f"{target}.weight", vocab, width), split="vocab")
        return self.emit1("embed", ids, attrs=A.EmbedAttrs(scale, outside), weights={"w": table})

    def pos_embed(self, positions: Value, tensor: str, rows: int, width: int, offset: int = 0) -> Value:
        """Rows (position + offset) of a table."""
        return self.emit1("pos_embed", positions, attrs=A.PosEmbedAttrs(offset), weights={"w": self.tensor(tensor, rows, width)})

    def take(self, x: Value, index: Value) -> Value:
        """x[index]."""
        return self.emit1("take", x, index)

    def rows(self, x: Value, head: Value) -> Value:
        """The head rows of x."""
        return self.emit1("rows", x, head)

    # ---- products and norms

    def norm(
        self,
        x: Value,
        target: str | None,
        eps: float,
        kind: str = "rms",
        *,
        gate: Value | None = None,
        weight: str | None = None,
        bias: bool = False,
        **options: Any,
    ) -> Value:
        """norm with the weight `target`.weight (None: no weight). options: offset, groups, gate_after, eps_floor of NormAttrs."""
        attrs = A.NormAttrs(kind, eps, gated=gate is not None, **options)  # type: ignore[arg-type]  # verify checks the kind
        width = x.shape[-1]
        assert isinstance(width, int)
        p = None if target is None else self.tensor(weight or f"{target}.weight", width, bias=f"{target}.bias" if bias else None)
        return self.emit1("norm", x, *(() if gate is None else (gate,)), attrs=attrs, weights={"w": p})

    def _resolve(self, p: PartDef, width: int) -> Part:
        shape = p.shape or (p.rows, width)
        ref = self.weight(p.weight or f"{p.target}.weight", shape, p.transforms)
        rows = tuple(t for t in p.transforms if t.name != "transpose")  # a bias has rows alone
        bias = self.weight(p.bias if isinstance(p.bias, str) else f"{p.target}.bias", (p.rows,), rows) if p.bias else None
        return Part(p.target, ref, bias, p.rows, p.split)

    def linear(self, x: Value, *parts: PartDef) -> Value:
        """The concatenation over parts of W x + b."""
        width = x.shape[-1]
        if not isinstance(width, int):
            raise ProgramError(f"linear in {self._region}: the last axis of x is {width}; it must be a number")
        return self.emit1("linear", x, attrs=A.LinearAttrs(), weights={"w": [self._resolve(p, width) for p in parts]})

    def conv1d(self, x: Value, target: str, channels: int, kernel: int, stride: int = 1, bias: bool = True) -> Value:
        """Convolution over the rows of x, same padding."""
        width = x.shape[-1]
        assert isinstance(width, int)
        w = self.tensor(f"{target}.weight", channels, width, kernel, bias=f"{target}.bias" if bias else None)
        return self.emit1("conv1d", x, attrs=A.ConvAttrs(channels, kernel, stride), weights={"w": w})

    # ---- elementwise and shape

    def add(self, x: Value, y: Value) -> Value:
        """x + y."""
        return self.emit1("add", x, y)

    def mul(self, x: Value, y: Value | Part) -> Value:
        """x * y; y may be a learned row."""
        return self.emit1("mul", x, weights={"w": y}) if isinstance(y, Part) else self.emit1("mul", x, y)

    def act(self, x: Value, kind: str) -> Value:
        """An activation of every element."""
        return self.emit1("act", x, attrs=A.ActAttrs(kind))  # type: ignore[arg-type]  # verify checks the kind

    def act_mul(self, x: Value, kind: str, sparsity: float = 0.0) -> Value:
        """act(gate) * up of x = [gate, up]."""
        return self.emit1("act_mul", x, attrs=A.ActAttrs(kind, sparsity))  # type: ignore[arg-type]

    def scale(self, x: Value, value: float) -> Value:
        """x * value, or x itself when value is 1."""
        return x if value == 1.0 else self.emit1("scale", x, attrs=A.ScalarAttrs(value))

    def softcap(self, x: Value, value: float | None) -> Value:
        """value * tanh(x / value), or x itself when there is no cap."""
        return x if value is None else self.emit1("softcap", x, attrs=A.ScalarAttrs(value))

    def split(self, x: Value, *sizes: int) -> tuple[Value, ...]:
        """Pieces of the last axis."""
        return self.emit("split", x, attrs=A.SplitAttrs(sizes))

    def concat(self, *xs: Value) -> Value:
        """One value from several along the last axis."""
        return self.emit1("concat", *xs, attrs=A.SplitAttrs())

    def view(self, x: Value, *shape: Dim) -> Value:
        """The same elements in another shape."""
        return self.emit1("view", x, attrs=A.ViewAttrs(shape))

    def flat(self, x: Value) -> Value:
        """x with all axes but the first made one."""
        return self.view(x, x.shape[0], prod(d for d in x.shape[1:] if isinstance(d, int)))

    def reduce(self, x: Value, kind: str, axis: int = -1) -> Value:
        """mean, sum or rms over an axis, kept with size 1."""
        return self.emit1("reduce", x, attrs=A.ReduceAttrs(kind, axis))  # type: ignore[arg-type]

    # ---- attention and other mixers

    def state(self, name: str, spec: KVSpec) -> str:
        """A State that this Program writes."""
        return self.model.state(name, spec, self.name)

    def qkv_prep(self, x: Value, spec: A.QkvSpec, positions: Value | None = None, q_norm: str | None = None, k_norm: str | None = None) -> tuple[Value, ...]:
        """q, k, v (and the gate) of a qkv row, ready for attention. q_norm, k_norm: modules whose .weight normalises."""
        full = spec.qk_norm == "full"
        weights = {
            role: self.tensor(f"{target}.weight", spec.head_dim * (heads if full else 1))
            for role, target, heads in (("q_norm", q_norm, spec.q_heads), ("k_norm", k_norm, spec.kv_heads))
            if target is not None
        }
        return self.emit("qkv_prep", x, *(() if positions is None else (positions,)), attrs=A.QkvAttrs(spec), weights=weights)

    def kv_write(self, state: str, k: Value, v: Value) -> None:
        """Store k and v of all rows in the State's pages."""
        self.emit("kv_write", k, v, states=[state])

    def attention(
        self, state: str | None, q: Value, k: Value | None = None, v: Value | None = None, *, spec: A.AttnSpec, segments: Value | None = None
    ) -> Value:
        """Attention of q over the State's pages (or over k and v alone where there is no State)."""
        ins: tuple[Value | None, ...] = (q,) if k is None and segments is None else (q, k, v)
        ins = ins if segments is None else (*ins, segments)
        return self.emit1("attention", *ins, attrs=A.AttentionAttrs(spec), states=[state] if state else [])

    def recurrent(self, state: str, spec: A.RecurrentSpec, *ins: Value, weights: Mapping[str, Part]) -> Value:
        """A recurrent mixer with a State of its own name."""
        name = self.state(state, KVSpec("state", state=recurrent_state(spec)))
        return self.emit1("recurrent", *ins, attrs=A.RecurrentAttrs(spec), weights=weights, states=[name])

    def moe(self, x: Value, spec: A.MoeSpec, router: str, experts: str, bias: str | None = None) -> Value:
        """Routed experts of x [T, H]. router: module whose .weight scores; bias: tensor of the correction added before the choice.

        The experts' tensors are stacked: `experts`.gate_up_proj [E, 2 F, H] (gate rows first) and `experts`.down_proj [E, H, F].
        """
        width, attrs, ffn = x.shape[1], A.MoeAttrs(spec), spec.ffn
        assert isinstance(width, int)
        scores = {"router": self.tensor(f"{router}.weight", spec.experts, width), "bias": self.tensor(bias, spec.experts) if bias else None}
        w, ids = self.emit("moe_route", x, attrs=attrs, weights=scores)

        def stacked(role: str, tensor: str, rows: int, cols: int, *slices: Transform) -> list[Part]:
            refs = (self.weight(f"{experts}.{tensor}", (rows, cols), (Transform("row", (i,)), *slices)) for i in range(spec.experts))
            return [Part(f"{experts}.{i}.{role}_proj", ref, None, rows, "expert") for i, ref in enumerate(refs)]

        weights = {
            "gate": stacked("gate", "gate_up_proj", ffn, width, Transform("slice_rows", (0, ffn))),
            "up": stacked("up", "gate_up_proj", ffn, width, Transform("slice_rows", (ffn, 2 * ffn))),
            "down": stacked("down", "down_proj", width, ffn),
        }
        return self.emit1("moe_experts", x, w, ids, attrs=attrs, weights=weights)

    # ---- results

    def output(self, name: str, x: Value, ids: Part | None = None) -> None:
        """Name a result. ids: a table of the ids that the columns stand for (a drafter's reduced vocabulary)."""
        self.emit("output", x, attrs=A.OutputAttrs(name), weights={"ids": ids})
