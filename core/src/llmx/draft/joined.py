"""Joined: a drafter beside its target, as one bundle: a Program `draft` with States and weights of its own names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from llmx.draft.own import OWN, OwnTensors
from llmx.executor.bundle import ModelBundle
from llmx.executor.draft_shape import DRAFT
from llmx.models.load import LoadedModel
from llmx.program.ops import Model, Op, Part, Program, QuantKey, State, WeightRef
from llmx.program.verify import verify
from llmx.weights.host_tensor import HostTensor, WeightSource

__all__ = ["add_drafter", "joined"]


def joined(target: ModelBundle, draft: ModelBundle) -> ModelBundle:
    """The target's bundle with the main Program of `draft` as its Program "draft"."""
    main = draft.model.programs["main"]
    program = Program(DRAFT, main.inputs, tuple(_op(op) for op in main.ops))
    states = {f"{DRAFT}.{name}": State(f"{DRAFT}.{name}", state.spec, DRAFT) for name, state in draft.model.states.items()}
    model = Model({**target.model.programs, DRAFT: program}, {**target.model.states, **states})
    digest = hashlib.sha256(f"{target.digest} {draft.digest}".encode()).hexdigest()
    return replace(target, model=model, weights=_TwoSources(target.weights, draft.weights), digest=digest)


def add_drafter(loaded: LoadedModel, model: Model, drafter: Model, own: OwnTensors, mask: int = -1) -> LoadedModel:
    """The model with Programs that share its weights. model: the target's, which keeps what they read; own: tensors of those whose names begin with OWN.

    Raises ModelError for tensors that do not fit, or have no place.
    """
    both = Model({**model.programs, **drafter.programs}, {**model.states, **drafter.states})
    digest = hashlib.sha256(f"{loaded.bundle.digest} {own.check(both)}".encode()).hexdigest()
    verify(both)
    return replace(loaded, bundle=replace(loaded.bundle, model=both, weights=_TwoSources(loaded.bundle.weights, own), digest=digest, draft_mask=mask))


def _op(op: Op) -> Op:
    weights = {role: tuple(_part(part) for part in parts) for role, parts in op.weights.items()}
    return replace(op, weights=weights, states=tuple(f"{DRAFT}.{name}" for name in op.states))


def _part(part: Part) -> Part:
    bias = None if part.bias is None else replace(part.bias, name=OWN + part.bias.name)
    return replace(part, target=OWN + part.target, weight=replace(part.weight, name=OWN + part.weight.name), bias=bias)


class _TwoSources:
    """The tensors of both checkpoints; those of the second under longer names."""

    def __init__(self, target: WeightSource, draft: WeightSource) -> None:
        self._target, self._draft = target, draft

    def _of(self, name: str) -> tuple[WeightSource, str]:
        return (self._draft, name.removeprefix(OWN)) if name.startswith(OWN) else (self._target, name)

    def names(self) -> Iterable[str]:
        """All names."""
        return [*self._target.names(), *(OWN + name for name in self._draft.names())]

    def shape(self, name: str) -> tuple[int, ...]:
        """As stored."""
        source, inner = self._of(name)
        return source.shape(inner)

    def quant(self, name: str) -> QuantKey:
        """As its checkpoint says."""
        source, inner = self._of(name)
        return source.quant(inner)

    def get(self, ref: WeightRef) -> HostTensor:
        """The tensor, from its checkpoint."""
        source, inner = self._of(ref.name)
        return source.get(replace(ref, name=inner))

    def close(self) -> None:
        """Unmap both."""
        self._target.close()
        self._draft.close()
