"""linear with weights of 8 and 4 bits: codes are multiplied as they are stored, by float32 rows (`Linear`) or by rows rounded to 8 bits (`EightBits`)."""


import torch

from llmx.executor.torch.kernel import Call, Spec
from llmx.executor.torch.pages import StatePages
from llmx.executor.torch.rows import Rows
from llmx.executor.torch.weights import Weights
from llmx_triton.eight_bits import EightPart, eight_part
from llmx_triton.products import GroupPart, group_part
from llmx_triton.weightless import Kept

__all__ = ["EightBits", "Linear"]


class Linear(Kept):
    """The op linear: a product per Part, side by side."""

    _part = staticmethod(group_part)

    def pack(self, weights: Weights, spec: Spec, uses: tuple[str, ...]) -> list[GroupPart | EightPart]:  # type: ignore[override]
        """Codes, scales and offsets of each Part, apart."""
        keys = [key for key in weights if not key.endswith(".bias")]
        return [self._part(weights[key], weights.dense(f"{key}.bias") if f"{key}.bias" in weights else None, weights.device) for key in keys]

    def bind(self, spec: Spec, packed: list[GroupPart | EightPart], states: tuple[StatePages, ...]) -> Call:
        """The call with its weights."""

        def call(rows: Rows, x: torch.Tensor) -> torch.Tensor:
            made = [one.times(x) for one in packed]
            return made[0] if len(made) == 1 else torch.cat(made, -1)

        return call


class EightBits(Linear):
    """The op linear, of rows that are rounded to 8 bits and weights that have them."""

    _part = staticmethod(eight_part)  # type: ignore[assignment]
