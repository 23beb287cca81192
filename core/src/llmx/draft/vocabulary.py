"""A draft model whose vocabulary is not the target's, made to read and to say the target's ids.

Tokens are translated by their bytes, id by id, when the model is loaded: rows of its embedding are put in the order of the target's ids, and each column of its
head stands for an id of the target. A token without an exact counterpart is read as the longest end of it that there is, and said as the longest beginning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llmx.executor.bundle import ModelBundle
from llmx.program.ops import Op, Part, Program, QuantKey, WeightRef
from llmx.record import record
from llmx.tokens.tokenizer import Tokenizer
from llmx.weights.host_tensor import HostTensor, WeightSource

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Translation", "translated"]

_READ = "of_target/"  # before the names of embeddings in the target's order
_SAID = "ids_of_target"
_F32 = QuantKey("dense", (("data", "f32", 1),))


@record
class Translation:
    """reads: for each id of the target, the draft model's id that stands for it; says: the other way round.

    exact: how many of the target's tokens with a text the draft model has too, byte by byte; texts: of how many.
    """

    reads: tuple[int, ...]
    says: tuple[int, ...]
    exact: int
    texts: int

    @classmethod
    def of(cls, target: Tokenizer, target_size: int, draft: Tokenizer, draft_size: int) -> Translation:
        """sizes: ids of the models, which may be more than those of the tokenizers. Ids without any counterpart stand for the end of a text, or 0."""
        here, there = _texts(target, target_size), _texts(draft, draft_size)
        reads = _counterparts(here, _ids(there), draft.eos_ids[:1], ends=True)
        says = _counterparts(there, _ids(here), target.eos_ids[:1], ends=False)
        for one, other, into in ((target, draft, reads), (draft, target, says)):  # starts and ends of texts are written differently, but mean the same
            pairs = [(token, other.eos_ids[0]) for token in one.eos_ids if other.eos_ids]
            if one.bos_id is not None and other.bos_id is not None and one.bos_id not in one.eos_ids:
                pairs.append((one.bos_id, other.bos_id))
            for token, same in pairs:
                if token < len(into) and one.token_bytes(token) != other.token_bytes(into[token]):
                    into[token] = same
        exact = sum(bool(text) and there[token] == text for text, token in zip(here, reads, strict=True))
        return cls(tuple(reads), tuple(says), exact, sum(map(bool, here)))


def translated(draft: ModelBundle, by: Translation) -> ModelBundle:
    """The draft model's bundle over ids of the target. What was one matrix for embedding and head becomes two."""
    main = draft.model.programs["main"]
    source = _Translated(draft.weights, by)
    ops = tuple(_reading(op, source) if op.kind == "embed" and op.ins[0] == main.inputs["ids"] else _saying(op) for op in main.ops)
    model = replace(draft.model, programs={**draft.model.programs, "main": Program(main.name, main.inputs, ops)})
    digest = hashlib.sha256(f"{draft.digest} {by.reads} {by.says}".encode()).hexdigest()
    return replace(draft, model=model, weights=source, digest=digest)


def _texts(tokenizer: Tokenizer, size: int) -> list[bytes]:
    return [tokenizer.token_bytes(token) for token in range(size)]


def _ids(texts: Sequence[bytes]) -> dict[bytes, int]:
    """The first id of each text."""
    return {text: token for token, text in reversed(list(enumerate(texts))) if text}


def _counterparts(texts: Sequence[bytes], there: Mapping[bytes, int], default: Sequence[int], *, ends: bool) -> list[int]:
    other = default[0] if default else 0
    pieces = ((text[cut:] if ends else text[: len(text) - cut] for cut in range(len(text))) for text in texts)
    return [next((there[piece] for piece in each if piece in there), other) for each in pieces]


def _reading(op: Op, source: _Translated) -> Op:
    return replace(op, weights={role: tuple(source.reordered(part) for part in parts) for role, parts in op.weights.items()})


def _saying(op: Op) -> Op:
    if op.kind != "output" or op.attrs.name != "logits" or op.ins[0] is None:
        return op
    columns = op.ins[0].shape[-1]
    assert isinstance(columns, int)
    return replace(op, weights={"ids": (Part(_SAID, WeightRef(_SAID, (columns,), _F32), rows=columns),)})


class _Translated:
    """The draft model's tensors, its embeddings also in the order of the target's ids, and the ids of its columns."""

    def __init__(self, draft: WeightSource, by: Translation) -> None:
        self._draft, self._by, self._stored = draft, by, dict[str, WeightRef]()

    def reordered(self, part: Part) -> Part:
        """A table [draft ids, width] -> the Part of the table [target ids, width]."""
        name = _READ + part.weight.name
        self._stored[name] = part.weight
        ref = WeightRef(name, (len(self._by.reads), *part.weight.shape[1:]), part.weight.quant)
        return replace(part, target=_READ + part.target, weight=ref, rows=ref.shape[0] if part.rows else 0)

    def names(self) -> Iterable[str]:
        """All names."""
        return [*self._draft.names(), *self._stored, _SAID]

    def shape(self, name: str) -> tuple[int, ...]:
        """As `get` gives it."""
        if name == _SAID:
            return (len(self._by.says),)
        return (len(self._by.reads), *self._stored[name].shape[1:]) if name in self._stored else self._draft.shape(name)

    def quant(self, name: str) -> QuantKey:
        """As its checkpoint says."""
        return _F32 if name == _SAID else self._stored[name].quant if name in self._stored else self._draft.quant(name)

    def get(self, ref: WeightRef) -> HostTensor:
        """The tensor; whole rows move, so quantised ones keep their values."""
        if ref.name == _SAID:
            return _row(self._by.says, ref.shape[0])
        if ref.name not in self._stored:
            return self._draft.get(ref)
        found = self._draft.get(self._stored[ref.name])
        return HostTensor(found.dtype, ref.shape, found.data[list(self._by.reads)])

    def close(self) -> None:
        """Unmap."""
        self._draft.close()


def _row(values: Sequence[int], size: int) -> HostTensor:
    """float32 [size]; ids beyond `values` are 0."""
    import numpy as np

    data: np.ndarray = np.zeros((1, size), np.float32)
    data[0, : min(size, len(values))] = values[:size]
    return HostTensor("f32", (size,), data.view(np.uint8))
