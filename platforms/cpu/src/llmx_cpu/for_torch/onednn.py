"""oneDNN's product as a kernel of core's torch executor: weights are brought into oneDNN's own layout once, when they are loaded.

torch's operators for it (torch 2.13): mkldnn::_reorder_linear_weight gives a weight in the layout that oneDNN chooses for a product with it,
mkldnn::_linear_pointwise multiplies by such a weight and adds a bias.
"""

from __future__ import annotations

from functools import partial

import torch

from llmx.executor import Limits
from llmx.executor.op_weights import dense
from llmx.executor.torch.kernel import Call, Spec, Tensor
from llmx.executor.torch.pages import StatePages
from llmx.executor.torch.rows import Rows
from llmx.executor.torch.weights import Weights
from llmx.record import record

__all__ = ["Linear"]


@record
class _Part:
    """weight: in oneDNN's layout, not readable as a tensor."""

    weight: Tensor
    bias: Tensor | None


class Linear:
    """The op linear."""

    def __init__(self) -> None:
        self._nbytes = 0

    @torch.inference_mode()
    def pack(self, weights: Weights, spec: Spec, uses: tuple[str, ...]) -> list[_Part]:
        """Each Part in oneDNN's layout, made once per weight."""
        found = []
        for key in (key for key in weights if not key.endswith(".bias")):
            weight = weights.shared(("onednn", weights.refs[key]), partial(self._packed, weights, key))
            found.append(_Part(weight, weights.dense(f"{key}.bias") if f"{key}.bias" in weights else None))
        return found

    def _packed(self, weights: Weights, key: str) -> Tensor:
        values = torch.from_numpy(dense(weights[key]))
        values = values.reshape(-1, values.shape[-1])
        self._nbytes += values.numel() * values.element_size()
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(values, None)
        return packed

    def workspace(self, spec: Spec, limits: Limits) -> int:
        """Bytes of the weights packed here, which the executor does not see; what a layout adds is not counted."""
        return self._nbytes

    def bind(self, spec: Spec, packed: list[_Part], states: tuple[StatePages, ...]) -> Call:
        """The call with its weights."""
        product = torch.ops.mkldnn._linear_pointwise.default

        def call(rows: Rows, x: Tensor) -> Tensor:
            made = [product(x, part.weight, part.bias, "none", [], "") for part in packed]
            return made[0] if len(made) == 1 else torch.cat(made, -1)

        return call
