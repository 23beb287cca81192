"""MlpSpeculator: a chain of small networks without attention; each reads the state of the one before and the token that was guessed there.

Source: Wertheimer et al., "Accelerating Production LLMs with Combined Token/Embedding Speculators" (2024). The first state is the row that the model's head
reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

from llmx.config import EngineConfig
from llmx.draft.device import DeviceProposer
from llmx.draft.joined import add_drafter
from llmx.draft.own import OWN, OwnTensors, check_heads
from llmx.draft.settings import whole_number
from llmx.draft.target import Target
from llmx.errors import ConfigError, ModelError
from llmx.executor.draft_shape import DRAFT, HIDDEN
from llmx.models.load import LoadedModel
from llmx.models.registry import ModelRegistry
from llmx.program.builder import ModelBuilder, ProgramBuilder, R, T, part
from llmx.record import record

__all__ = ["MlpSpeculator"]

_MOST = 16  # networks in a chain: what a request may draft in a step
_EPS = 1e-6
_KEYS = {"vocab_size": 32000, "emb_dim": 4096, "inner_dim": 0, "n_predict": 3}  # and what a config.json without them means
_FLAGS = {"tie_weights": False, "scale_input": False}


@record
class _Shape:
    """What config.json says. inner: width of a state; tied: all networks are one, but for the first product."""

    vocab: int
    width: int
    inner: int
    steps: int
    tied: bool
    scaled: bool

    def at(self, role: str, step: int) -> str:
        """The module that stands in a network."""
        last = 1 if role == "proj" else 0
        return f"{role}.{min(step, last) if self.tied else step}"


class MlpSpeculator:
    """settings: model (folder or name on the hub of the checkpoint; it must be given), revision (branch, tag or commit of a hub model),
    draft_tensor_parallel_size (1 or left out). Raises ConfigError for values that cannot be.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        whole_number(settings, "draft_tensor_parallel_size", 1, 1)

    def join(self, loaded: LoadedModel, config: EngineConfig, registry: ModelRegistry) -> LoadedModel:
        """The model with the chain beside it. Raises ModelError for files that are wrong, ConfigError where the two do not fit."""
        target, own = Target.of(loaded), OwnTensors(self._settings, config, "MLP speculator", "speculator.")
        shape = _read(own)
        if (shape.width, shape.vocab) != (target.hidden, target.vocab):
            theirs, ours = f"emb_dim {shape.width} and vocab_size {shape.vocab}", f"{target.hidden} and {target.vocab}"
            why = f"{own.path} has {theirs}, {target.name} has {ours}: an MLP speculator belongs to one model: take the one made for it"
            raise ConfigError(f"speculative_config: {why}", field="speculative_config")
        check_heads(config, own, shape.steps)
        model = ModelBuilder(own.quant)
        for step in range(shape.steps):
            _write(model.program(f"{DRAFT}.{step}" if step else DRAFT), shape, step)
        if shape.tied:
            own.ignore(*(f"{role}.{step}.{kind}" for role in ("emb", "proj", "ln", "head") for step in range(1, shape.steps) for kind in ("weight", "bias")))
        return add_drafter(loaded, target.keeping(loaded.bundle.model), model.build(), own)

    def begin(self, tokens: Sequence[int], *, private: bool) -> DeviceProposer:
        """Nothing is kept for a request."""
        return DeviceProposer(tokens)


def _read(own: OwnTensors) -> _Shape:
    numbers = {name: own.config.get(name, usual) for name, usual in _KEYS.items()}
    flags = {name: own.config.get(name, usual) for name, usual in _FLAGS.items()}
    for name, value in numbers.items():
        low, high = int(name != "inner_dim"), _MOST if name == "n_predict" else 1 << 31
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ModelError(f"{name} is {value!r} in config.json: it must be a whole number from {low} to {high}", path=own.path)
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ModelError(f"{name} is {value!r} in config.json: it must be true or false", path=own.path)
    vocab, width, inner, steps = numbers.values()
    return _Shape(vocab, width, inner or width, steps, *flags.values())


def _write(b: ProgramBuilder, shape: _Shape, step: int) -> None:
    """One network: its state leans on the one before by 0.5 ** (0.5 / steps), and on the token by what keeps the size of a row."""
    ids, head = b.input("ids"), b.input("head", (R,))
    width = shape.inner if step else shape.width
    state = b.rows(b.input(HIDDEN, (T, width), "act"), head)
    token = b.rows(b.embed(ids, f"{OWN}{shape.at('emb', step)}", shape.vocab, shape.inner), head)
    if shape.scaled and not step:
        state = b.scale(b.norm(state, None, _EPS), sqrt(0.5))
    old = 0.5 ** (0.5 / shape.steps)
    new = sqrt((1 - old**2) * shape.inner / 2)
    x = b.add(b.linear(state, part(f"{OWN}{shape.at('proj', step)}", shape.inner)), b.scale(token, new / old))
    x = b.act(b.norm(x, f"{OWN}{shape.at('ln', step)}", _EPS, bias=True), "gelu")
    b.output(HIDDEN, x)
    b.output("logits", b.linear(x, part(f"{OWN}{shape.at('head', step)}", shape.vocab, "vocab")))
