"""One op as a whole model, so that the executor that serves runs it: rows from a table, the op, and a head that shows its result.

The logits of a row are the op's values for that row: the head is a matrix with ones on its diagonal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from llmx.executor import ModelBundle
from llmx.program.builder import ModelBuilder, R, T, part
from llmx.program.kinds import core_registry
from llmx.program.ops import Model, Value
from llmx.program.passes.decompose import decompose
from llmx.program.verify import verify
from llmx.testing.conformance.common import TOKENS, VOCAB
from llmx.testing.numpy_programs import Interpreter
from llmx.testing.op_cases import Write
from llmx.testing.tiny_models import MemorySource, stored, tensors_of
from llmx.weights.quant import quant_key

__all__ = ["expected", "op_model"]

_TABLE, _HEAD = "table.weight", "head.weight"


def op_model(write: Write, width: int, quants: Mapping[str, str] | None = None) -> ModelBundle:
    """A model whose logits are the results of `write` side by side, zeros behind. quants: how weights are stored, f32 by default."""
    quants = quants or {}
    model = _written(write, width, quants, with_positions=True)
    used = {value.id for op in model.programs["main"].ops for value in op.ins if value is not None}
    if model.programs["main"].inputs["positions"].id not in used:
        model = _written(write, width, quants, with_positions=False)
    verify(model)
    rng, tensors = np.random.default_rng(5), {}
    for ref in model.weights().values():
        values = rng.normal(size=ref.shape) if ref.name == _TABLE else rng.normal(0.5, 0.4, ref.shape)
        if ref.name == _HEAD:
            values = np.eye(ref.shape[0], ref.shape[1])
        tensors[ref.name] = stored(values.astype(np.float32), quants.get(ref.name, "f32"))
    return ModelBundle("one op", "one op", model, MemorySource(tensors), VOCAB, TOKENS)


def _written(write: Write, width: int, quants: Mapping[str, str], *, with_positions: bool) -> Model:
    model = ModelBuilder(lambda name: quant_key(quants.get(name, "f32")))
    b = model.program("main")
    ids = b.input("ids")
    positions = b.input("positions") if with_positions else ids  # unused then
    head = b.input("head", (R,))
    x = b.embed(ids, "table", VOCAB, width)
    results = write(b, x, positions)
    flat = [_flat(b, value) for value in (results if isinstance(results, tuple) else (results,))]
    if not any(x.id == value.id for op in b._ops for value in op.ins if value is not None):
        flat.append(x)
    y = b.concat(*flat) if len(flat) > 1 else flat[0]
    b.output("logits", b.linear(b.rows(y, head), part("head", VOCAB)))
    return model.build()


def _flat(b: object, value: Value) -> Value:
    if len(value.shape) <= 2:
        return value
    width = prod(int(size) for size in value.shape[1:] if isinstance(size, int))
    return b.view(value, T, width)  # type: ignore[attr-defined, no-any-return]


def expected(bundle: ModelBundle, tokens: Sequence[int]) -> np.ndarray:
    """float64 [T, VOCAB]: the logits of one request's rows by the numpy reading of its Program."""
    program = decompose(bundle.model.programs["main"], core_registry())
    given = {"ids": np.array(tokens), "positions": np.arange(len(tokens)), "head": np.arange(len(tokens))}
    interpreter = Interpreter(tensors_of(bundle))
    return interpreter.run(program, {name: given[name] for name in program.inputs})["logits"]
