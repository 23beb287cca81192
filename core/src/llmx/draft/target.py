"""Target: what a drafter reads and shares of the model that it drafts for, told from that model's main Program."""

from __future__ import annotations

from dataclasses import replace

from llmx.errors import ConfigError
from llmx.executor.draft_shape import KEPT, hidden_group
from llmx.models.load import LoadedModel
from llmx.program.attrs import OutputAttrs
from llmx.program.builder import ProgramBuilder
from llmx.program.ops import Model, Op, Program, Region, Value
from llmx.record import record

__all__ = ["Target"]


@record
class Target:
    """name: of the model; hidden: width of its rows; vocab: ids of its head. Made by `of`."""

    name: str
    hidden: int
    vocab: int
    program: Program
    _embed: Op
    _head: Op
    _last: Value  # the rows that the head reads, of all tokens

    @classmethod
    def of(cls, loaded: LoadedModel) -> Target:
        """Raises ConfigError for a model whose main Program has no embedding of ids, head rows or head."""
        main, name = loaded.bundle.model.programs["main"], loaded.summary.name
        ids = main.inputs.get("ids")
        embed = next((op for op in main.ops if op.kind == "embed" and op.ins[0] == ids), None)
        rows = next((op for op in main.ops if op.kind == "rows"), None)
        head = next((op for op in reversed(main.ops) if op.kind == "linear"), None)
        if embed is None or rows is None or head is None or rows.ins[0] is None or hidden_group(s.spec for s in loaded.bundle.model.states.values()) < 0:
            raise _error(f"{name} has no embedding, head rows, head or pages that a drafter could share: take ngram or suffix")
        width, vocab = rows.ins[0].shape[-1], head.outs[0].shape[-1]
        assert isinstance(width, int) and isinstance(vocab, int)
        return cls(name, width, vocab, main, embed, head, rows.ins[0])

    @property
    def embed_width(self) -> int:
        """Floats of a row of its embedding."""
        width = self._embed.outs[0].shape[-1]
        assert isinstance(width, int)
        return width

    @property
    def layers(self) -> int:
        """How many it has."""
        return 1 + max((op.region.index for op in self.program.ops if op.region.block == "layer"), default=-1)

    def embed(self, b: ProgramBuilder, ids: Value) -> Value:
        """Its embedding of ids, i32 [n], in another Program: [n, embed_width]."""
        return b.emit1("embed", ids, attrs=self._embed.attrs, weights=self._embed.weights)

    def head(self, b: ProgramBuilder, x: Value) -> Value:
        """Its head's product, of rows [n, hidden]: [n, vocab]. What may follow it there (a factor, a cap) changes no order, so it is left out."""
        return b.emit1("linear", x, attrs=self._head.attrs, weights=self._head.weights)

    def entering(self, layer: int) -> Value:
        """The rows that a layer reads, before its norm: [T, hidden]. Raises ConfigError for a layer that is not there, or reads something else."""
        ops = [op for op in self.program.ops if (op.region.block, op.region.index) == ("layer", layer)]
        if not ops:
            raise _error(f"the drafter reads what enters layer {layer} of {self.name}, which has {self.layers} layers: take the drafter made for this model")
        rows = ops[0].ins[0]
        if rows is None or len(rows.shape) != 2 or rows.shape[-1] != self.hidden:
            raise _error(f"layer {layer} of {self.name} does not begin with rows of width {self.hidden}: take eagle, medusa or suffix")
        return rows

    def keeping(self, model: Model) -> Model:
        """The Model whose main Program keeps, for a drafter, the rows that the head reads."""
        kept = Op("output", (self._last,), (), OutputAttrs(KEPT), region=Region("model", 0, ""))
        return replace(model, programs={**model.programs, "main": replace(self.program, ops=(*self.program.ops, kept))})


def _error(why: str) -> ConfigError:
    return ConfigError(f"speculative_config: {why}", field="speculative_config")
