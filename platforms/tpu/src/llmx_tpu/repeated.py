"""Repeated blocks: runs of a Program's ops that say the same thing again with other weights and pages, so that one of them is compiled for all.

A model of 30 equal layers would take thirty times as long to compile as one layer. What makes two blocks the same: kinds, attributes, kernels,
shapes of weights, and how values go in and out. A block may be several layers (five with a window, one without).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from llmx.executor.bound import BoundOps
from llmx.program.ops import Op
from llmx.record import record

__all__ = ["Entry", "Run", "runs"]

_PERIOD = 8  # layers of a block at most

Place = tuple[int, int]  # (entry of a block, input or output of it)


@record
class Entry:
    """An op, or a fused run of ops, of a body. index: among the Program's pieces. alike: equal where kernel, attributes and weights are alike."""

    index: int
    one: BoundOps
    ops: tuple[Op, ...]
    alike: Hashable

    @property
    def states(self) -> tuple[str, ...]:
        """The States that it names."""
        return tuple(dict.fromkeys(name for op in self.ops for name in op.states))


@record
class Run:
    """Blocks that are alike. carried: value that enters the first block -> the output of a block that enters the next one in its stead."""

    blocks: tuple[tuple[Entry, ...], ...]
    carried: Mapping[int, Place]

    def output(self, block: int, place: Place) -> int:
        """The id of a block's value."""
        return self.blocks[block][place[0]].one.outs[place[1]].id


def runs(entries: Sequence[Entry], needed: frozenset[int]) -> list[Run]:
    """All entries in order; a Run of one block is not repeated. needed: ids of values that are read behind the body."""
    layers = _layers(entries)
    found: list[Run] = []
    at = 0
    while at < len(layers):
        best = Run((layers[at],), {})
        for period in range(1, min(_PERIOD, (len(layers) - at) // 2) + 1):
            run = _run_at(layers, at, period, needed, entries)
            if period * (len(run.blocks) - 1) > _saved(best, layers, at):
                best = run
        found.append(best)
        at += _count(best, layers, at)
    return found


def _count(run: Run, layers: Sequence[tuple[Entry, ...]], at: int) -> int:
    """Layers that a run covers."""
    entries, count = sum(map(len, run.blocks)), 0
    while entries > 0:
        entries -= len(layers[at + count])
        count += 1
    return count


def _saved(run: Run, layers: Sequence[tuple[Entry, ...]], at: int) -> int:
    count = _count(run, layers, at)
    return count - count // len(run.blocks)


def _layers(entries: Sequence[Entry]) -> list[tuple[Entry, ...]]:
    """Entries by the block that their regions name."""
    layers: list[list[Entry]] = []
    last: object = None
    for entry in entries:
        region = entry.ops[0].region
        if (region.block, region.index) != last:
            layers.append([])
        layers[-1].append(entry)
        last = (region.block, region.index)
    return [tuple(layer) for layer in layers]


def _run_at(layers: Sequence[tuple[Entry, ...]], at: int, period: int, needed: frozenset[int], entries: Sequence[Entry]) -> Run:
    blocks = [_block(layers, at, period)]
    links: dict[Place, Place] = {}
    while True:
        following = _block(layers, at + period * len(blocks), period)
        found = _linked(blocks[-1], following)
        if found is None or not _same_states(blocks[0], following) or (len(blocks) > 1 and found != links):
            break
        links = found
        blocks.append(following)
    carried = _carried(blocks[0], links)
    if carried is None or len(set(carried.values())) < len(carried):
        return Run((blocks[0],), {})
    while len(blocks) > 1 and _escapes(blocks, set(links.values()), needed, entries):
        blocks.pop()
    return Run(tuple(blocks), carried if len(blocks) > 1 else {})


def _block(layers: Sequence[tuple[Entry, ...]], at: int, period: int) -> tuple[Entry, ...]:
    """Some layers as one; nothing where there are not so many."""
    return tuple(entry for layer in layers[at : at + period] for entry in layer) if at + period <= len(layers) else ()


def _linked(block: tuple[Entry, ...], following: tuple[Entry, ...]) -> dict[Place, Place] | None:
    """Inputs of `following` that are outputs of `block`: where -> which. None when the two are not alike."""
    if len(block) != len(following) or any(a.alike != b.alike for a, b in zip(block, following, strict=True)):
        return None
    own, theirs = _made(block), _made(following)
    links: dict[Place, Place] = {}
    for entry, (a, b) in enumerate(zip(block, following, strict=True)):
        for place, (x, y) in enumerate(zip(a.one.ins, b.one.ins, strict=True)):
            if x is None or y is None:
                if x is not y:
                    return None
            elif x in own or y in theirs:
                if own.get(x) != theirs.get(y):
                    return None
            elif y in own:
                links[entry, place] = own[y]
            elif x != y:
                return None
    return links


def _carried(block: Sequence[Entry], links: Mapping[Place, Place]) -> dict[int, Place] | None:
    """Of the first block: value -> what enters the next one in its stead. None when a value is both that and the same for all blocks."""
    carried: dict[int, Place] = {}
    for place, output in links.items():
        value = block[place[0]].one.ins[place[1]]
        if value is None or carried.setdefault(value, output) != output:
            return None
    for number, entry in enumerate(block):
        for k, i in enumerate(entry.one.ins):
            if i in carried and (number, k) not in links:
                return None
    return carried


def _made(block: Sequence[Entry]) -> dict[int, Place]:
    return {value.id: (i, k) for i, entry in enumerate(block) for k, value in enumerate(entry.one.outs)}


def _same_states(block: Sequence[Entry], other: Sequence[Entry]) -> bool:
    """True when the States of one block go over into those of the other, name by name."""
    names: dict[str, str] = {}
    return all(
        len(a.states) == len(b.states) and all(names.setdefault(x, y) == y for x, y in zip(a.states, b.states, strict=True))
        for a, b in zip(block, other, strict=True)
    )


def _escapes(blocks: Sequence[Sequence[Entry]], linked: set[Place], needed: frozenset[int], entries: Sequence[Entry]) -> bool:
    """True when a value of a block but the last is read elsewhere than in it and, where it is linked, in the next one."""
    readers: dict[int, set[int]] = {}
    home = {entry.index: number for number, block in enumerate(blocks) for entry in block}
    for entry in entries:
        for i in entry.one.ins:
            if i is not None:
                readers.setdefault(i, set()).add(home.get(entry.index, -1))
    for number, block in enumerate(blocks[:-1]):
        for i, place in _made(block).items():
            allowed = {number, number + 1} if place in linked else {number}
            if i in needed or readers.get(i, set()) - allowed:
                return True
    return False
