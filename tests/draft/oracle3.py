"""EAGLE-3 drafters: random ones and what they guess, written again with torch, and ones that are right as often as wanted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from tests.draft.oracle import Guess, save_head

__all__ = ["eagle3_guess", "write_eagle3", "write_random_eagle3"]

_WIDTH, _HEAD, _FFN = 64, 32, 128  # of the tiny target
_ONE, _MOOD = 62, 63  # columns of a row of the moody target


def _config(target: Path, taken: list[int], small: int, **changes: object) -> dict[str, object]:
    config = json.loads((target / "config.json").read_text())
    nested = {"eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": taken}}
    return {**config, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": small, **nested, **changes}


def _shapes(kv_heads: int, rows: int, small: int) -> dict[str, tuple[int, ...]]:
    layer = {
        "self_attn.q_proj": (2 * _HEAD, 2 * _WIDTH), "self_attn.k_proj": (kv_heads * _HEAD, 2 * _WIDTH), "self_attn.v_proj": (kv_heads * _HEAD, 2 * _WIDTH),
        "self_attn.o_proj": (_WIDTH, 2 * _HEAD), "mlp.gate_proj": (_FFN, _WIDTH), "mlp.up_proj": (_FFN, _WIDTH), "mlp.down_proj": (_WIDTH, _FFN),
        "hidden_norm": (_WIDTH,), "input_layernorm": (_WIDTH,), "post_attention_layernorm": (_WIDTH,),
    }  # fmt: skip
    named = {f"midlayer.{name}.weight": shape for name, shape in layer.items()}
    return {**named, "fc.weight": (_WIDTH, rows * _WIDTH), "norm.weight": (_WIDTH,), "lm_head.weight": (small, _WIDTH)}


def write_random_eagle3(target: Path, folder: Path, small: int = 200) -> Path:
    """Random weights under the published names; its head has some of the ids."""
    torch.manual_seed(2)
    config = _config(target, [0, 1, 1], small, norm_before_residual=small % 2 == 1)
    tensors = {name: torch.randn(shape) * 0.2 + (len(shape) == 1) for name, shape in _shapes(1, 3, small).items()}
    vocab = json.loads((target / "config.json").read_text())["vocab_size"]
    ids = torch.randperm(vocab)[:small].sort().values
    known = torch.zeros(vocab, dtype=torch.uint8)
    known[ids] = 1
    return save_head(folder, config, {**tensors, "d2t": ids - torch.arange(small), "t2d": known})


def eagle3_guess(target: Path, folder: Path) -> Guess:
    """From the published code's meaning: rows enter the layers named; behind the first run the drafter's row before its last norm takes their place."""
    model = transformers.LlamaForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    weights, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    w = {name.removeprefix("midlayer.").removesuffix(".weight"): tensor for name, tensor in weights.items()}
    eps = config["rms_norm_eps"]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w[name]

    def attend(x: torch.Tensor) -> torch.Tensor:
        q, k, v = ((x @ w[f"self_attn.{name}_proj"].T).unflatten(-1, (-1, _HEAD)).transpose(0, 1)[None] for name in "qkv")
        q, k = apply_rotary_pos_emb(q, k, *model.model.rotary_emb(x, torch.arange(len(x))[None]))
        k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], 1) for one in (k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out[0].transpose(0, 1).flatten(1) @ w["self_attn.o_proj"].T

    def layer(following: list[int], rows: torch.Tensor) -> torch.Tensor:
        embedded = model.model.embed_tokens(torch.tensor(following))
        normed = norm(rows, "hidden_norm")
        x = (normed if config["norm_before_residual"] else rows) + attend(torch.cat([norm(embedded, "input_layernorm"), normed], -1))
        y = norm(x, "post_attention_layernorm")
        return x + (torch.nn.functional.silu(y @ w["mlp.gate_proj"].T) * (y @ w["mlp.up_proj"].T)) @ w["mlp.down_proj"].T

    @torch.inference_mode()
    def guess(tokens: list[int], count: int) -> list[int]:
        states: Any = model.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        taken = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
        rows = torch.cat([states[one][0] for one in taken], -1)[: len(tokens) - 1] @ w["fc"].T
        following = list(tokens)
        for _ in range(count):
            out = layer(following[1:], rows)
            best = int((norm(out[-1], "norm") @ w["lm_head"].T).argmax())
            following.append(best + int(weights["d2t"][best]))
            rows = torch.cat([rows, out[-1:]])
        return following[len(tokens) :]

    return guess


def write_eagle3(target: Path, folder: Path, right: str) -> Path:
    """For a target of `write_moody_target`, right always ("all"), about half the time ("half") or never ("none").

    The mood comes from the row that enters layer 1, the token through attention, in which every position sees itself alone.
    """
    own = load_file(target / "model.safetensors")
    small = 300
    tensors = {name: torch.ones(shape) if len(shape) == 1 else torch.zeros(shape) for name, shape in _shapes(2, 2, small).items()}
    tensors["fc.weight"][_MOOD, _WIDTH + _MOOD] = -1.0 if right == "none" else 1.0
    scale = (2 / _WIDTH) ** 0.5  # what the norm divides the embedding by
    for head in range(2):
        for pair in range(4):  # those that rotate most
            tensors["midlayer.self_attn.q_proj.weight"][head * _HEAD + pair, _ONE] = 60 * scale
            tensors["midlayer.self_attn.k_proj.weight"][head * _HEAD + pair, _ONE] = 60 * scale
    value = tensors["midlayer.self_attn.v_proj.weight"]
    value[:_MOOD, :_MOOD] = torch.eye(_MOOD) * scale
    value[:_MOOD, _WIDTH : _WIDTH + _MOOD] = -torch.eye(_MOOD) * (6 / _WIDTH) ** 0.5  # a run takes out the token of the one before
    tensors["midlayer.self_attn.o_proj.weight"] = torch.eye(_WIDTH)
    ids = torch.arange(small).flip(0)
    tensors["lm_head.weight"] = own["lm_head.weight"][ids]
    if right == "half":  # every other pair of tokens looks like another
        rows = torch.arange(len(own["model.embed_tokens.weight"])).reshape(-1, 2)
        rows[1::2] = rows[1::2].roll(1, dims=0)
        tensors["embed_tokens.weight"] = own["model.embed_tokens.weight"][rows.flatten()]
    return save_head(folder, _config(target, [0, 1], small, num_key_value_heads=2), {**tensors, "d2t": ids - torch.arange(small)})
