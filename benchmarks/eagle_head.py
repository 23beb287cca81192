"""An EAGLE head in torch, to be trained: computed along whole texts, also out of its own rows, as the engine computes it token by token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.functional import rms_norm, silu, softmax

__all__ = ["Head"]

Pairs = list[tuple[torch.Tensor, torch.Tensor]]  # keys and values [B, KV, T, D] of the first run along a text, of the second, ...


class _Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self._eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, (x.shape[-1],), self.weight, self._eps)


class _Attention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self._heads, self._pairs, self._width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        hidden, said = config.hidden_size, getattr(config, "rope_parameters", None) or {}
        self._theta = float(said.get("rope_theta") or getattr(config, "rope_theta", 0.0) or 10000.0)
        self.q_proj = nn.Linear(hidden, self._heads * self._width, bias=False)
        self.k_proj = nn.Linear(hidden, self._pairs * self._width, bias=False)
        self.v_proj = nn.Linear(hidden, self._pairs * self._width, bias=False)
        self.o_proj = nn.Linear(self._heads * self._width, hidden, bias=False)

    def forward(self, x: torch.Tensor, before: Pairs) -> tuple[torch.Tensor, Pairs]:
        """before: of earlier runs. A guess of run n sees the first run's pairs up to n places back, and one pair of each run since."""
        batch, length, _ = x.shape
        q, k, v = (one(x).view(batch, length, -1, self._width).transpose(1, 2) for one in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self._turned(q), self._turned(k)
        q = q.reshape(batch, self._pairs, -1, length, self._width) * self._width**-0.5
        runs, last = [*before, (k, v)], len(before)
        place = torch.arange(length)
        scores = [(q @ runs[0][0][:, :, None].transpose(-1, -2)).masked_fill(place[None] > place[:, None] - last, float("-inf"))]
        since = [tuple(one.roll(last - run, 2)[:, :, None] for one in runs[run]) for run in range(1, last + 1)]
        scores += [(q * keys).sum(-1, keepdim=True) for keys, _ in since]
        shares = softmax(torch.cat(scores, -1), -1)
        mixed = shares[..., :length] @ runs[0][1][:, :, None]
        for run, (_, values) in enumerate(since):
            mixed = mixed + shares[..., length + run : length + run + 1] * values
        return self.o_proj(mixed.reshape(batch, self._heads, length, self._width).transpose(1, 2).flatten(2)), runs

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        turns = torch.arange(x.shape[2])[:, None] / self._theta ** (torch.arange(0, self._width, 2) / self._width)
        one, two = x.chunk(2, -1)
        return torch.cat([one * turns.cos() - two * turns.sin(), two * turns.cos() + one * turns.sin()], -1)


class _Mlp(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return found


class _Layer(nn.Module):
    def __init__(self, config: Any, first: bool) -> None:
        super().__init__()
        self.self_attn, self.mlp = _Attention(config), _Mlp(config)
        self.post_attention_layernorm = _Norm(config.hidden_size, config.rms_norm_eps)
        if not first:
            self.input_layernorm = _Norm(config.hidden_size, config.rms_norm_eps)
        with torch.no_grad():  # it begins by leaving its input as it is
            self.self_attn.o_proj.weight.zero_()
            self.mlp.down_proj.weight.zero_()

    def forward(self, x: torch.Tensor, before: Pairs) -> tuple[torch.Tensor, Pairs]:
        mixed, pairs = self.self_attn(self.input_layernorm(x) if hasattr(self, "input_layernorm") else x, before)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), pairs


class Head(nn.Module):
    """The drafter as published: fc over the token's embedding and the model's row, then layers of which the first has no norm before.

    config: a LlamaConfig. embedded, rows: [N, H] of the same texts, token by token, to begin with: what a token's embedding and the model's row before it tell
    about the model's next row along a straight line is solved for, so that training begins there.
    """

    def __init__(self, config: Any, embedded: list[torch.Tensor], rows: list[torch.Tensor]) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config, not index) for index in range(config.num_hidden_layers))
        given = torch.cat([torch.cat([e[1:], r[:-1], torch.ones(len(r) - 1, 1)], -1) for e, r in zip(embedded, rows, strict=True)])
        wanted = torch.cat([r[1:] for r in rows])
        size = given.std(0) + 1e-6
        size[-1] = 1.0
        given = given / size
        square = given.T @ given + 0.01 * len(given) * torch.eye(given.shape[1])
        found = torch.linalg.solve(square, given.T @ wanted) / size[:, None]
        with torch.no_grad():
            self.fc.weight.copy_(found[:-1].T)
            self.fc.bias.copy_(found[-1])

    def guesses(self, embedded: torch.Tensor, rows: torch.Tensor, ahead: int) -> Iterator[torch.Tensor]:
        """Of texts [B, T, H]: for each run [B, T - 1, H], what stands for the model's row at p + 1 at place p; run n reads the rows of the one before.

        Places below n - 1 of run n mean nothing.
        """
        pairs: list[Pairs] = [[] for _ in self.layers]
        given = rows[:, :-1]
        for _ in range(ahead):
            x = self.fc(torch.cat([embedded[:, 1:], given], -1))
            for index, layer in enumerate(self.layers):
                x, pairs[index] = layer(x, pairs[index])
            yield x
            given = x.roll(1, 1)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Under the published names."""
        return {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in self.state_dict().items()}
