"""Adapters on the torch executor: a linear or an embedding of any kernel, and behind it what adapters make of the rows that use them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from llmx.executor.adapters import AdapterPart, LoraPart, WholePart
from llmx.executor.torch.kernel import Call, Tensor
from llmx.executor.torch.rows import Rows
from llmx.program.ops import Op, Sym
from llmx.record import record
from llmx.weights.host_tensor import HostTensor
from llmx.weights.quant import dequantize

__all__ = ["AdaptedEmbedding", "AdaptedLinear"]


@record
class _Placed:
    """One adapter at one Part. a: [rank, in], b: [rows, rank] times the scale. g, bias: [rows], of a DoRA.

    whole: [rows, in], the weight that stands in the model's place; a and b are empty then.
    """

    a: Tensor
    b: Tensor
    g: Tensor | None = None
    bias: Tensor | None = None
    whole: Tensor | None = None


def _on_device(tensor: HostTensor, device: torch.device) -> Tensor:
    return torch.from_numpy(dequantize(tensor).copy()).to(device)


def _whole(part: WholePart, bias: Tensor | None, device: torch.device) -> _Placed:
    none = torch.empty(0, device=device)
    return _Placed(none, none, None, bias, _on_device(part.weight, device))


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
    def put(self, slot: int, parts: Mapping[str, LoraPart]) -> None:
        """Take an adapter's parts that are this op's."""
        self._slots[slot] = {target: self._place(parts[target], span) for target, span in self._spans.items() if target in parts}

    def drop(self, slot: int) -> None:
        """Forget an adapter."""
        self._slots.pop(slot, None)

    def _place(self, part: LoraPart, span: slice) -> _Placed:
        if isinstance(part, WholePart):
            return _whole(part, self._alone(torch.zeros(1, self._width, device=self._device))[0, span], self._device)
        a, b = _on_device(part.a, self._device), _on_device(part.b, self._device) * part.scale
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
                if one.whole is not None and one.bias is not None:
                    chosen[..., span] = given @ one.whole.T + one.bias
                    continue
                more = (given @ one.a.T) @ one.b.T
                if one.g is None or one.bias is None:
                    chosen[..., span] += more
                else:
                    chosen[..., span] = one.g * (chosen[..., span] - one.bias + more) + one.bias
            y[index] = chosen
        return y


class AdaptedEmbedding:
    """A bound call of an embedding. Rows without an adapter get what `call` gives."""

    def __init__(self, call: Call, op: Op, device: torch.device) -> None:
        self._call, self._device = call, device
        (self._part,) = op.weights["w"]
        self._scale, self._outside = op.attrs.scale, op.attrs.outside
        self._slots: dict[int, _Placed] = {}

    @torch.inference_mode()
    def put(self, slot: int, parts: Mapping[str, LoraPart]) -> None:
        """Take an adapter's part that is this op's, if there is one."""
        part = parts.get(self._part.target)
        if part is not None:
            self._slots[slot] = _whole(part, None, self._device) if isinstance(part, WholePart) else self._place(part)

    def drop(self, slot: int) -> None:
        """Forget an adapter."""
        self._slots.pop(slot, None)

    def _place(self, part: AdapterPart) -> _Placed:
        a, b = _on_device(part.a, self._device), _on_device(part.b, self._device) * part.scale
        if part.magnitude is None:
            return _Placed(a, b)
        every = torch.arange(a.shape[1], device=self._device)
        table: Tensor = self._call(Rows((), self._device, {"T": len(every), "N": 0, "R": 0}), every).float() / self._scale
        return _Placed(a, b, torch.from_numpy(part.magnitude).to(self._device) / (table + (b @ a).T).norm(dim=0))

    def __call__(self, rows: Rows, ids: Tensor) -> Tensor:
        """y of all rows."""
        y: Tensor = self._call(rows, ids)
        for slot, index in rows.adapted(at_head=False):
            one = self._slots.get(slot)
            if one is None:
                continue
            chosen = ids[index]
            if self._outside is not None:
                chosen = torch.where(chosen < self._part.weight.shape[0], chosen, self._outside)
            if one.whole is not None:
                y[index] = (one.whole[chosen] * self._scale).to(y.dtype)
                continue
            changed = y[index] + (one.a.T[chosen] @ one.b.T) * self._scale
            y[index] = (changed if one.g is None else one.g * changed).to(y.dtype)
        return y
