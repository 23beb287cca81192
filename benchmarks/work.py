"""How much work a workload is: bytes read for a decoded token, operations for a run; and what share of the machine's limit a rate is."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from benchmarks.run_engine import Shape, shape_of

__all__ = ["Limits", "Work", "work_of"]


@dataclass(frozen=True)
class Limits:
    """What the machine can do per second with all threads: bytes read; operations on int8, bf16 and f32 (a multiply-add is two)."""

    read: float
    int8: float
    bf16: float
    f32: float


@dataclass(frozen=True)
class Work:
    """A model's work. quantised: its products are of int8 numbers; otherwise of bf16.

    layer_bytes, head_bytes: weights read by a token's layers and by the head; layer_ops, head_ops: their operations per row;
    kv_bytes: of one token's K and V in bf16; attention_ops: per token and token of context; window: bound of the context, 0 for none
    (of the layers that slide; `sliding` is their share).
    """

    quantised: bool
    layer_bytes: float
    head_bytes: float
    layer_ops: float
    head_ops: float
    kv_bytes: float
    attention_ops: float
    window: int = 0
    sliding: float = 0.0

    def context(self, tokens: float) -> float:
        """Tokens that a row at this position looks at, averaged over the layers."""
        return tokens if not self.window else (1 - self.sliding) * tokens + self.sliding * min(tokens, self.window)

    def bytes_per_token(self, shape: Shape) -> float:
        """Read from memory for one decode step of one request, at the middle of the shape's context."""
        return self.layer_bytes + self.head_bytes + self.kv_bytes * self.context(shape.length + shape.new / 2)

    def run_ops(self, shape: Shape) -> tuple[float, float]:
        """Operations of products with weights, and of attention, of one run of the shape."""
        rows = shape.n * (shape.length + shape.new - 1)
        products = rows * self.layer_ops + shape.n * shape.new * self.head_ops
        return products, rows * self.attention_ops * self.context((shape.length + shape.new) / 2)

    def share(self, workload: str, rate: float, limit: str, limits: Limits) -> float:
        """The part of the limit that a rate of tokens per second is. limit: "read" or "compute"."""
        shape = shape_of(workload)
        if limit == "read":
            return rate * self.bytes_per_token(shape) / limits.read
        seconds = (shape.length if shape.counts == "prompt" else shape.n * shape.new) / rate
        products, attention = self.run_ops(shape)
        least = products / (limits.int8 if self.quantised else limits.bf16) + attention / limits.bf16
        return least / seconds


def work_of(model: Path) -> Work:
    """The work of a model that llmx can load. Raises ModelError."""
    from llmx.config import ModelConfig
    from llmx.models.load import load_model
    from llmx.weights.host_tensor import BLOCK_BYTES

    loaded = load_model(ModelConfig(source=str(model)))
    bundle = loaded.bundle
    matrices = {ref.name: ref for ref in bundle.model.weights().values() if len(ref.shape) > 1}
    head = next((name for name in matrices if name.endswith("lm_head.weight")), None)
    embedding = next((name for name in matrices if "embed_tokens" in name), None)
    read, ops = {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}  # is it the head?
    for name, ref in matrices.items():
        if name == embedding and head is not None:
            continue  # one row per token
        dtype = bundle.weights.raw(name).dtype
        elements, size = BLOCK_BYTES[dtype]
        is_head = name == (head or embedding)
        read[is_head] += prod(ref.shape) / elements * size
        ops[is_head] += 2.0 * prod(ref.shape)
    bundle.weights.close()
    specs = [state.spec for state in bundle.model.states.values()]
    heads = int(loaded.hf_config["num_attention_heads"])
    slides = [spec for spec in specs if spec.window]
    return Work(
        quantised=any(ref.quant.scheme != "dense" for ref in matrices.values()),
        layer_bytes=read[False],
        head_bytes=read[True],
        layer_ops=ops[False],
        head_ops=ops[True],
        kv_bytes=sum(2.0 * spec.kv_heads * (spec.head_dim + spec.v_head_dim) for spec in specs),
        attention_ops=sum(2.0 * heads * (spec.head_dim + spec.v_head_dim) for spec in specs),
        window=int(slides[0].window or 0) if slides else 0,
        sliding=len(slides) / max(len(specs), 1),
    )
