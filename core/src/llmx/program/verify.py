"""verify: the rules that every Program keeps. Run on what builders and passes made, before an executor sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from llmx.errors import ProgramError
from llmx.kv.spec import KVSpec
from llmx.program.attrs import AttnSpec, MlaSpec
from llmx.program.kinds import core_registry
from llmx.program.kinds.recurrent import recurrent_state
from llmx.program.ops import Dim, DType, Model, Op, OpRegistry, Part, Program, Region, Split, State, Sym, SymDiv, Transform, Value, WeightRef

__all__ = ["verify", "verify_program"]

_WRITERS = ("kv_write", "mla", "recurrent", "hf_module")
_ALONE = ("output", "kv_write", "collective")  # kinds whose op matters though nobody reads a result


def verify(model: Model, registry: OpRegistry | None = None) -> None:
    """Checks a Model: every Program, and what they share (States, weights).

    Raises ProgramError naming the program, the op's index and kind, and the rule that is broken.
    """
    registry = registry or core_registry()
    if "main" not in model.programs:
        raise ProgramError(f"the model has no program 'main'; it has {', '.join(model.programs) or 'none'}")
    for name, program in model.programs.items():
        if program.name != name:
            raise ProgramError(f"program {name!r} calls itself {program.name!r}")
    _check_states(model)
    weights: dict[tuple[str, tuple[Transform, ...]], WeightRef] = {}
    for name, program in model.programs.items():
        verify_program(program, model.states, registry)
        for ref in _refs(program):
            first = weights.setdefault((ref.name, ref.transforms), ref)
            if first != ref:
                raise ProgramError(f"program {name}: weight {ref.name} is used as {first.shape} {first.quant} and as {ref.shape} {ref.quant}")


def verify_program(program: Program, states: Mapping[str, State], registry: OpRegistry) -> None:
    """Checks one Program against the State table. Raises ProgramError as `verify` does."""
    _Walk(program, states, registry).run()


def _refs(program: Program) -> Iterator[WeightRef]:
    for part in program.parts():
        yield part.weight
        if part.bias is not None:
            yield part.bias


def _check_states(model: Model) -> None:
    """Every State has a sensible spec and is written by its owner, and by no other Program."""
    writers: dict[str, set[str]] = {}
    for program in model.programs.values():
        for op in program.ops:
            if op.kind in _WRITERS:
                for name in op.states:
                    writers.setdefault(name, set()).add(program.name)
    for name, state in model.states.items():
        if state.name != name:
            raise ProgramError(f"state {name!r} calls itself {state.name!r}")
        s = state.spec
        if s.kind in ("sliding", "chunked") and (s.window is None or s.window < 1):
            raise ProgramError(f"state {name!r} is {s.kind} with window {s.window}; a window of at least 1 is needed")
        if (s.kind == "state") != bool(s.state) or (s.kind != "state" and (s.kv_heads < 1 or s.head_dim < 1)):
            raise ProgramError(f"state {name!r} of kind {s.kind!r} has kv_heads {s.kv_heads}, head_dim {s.head_dim}, state {s.state}: its geometry is not said")
        if state.owner not in model.programs:
            raise ProgramError(f"state {name!r} is owned by program {state.owner!r}, which does not exist")
        if writers.get(name, set()) != {state.owner}:
            raise ProgramError(f"state {name!r} is owned by program {state.owner!r} and written by {', '.join(sorted(writers.get(name, ()))) or 'none'}")


class _Walk:
    """One pass over the ops of a Program."""

    def __init__(self, program: Program, states: Mapping[str, State], registry: OpRegistry) -> None:
        self.program, self.states, self.registry = program, states, registry
        self.defined: dict[int, Value] = {}
        self.used: set[int] = set()
        self.written: set[str] = set()
        self.named: set[str] = set()
        self.left: set[Region] = set()
        self.choices: dict[type, list[tuple[str, tuple[Any, ...]]]] = {}
        self.region: Region | None = None
        self.where = f"program {program.name}"

    def fail(self, why: str) -> NoReturn:
        raise ProgramError(f"{self.where}: {why}")

    def run(self) -> None:
        for name, v in self.program.inputs.items():
            self.where = f"program {self.program.name}, input {name!r}"
            self.define(v)
        for i, op in enumerate(self.program.ops):
            self.where = f"program {self.program.name}, op {i} ({op.kind} in {op.region})"
            self.inputs(op)
            self.attrs(op)
            self.shapes(op)
            self.parts(op)
            self.state_use(op)
            self.place(op)
            if op.kind == "output":
                self.result(op)
        self.where = f"program {self.program.name}"
        if not self.named and not self.written:
            self.fail("has neither a result (`output`) nor a state that it writes")
        for name, v in self.program.inputs.items():
            if v.id not in self.used:
                self.fail(f"no op uses input {name!r}")
        for i, op in enumerate(self.program.ops):
            if op.kind not in _ALONE and not op.states and not any(v.id in self.used for v in op.outs):
                self.where = f"program {self.program.name}, op {i} ({op.kind} in {op.region})"
                self.fail("no op uses its results")

    def define(self, v: Value) -> None:
        if v.id in self.defined:
            self.fail(f"value %{v.id} is defined twice")
        if v.dtype not in get_args(DType):
            self.fail(f"value %{v.id} has dtype {v.dtype!r}; known: {', '.join(get_args(DType))}")
        for d in v.shape:
            if not _is_dim(d):
                self.fail(f"value %{v.id} has an axis of size {d!r}; a number of at least 1, a symbol, or a symbol divided by one is needed")
        self.defined[v.id] = v

    def inputs(self, op: Op) -> None:
        for n, v in enumerate(op.ins):
            if v is None:
                continue
            if v.id not in self.defined:
                self.fail(f"input {n} is %{v.id}, which no earlier op or program input defines")
            if self.defined[v.id] != v:
                self.fail(f"input {n} %{v.id} is {v.dtype} {_text(v.shape)}, but was defined as {self.defined[v.id].dtype} {_text(self.defined[v.id].shape)}")
            self.used.add(v.id)

    def attrs(self, op: Op) -> None:
        want = self.registry.get(op.kind).attrs
        if type(op.attrs) is not want:
            self.fail(f"attrs are {type(op.attrs).__name__}; {want.__name__} is wanted")
        self.literals(op.attrs)

    def literals(self, owner: Any) -> None:
        """Fields typed Literal hold one of their values, in the attrs and in the specs inside them."""
        if type(owner) not in self.choices:
            self.choices[type(owner)] = _choices(type(owner))
        for name, allowed in self.choices[type(owner)]:
            value = getattr(owner, name)
            if is_dataclass(value):
                self.literals(value)
            elif allowed and value not in allowed:
                self.fail(f"{type(owner).__name__}.{name} is {value!r}; known: {', '.join(map(str, allowed))}")

    def shapes(self, op: Op) -> None:
        try:
            shapes = self.registry.get(op.kind).shape(op)
        except ProgramError as error:
            raise ProgramError(f"{self.where}: {str(error).removeprefix(f'{op.kind} in {op.region}: ')}") from error
        if len(shapes) != len(op.outs):
            self.fail(f"has {len(op.outs)} results; {len(shapes)} are wanted")
        for v, (shape, dtype) in zip(op.outs, shapes, strict=True):
            if v.shape != shape or v.dtype != dtype:
                self.fail(f"result %{v.id} is {v.dtype} {_text(v.shape)}; {dtype} {_text(shape)} follows from its inputs")
            self.define(v)

    def parts(self, op: Op) -> None:
        seen: set[str] = set()
        for role, parts in op.weights.items():
            for part in parts:
                self.part(role, part)
                if part.target in seen and op.kind == "linear":
                    self.fail(f"part {part.target} comes twice")
                seen.add(part.target)

    def part(self, role: str, part: Part) -> None:
        if not part.target or not part.weight.name:
            self.fail(f"a part of role {role!r} has no target or no weight name")
        if part.split is not None and part.split not in get_args(Split):
            self.fail(f"part {part.target} has split {part.split!r}; known: {', '.join(get_args(Split))}")
        for ref in (part.weight, part.bias):
            if ref is None:
                continue
            if not ref.shape or any(not isinstance(d, int) or d < 1 for d in ref.shape):
                self.fail(f"weight {ref.name} has shape {ref.shape}; numbers of at least 1 are needed")
            if not ref.quant.tensors:
                self.fail(f"weight {ref.name} is stored as {ref.quant.scheme!r} without tensors")

    def state_use(self, op: Op) -> None:
        for name in op.states:
            state = self.states.get(name)
            if state is None:
                self.fail(f"state {name!r} is not in the model's table")
            if op.kind not in _WRITERS and state.owner == self.program.name and name not in self.written:
                self.fail(f"reads state {name!r} before it is written")
            if op.kind in ("kv_write", "recurrent") and name in self.written:
                self.fail(f"writes state {name!r} a second time")
            why = _misfit(op, state.spec)
            if why is not None:
                self.fail(f"does not fit state {name!r} ({state.spec.kind}): {why}")
        if op.kind in _WRITERS:
            self.written.update(op.states)

    def place(self, op: Op) -> None:
        """Ops of one region lie together."""
        if op.region == self.region:
            return
        if op.region in self.left and op.region.block != "model":
            self.fail("its region was left before; the ops of a region lie together")
        if self.region is not None:
            self.left.add(self.region)
        self.region = op.region

    def result(self, op: Op) -> None:
        if op.attrs.name in self.named:
            self.fail(f"result {op.attrs.name!r} is named twice")
        self.named.add(op.attrs.name)


def _choices(owner: type) -> list[tuple[str, tuple[Any, ...]]]:
    """Each field and what its Literal allows; () for other types."""
    hints = get_type_hints(owner)
    return [(f.name, get_args(hints[f.name]) if get_origin(hints[f.name]) is Literal else ()) for f in fields(owner)]


def _is_dim(d: Any) -> bool:
    if isinstance(d, SymDiv):
        return isinstance(d.by, int) and d.by > 1
    return isinstance(d, Sym) or (isinstance(d, int) and not isinstance(d, bool) and d >= 1)


def _text(shape: tuple[Dim, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _misfit(op: Op, kv: KVSpec) -> str | None:
    """Why an op cannot use a State of this spec, or None."""
    if op.kind == "recurrent":
        want = recurrent_state(op.attrs.spec)
        return None if kv.kind == "state" and kv.state == want else f"the state holds {kv.state}, the op needs {want}"
    if op.kind == "mla":
        return _mla_misfit(op.attrs.spec, op, kv)
    if kv.kind in ("state", "latent") and op.kind != "hf_module":
        return "pages of keys and values are needed"
    if op.kind == "kv_write":
        k, v = op.ins
        assert k is not None and v is not None
        got = (*k.shape[1:], v.shape[2])
        return None if got == (kv.kv_heads, kv.head_dim, kv.v_head_dim) else f"k and v are {got} (heads, k size, v size), the pages {_geometry(kv)}"
    return _attention_misfit(op.attrs.spec, kv) if op.kind == "attention" else None


def _geometry(kv: KVSpec) -> tuple[int, int, int]:
    return kv.kv_heads, kv.head_dim, kv.v_head_dim


def _attention_misfit(s: AttnSpec, kv: KVSpec) -> str | None:
    if (s.kv_heads, s.head_dim, s.v_head_dim) != _geometry(kv):
        return f"attention reads {(s.kv_heads, s.head_dim, s.v_head_dim)} (heads, k size, v size), the pages hold {_geometry(kv)}"
    if s.cross != (kv.kind == "cross"):
        return f"cross is {s.cross}"
    if kv.kind == "sliding" and (s.window is None or s.window > (kv.window or 0)):
        return f"attention sees a window of {s.window or 'all'} tokens, the pages keep {kv.window}"
    if kv.kind == "chunked" and s.chunk != kv.window:
        return f"attention has chunk {s.chunk}, the pages {kv.window}"
    return None


def _mla_misfit(s: MlaSpec, op: Op, kv: KVSpec) -> str | None:
    if kv.kind != "latent":
        return "latent pages are needed"
    latent = (1, s.kv_lora + s.qk_rope, 0)
    index_k = op.ins[5] if len(op.ins) > 5 else None
    index = (1, index_k.shape[1], 0) if index_k is not None else None
    return None if _geometry(kv) in (latent, index) else f"the op stores {latent} (heads, size, 0), the pages {_geometry(kv)}"
