"""shard: one rank's part of a Model under tensor parallelism.

Products whose input every rank has are cut by output rows, as the `split` of their Parts says: heads, columns of the MLP, the vocabulary.
What follows works on the rank's share, until a product that reads it: that one is cut by input columns, and its partial sums are added up over all
ranks (collective all_reduce). Logits are gathered, so that every rank samples alike. Embeddings and norms are there on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import gcd, lcm

from llmx.errors import ProgramError
from llmx.program.attrs import AttentionAttrs, CollectiveAttrs, QkvAttrs
from llmx.program.kinds import core_registry
from llmx.program.ops import Model, Op, OpRegistry, Part, Program, State, Value
from llmx.program.passes.cuts import HeadShare, PartCut, Share, cut_columns, cut_part, head_share, share

__all__ = ["AXIS", "part_cuts", "shard"]

AXIS = "tensor"  # of the mesh, in CollectiveAttrs
_ELEMENTWISE = ("act", "act_mul", "add", "mul", "scale", "softcap", "clip")
_WIDE = 32  # columns of an MLP are shared in multiples of this where there are enough


def shard(model: Model, rank: int, size: int, registry: OpRegistry | None = None) -> Model:
    """The Model of `rank` (0 to size - 1). size 1: the model itself.

    Raises ProgramError that names the op, and what cannot be shared, for a model that cannot be cut so.
    """
    if size == 1:
        return model
    unit = _head_unit(model)
    programs, states = {}, dict(model.states)
    for name, program in model.programs.items():
        one = _Sharder(program, model.states, rank, size, unit, registry or core_registry())
        programs[name] = one.run()
        states |= one.states
    return Model(programs, states)


def part_cuts(model: Model, rank: int, size: int, registry: OpRegistry | None = None) -> dict[str, PartCut]:
    """Part.target -> what `shard` gives a rank of it, for linears of the main Program; those that every rank has whole are absent."""
    one = _Sharder(model.programs["main"], model.states, rank, size, _head_unit(model), registry or core_registry())
    one.run()
    return one.part_cuts


def _users(program: Program) -> dict[int, list[Op]]:
    users: dict[int, list[Op]] = {}
    for op in program.ops:
        for value in op.ins:
            if value is not None:
                users.setdefault(value.id, []).append(op)
    return users


def _block(parts: tuple[Part, ...]) -> int:
    """Elements of a row that are stored together."""
    return max(block for part in parts for _, _, block in part.weight.quant.tensors)


def _head_unit(model: Model) -> int:
    """Key-value heads that stay together so that every product behind an attention can be cut at a border of blocks.

    One number for the whole model: layers that share KV pages have the same heads on a rank.
    """
    unit = 1
    for program in model.programs.values():
        users = _users(program)
        for op in program.ops:
            if op.kind != "attention":
                continue
            spec = op.attrs.spec
            columns = spec.q_heads // spec.kv_heads * spec.v_head_dim  # of the input, per key-value head
            for product in _products(op.outs[0], users):
                block = _block(product.weights["w"])
                unit = lcm(unit, block // gcd(block, columns))
    return unit


def _products(value: Value, users: Mapping[int, list[Op]]) -> list[Op]:
    """The linears that read a value, or what elementwise ops make of it."""
    found = []
    for op in users.get(value.id, []):
        if op.kind == "linear":
            found.append(op)
        elif op.kind in _ELEMENTWISE:
            found += _products(op.outs[0], users)
    return found


@dataclass(slots=True)
class _Sharder:
    """One walk over a Program. values: what each value is on this rank; cut: the share of those that are cut, in elements of the last axis."""

    program: Program
    given: Mapping[str, State]
    rank: int
    size: int
    head_unit: int
    registry: OpRegistry
    states: dict[str, State] = field(default_factory=dict)
    values: dict[int, Value] = field(default_factory=dict)
    cut: dict[int, Share] = field(default_factory=dict)
    heads: dict[int, HeadShare] = field(default_factory=dict)  # of values that are cut by heads
    ops: list[Op] = field(default_factory=list)
    users: dict[int, list[Op]] = field(default_factory=dict)
    part_cuts: dict[str, PartCut] = field(default_factory=dict)
    next_id: int = 0

    def run(self) -> Program:
        every = [*self.program.inputs.values(), *(value for op in self.program.ops for value in op.outs)]
        self.next_id = 1 + max((value.id for value in every), default=-1)
        self.users = _users(self.program)
        rules: Mapping[str, Callable[[Op, Op], None]] = {
            "linear": self.linear, "qkv_prep": self.qkv_prep, "kv_write": self.kv_write, "attention": self.attention,
        }  # fmt: skip
        for op in self.program.ops:
            local = replace(op, ins=tuple(None if value is None else self.values.get(value.id, value) for value in op.ins))
            touched = any(value is not None and value.id in self.cut for value in op.ins)
            if op.kind in rules:
                rules[op.kind](op, local)
            elif touched:
                self.elementwise(op, local)
            else:
                self.emit(local)
        return replace(self.program, ops=tuple(self.ops))

    def fail(self, op: Op, why: str) -> ProgramError:
        return ProgramError(f"{op.kind} in {op.region}: {why}")

    def emit(self, op: Op, like: Share | None = None, heads: HeadShare | None = None) -> Op:
        """Append an op with the shapes that follow from its inputs. like, heads: how its results are cut."""
        shapes = self.registry.get(op.kind).shape(op)
        outs = tuple(replace(value, shape=shape) for value, (shape, _) in zip(op.outs, shapes, strict=True))
        op = replace(op, outs=outs)
        self.ops.append(op)
        for value in outs:
            self.values[value.id] = value
            if like is not None:
                self.cut[value.id] = like
            if heads is not None:
                self.heads[value.id] = heads
        return op

    def collect(self, op: Op, kind: str) -> None:
        """Append an op whose result is a partial sum (all_reduce) or a part of the columns (all_gather), and what makes it whole."""
        (whole,) = op.outs
        part, self.next_id = replace(whole, id=self.next_id), self.next_id + 1
        done = self.emit(replace(op, outs=(part,)))
        self.emit(Op("collective", (done.outs[0],), (whole,), CollectiveAttrs(kind, AXIS, self.size), region=op.region))  # type: ignore[arg-type]

    # ---- rules by kind

    def linear(self, op: Op, local: Op) -> None:
        parts, source = op.weights["w"], op.ins[0]
        assert source is not None
        if source.id in self.cut:
            if len(parts) != 1:
                raise self.fail(op, f"{len(parts)} products of one input that is shared by the ranks")
            columns, block = self.cut[source.id], _block(parts)
            if columns.start % block or columns.stop % block:
                name, quant = parts[0].weight.name, parts[0].weight.quant
                raise self.fail(op, f"columns {columns.start} to {columns.stop} of {name} are not whole blocks of {block} ({quant})")
            part = cut_columns(parts[0], columns, bias=self.rank == 0)
            self.part_cuts[part.target] = PartCut(columns=columns)
            return self.collect(replace(local, weights={"w": (part,)}), "all_reduce")
        splits = {part.split for part in parts}
        if splits and splits <= {"heads", "kv_heads"} and self._follows(op, "qkv_prep"):
            return self._qkv(op, local)
        if splits == {"ffn"}:
            return self._up(op, local)
        if splits == {"vocab"} and len(parts) == 1 and parts[0].rows % self.size == 0:
            rows = share(parts[0].rows, 1, self.rank, self.size, "the vocabulary")
            return self.collect(replace(local, weights={"w": (self.rows_of(parts[0], rows),)}), "all_gather")
        self.emit(local)
        return None

    def rows_of(self, part: Part, rows: Share) -> Part:
        """The part with these output rows alone."""
        self.part_cuts[part.target] = PartCut(rows)
        return cut_part(part, rows)

    def _follows(self, op: Op, kind: str) -> bool:
        return [user.kind for user in self.users.get(op.outs[0].id, [])] == [kind]

    def _qkv(self, op: Op, local: Op) -> None:
        """q, k and v: the rows of the rank's heads."""
        (prep,) = self.users[op.outs[0].id]
        spec = prep.attrs.spec
        if not (spec.has_q and spec.has_kv):
            raise self.fail(op, "queries and keys of different layers cannot be shared by ranks")
        heads = head_share(spec.q_heads, spec.kv_heads, self.head_unit, self.rank, self.size, f"{op.kind} in {op.region}")
        parts = []
        for part in op.weights["w"]:
            count, mine = (spec.q_heads, heads.q) if part.split == "heads" else (spec.kv_heads, heads.kv)
            parts.append(self.rows_of(part, mine.times(part.rows // count)))
        self.emit(replace(local, weights={"w": tuple(parts)}), Share(0, 1), heads)

    def _up(self, op: Op, local: Op) -> None:
        """Gate and up, or up alone: columns of what the product behind them reads."""
        parts, readers = op.weights["w"], _products(op.outs[0], self.users)
        rows = {part.rows for part in parts}
        if len(rows) != 1 or not readers:
            raise self.fail(op, "parts of different sizes, or no product that reads them")
        total, block = rows.pop(), max(_block(reader.weights["w"]) for reader in readers)
        unit = lcm(block, _WIDE)
        if total % unit or total // unit < self.size:
            unit = block
        mine = share(total, unit, self.rank, self.size, f"{op.kind} in {op.region}: {parts[0].target} with {parts[0].rows} rows")
        self.emit(replace(local, weights={"w": tuple(self.rows_of(part, mine) for part in parts)}), mine)

    def qkv_prep(self, op: Op, local: Op) -> None:
        source = op.ins[0]
        assert source is not None
        if source.id not in self.heads:
            raise self.fail(op, "its input is not a product of heads")
        heads, spec = self.heads[source.id], op.attrs.spec
        if spec.qk_norm == "full":
            raise self.fail(op, "q and k are normed over their full width, which no rank has")
        attrs = QkvAttrs(replace(spec, q_heads=heads.q.size, kv_heads=heads.kv.size))
        self.emit(replace(local, attrs=attrs), heads.q.times(spec.v_head_dim), heads)

    def kv_write(self, op: Op, local: Op) -> None:
        first = op.ins[0]
        assert first is not None
        heads = self.heads[first.id]
        for name in op.states:
            state = self.given[name]
            self.states[name] = replace(state, spec=replace(state.spec, kv_heads=heads.kv.size))
        self.emit(local)

    def attention(self, op: Op, local: Op) -> None:
        first, spec = op.ins[0], op.attrs.spec
        assert first is not None
        if first.id not in self.heads:
            raise self.fail(op, "its queries are not a product of heads")
        missing = [name for name, on in (("alibi", spec.alibi), ("relative position bias", spec.relative_buckets), ("cross attention", spec.cross)) if on]
        if missing:
            raise self.fail(op, f"{', '.join(missing)} cannot be shared by ranks")
        heads = self.heads[first.id]
        weights = {role: tuple(cut_part(part, heads.q) for part in parts) for role, parts in op.weights.items()}  # sinks: one per head
        attrs = AttentionAttrs(replace(spec, q_heads=heads.q.size, kv_heads=heads.kv.size), op.attrs.lse)
        self.emit(replace(local, attrs=attrs, weights=weights), heads.q.times(spec.v_head_dim), heads)

    def elementwise(self, op: Op, local: Op) -> None:
        shares = {self.cut.get(value.id) for value in op.ins if value is not None}
        if op.kind not in _ELEMENTWISE or op.weights or len(shares) != 1:
            raise self.fail(op, "it needs values of which every rank has a part only")
        self.emit(local, shares.pop())
