"""Adapters on the torch executor: a linear of any kernel, and behind it what adapters add to the rows that use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from llmx.executor.adapters import AdapterPart
from llmx.executor.torch.kernel import Call, Tensor
from llmx.executor.torch.rows import Rows
from llmx.program.ops import Op, Sym
from llmx.weights.quant import dequantize

__all__ = ["AdaptedLinear"]


@dataclass(frozen=True, slots=True)
class _Placed:
    """One adapter at one Part. a: [rank, in], b: [rows, rank] times the scale. g, bias: [rows], of a DoRA."""

    a: Tensor
    b: Tensor
    g: Tensor | None = None
    bias: Tensor | None = None


class AdaptedLinear:
    """A bound call of a linear. Rows without an adapter get what `call` gives."""

    def __init__(self, call: Call, op: Op, device: torch.device) -> None:
        self._call, self._device = call, device
        self._width = op.weights["w"][0].weight.shape[-1]
        self._at_head = op.outs[0].shape[0] == Sym("R")
        self._spans: dict[str, slice] = {}
        first = 0
        for part in op.weights["w"]:
            self._spans[part.target] = slice(first, first + part.rows)
            first += part.rows
        self._slots: dict[int, dict[str, _Placed]] = {}

    @torch.inference_mode()
    def put(self, slot: int, parts: Mapping[str, AdapterPart]) -> None:
        """Take an adapter's parts that are this op's."""
        self._slots[slot] = {target: self._place(parts[target], span) for target, span in self._spans.items() if target in parts}

    def drop(self, slot: int) -> None:
        """Forget an adapter."""
        self._slots.pop(slot, None)

    def _place(self, part: AdapterPart, span: slice) -> _Placed:
        a, b = (torch.from_numpy(dequantize(one).copy()).to(self._device) for one in (part.a, part.b))
        b = b * part.scale
        if part.magnitude is None:
            return _Placed(a, b)
        bias = self._alone(torch.zeros(1, self._width, device=self._device))[0, span]
        weight = (self._alone(torch.eye(self._width, device=self._device))[:, span] - bias).T  # whatever the kernel keeps of it
        length = (weight + b @ a).norm(dim=1)
        return _Placed(a, b, torch.from_numpy(part.magnitude).to(self._device) / length, bias)

    def _alone(self, x: Tensor) -> Tensor:
        result: Tensor = self._call(Rows((), self._device, {"T": len(x), "N": 0, "R": len(x)}), x)
        return result.float()

    def __call__(self, rows: Rows, x: Tensor) -> Tensor:
        """y of all rows."""
        y: Tensor = self._call(rows, x)
        for slot, index in rows.adapted(at_head=self._at_head):
            placed = self._slots[slot]
            if not placed:
                continue
            given, chosen = x[index], y[index]
            for target, one in placed.items():
                span = self._spans[target]
                more = (given @ one.a.T) @ one.b.T
                if one.g is None or one.bias is None:
                    chosen[..., span] += more
                else:
                    chosen[..., span] = one.g * (chosen[..., span] - one.bias + more) + one.bias
            y[index] = chosen
        return y
