"""A target whose next token depends on its last token and on a mood that an early token set, so that a drafter must read its rows to be right."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.structured.tiny import TINY_VOCAB, write_tiny_model

__all__ = ["MOODS", "write_fixed_target", "write_moody_target"]

MOODS = {"+": 1.0, "-": -1.0}  # tokens that set it
_MARKED, _SIGN, _ONE, _MOOD = 60, 61, 62, 63  # columns of a row of 64; before them stands the token


def write_moody_target(folder: Path) -> Path:
    """Layer 0 finds the marker and writes the mood; nothing else is added. Tokens 2 n and 2 n + 1 look alike, and pairs follow each other in a long cycle:
    the mood says which of a pair comes, so without the model's row nobody can tell."""
    write_tiny_model(folder)
    weights = load_file(folder / "model.safetensors")
    for name, tensor in weights.items():
        if "proj" in name:
            tensor.zero_()
    embed, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    torch.manual_seed(3)
    embed.zero_()
    embed[:, :_MARKED] = torch.nn.functional.normalize(torch.randn(TINY_VOCAB // 2, _MARKED), dim=1).repeat_interleave(2, dim=0)
    embed[:, _ONE] = 1.0
    for text, sign in MOODS.items():
        embed[ord(text), _MARKED], embed[ord(text), _SIGN] = 1.0, sign
    slow = [15, 31]  # the pair of columns that rotates least
    weights["model.layers.0.self_attn.q_proj.weight"][[slow[0], 32 + slow[0]], _ONE] = 12.0
    weights["model.layers.0.self_attn.k_proj.weight"][slow[0], _MARKED] = 12.0
    weights["model.layers.0.self_attn.v_proj.weight"][0, _SIGN] = 1.0
    weights["model.layers.0.self_attn.o_proj.weight"][_MOOD, 0] = 0.5
    head.zero_()
    rng = random.Random(5)
    pairs = [pair for pair in range(128) if pair not in {ord(text) // 2 for text in MOODS}]
    rng.shuffle(pairs)
    head[:, _ONE] = -30.0
    for pair, following in zip(pairs, [*pairs[1:], pairs[0]], strict=True):
        for sign, token in ((1.0, 2 * following), (-1.0, 2 * following + 1)):
            head[token] = 0.0
            head[token, :_MARKED], head[token, _MOOD] = 2.0 * embed[2 * pair, :_MARKED], 6.0 * sign
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_fixed_target(folder: Path) -> Path:
    """One token for each mood, again and again."""
    write_moody_target(folder)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"].zero_()
    weights["lm_head.weight"][[97, 98], _MOOD] = torch.tensor([6.0, -6.0])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
