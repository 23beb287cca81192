"""What drafters that read hidden rows guess, written again with torch and transformers, and checkpoints of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

__all__ = ["Guess", "eagle_guess", "save_head", "write_eagle", "write_random_eagle"]

Guess = Callable[[list[int], int], list[int]]  # (tokens, how many) -> what should be guessed behind them


def _config(target: Path, **changes: object) -> dict[str, object]:
    return {**json.loads((target / "config.json").read_text()), "num_hidden_layers": 1, **changes}


def save_head(folder: Path, config: dict[str, object], tensors: dict[str, torch.Tensor]) -> Path:
    """A checkpoint: whole numbers as they are, everything else in float32."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    stored = {name: (tensor.float() if tensor.is_floating_point() else tensor).contiguous() for name, tensor in tensors.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_random_eagle(target: Path, folder: Path, seed: int = 0, **changes: object) -> Path:
    """A head whose weights are random: seldom right, but its guesses can be computed."""
    config = transformers.LlamaConfig(**_config(target, num_hidden_layers=2))
    torch.manual_seed(seed)
    inner = transformers.LlamaModel(config).state_dict()
    tensors = {name: tensor for name, tensor in inner.items() if name.startswith("layers.") and name != "layers.0.input_layernorm.weight"}
    tensors["fc.weight"] = torch.randn(config.hidden_size, 2 * config.hidden_size) * 0.2
    tensors["fc.bias"] = torch.randn(config.hidden_size) * 0.2
    return save_head(folder, _config(target, num_hidden_layers=2, **changes), tensors)


def write_eagle(target: Path, folder: Path, right: str) -> Path:
    """A head for a target of `write_moody_target`, right always ("all"), about half the time ("half") or never ("none").

    It takes what the token says from the embedding and the mood from the model's row; its layer adds nothing.
    """
    config = json.loads((target / "config.json").read_text())
    width, vocab = config["hidden_size"], config["vocab_size"]
    shapes = transformers.LlamaModel(transformers.LlamaConfig(**_config(target))).state_dict()
    tensors = {name: torch.zeros_like(tensor) for name, tensor in shapes.items() if name.startswith("layers.0.") and "input_layernorm" not in name}
    fc = torch.zeros(width, 2 * width)
    fc[: width - 1, : width - 1] = torch.eye(width - 1)  # the token
    fc[width - 1, 2 * width - 1] = -1.0 if right == "none" else 1.0  # the mood: the wrong one is never right
    tensors["fc.weight"] = fc
    if right == "half":  # every other pair of tokens looks like another
        from safetensors.torch import load_file

        rows = torch.arange(vocab)
        rows = rows.reshape(-1, 2)
        rows[1::2] = rows[1::2].roll(1, dims=0)
        tensors["embed_tokens.weight"] = load_file(target / "model.safetensors")["model.embed_tokens.weight"][rows.flatten()]
    return save_head(folder, _config(target), tensors)


def eagle_guess(target: Path, head: Path) -> Guess:
    """From the published code's meaning: row p reads the model's normed row at p and the embedding of token p + 1; then its own rows."""
    from safetensors.torch import load_file

    model = transformers.LlamaForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    weights = load_file(head / "model.safetensors")
    config = transformers.LlamaConfig(**json.loads((head / "config.json").read_text()))
    config._attn_implementation = "eager"
    layers = transformers.LlamaModel(config).eval()
    layers.load_state_dict({**layers.state_dict(), **{name: tensor for name, tensor in weights.items() if name.startswith("layers.")}})
    layers.layers[0].input_layernorm = torch.nn.Identity()
    layers.norm = torch.nn.Identity()

    @torch.inference_mode()
    def guess(tokens: list[int], count: int) -> list[int]:
        hidden = model.model(torch.tensor([tokens])).last_hidden_state[0]
        following, guesses = list(tokens), list[int]()
        rows = hidden[: len(tokens) - 1]
        for _ in range(count):
            embedded = model.model.embed_tokens(torch.tensor(following[1:]))
            x = torch.cat([embedded, rows], -1) @ weights["fc.weight"].T + weights.get("fc.bias", 0.0)
            out = layers(inputs_embeds=x[None]).last_hidden_state[0]
            following.append(int((out[-1] @ model.lm_head.weight.T).argmax()))
            guesses.append(following[-1])
            rows = torch.cat([rows, out[-1:]])
        return guesses

    return guess
