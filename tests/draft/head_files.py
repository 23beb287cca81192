"""Drafters that make all guesses of a row at once or in a chain of their own: checkpoints of them, and what they guess, written again with torch."""

from __future__ import annotations

import json
import shutil
from math import sqrt
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn.functional import gelu, silu

from tests.draft.oracle import Guess, save_head
from tests.structured.tiny import TINY_VOCAB

__all__ = ["HEADS", "WIDTH", "medusa_guess", "pard_guess", "speculator_guess", "write_medusa", "write_pard", "write_speculator"]

WIDTH, HEADS, _INNER = 64, 4, 48


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape) * 0.2


def _target(path: Path) -> transformers.LlamaForCausalLM:
    return transformers.LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


# -- Medusa ----------------------------------------------------------------------------------------------------------------


def write_medusa(folder: Path, style: str, heads: int = HEADS) -> Path:
    """Random heads under the names of Medusa's own files, or of vLLM's."""
    torch.manual_seed(1)
    tensors: dict[str, torch.Tensor] = {}
    for head in range(heads):
        block, last = (f"medusa_head.{head}.0.linear", f"medusa_head.{head}.1") if style == "medusa" else (f"blocks.{head}.layers.0", f"lm_heads.{head}")
        tensors |= {f"{block}.weight": _random(WIDTH, WIDTH), f"{block}.bias": _random(WIDTH), f"{last}.weight": _random(TINY_VOCAB, WIDTH)}
    return save_head(folder, {"model_type": "medusa", "num_heads": heads, "hidden_size": WIDTH, "vocab_size": TINY_VOCAB}, tensors)


def medusa_guess(target: Path, folder: Path) -> Guess:
    """Each head reads the row behind which the last token was drawn."""
    model, weights = _target(target), {name.removeprefix("medusa_head."): tensor for name, tensor in load_file(folder / "model.safetensors").items()}

    @torch.inference_mode()
    def guess(tokens: list[int], count: int) -> list[int]:
        row = model.model(torch.tensor([tokens[:-1]])).last_hidden_state[0, -1]
        found = []
        for head in range(count):
            block, last = (f"{head}.0.linear", f"{head}.1") if "0.0.linear.weight" in weights else (f"blocks.{head}.layers.0", f"lm_heads.{head}")
            x = row + silu(weights[f"{block}.weight"] @ row + weights[f"{block}.bias"])
            found.append(int((weights[f"{last}.weight"] @ x).argmax()))
        return found

    return guess


# -- MLP speculators -------------------------------------------------------------------------------------------------------


def write_speculator(folder: Path, *, tied: bool) -> Path:
    """Random networks under the published names: each with its own weights, or one for all, whose input is normalised."""
    torch.manual_seed(6)
    tensors: dict[str, torch.Tensor] = {}
    for step in range(HEADS):
        first = step == 0
        if not tied or first:
            tensors |= {f"speculator.emb.{step}.weight": torch.randn(TINY_VOCAB, _INNER), f"speculator.head.{step}.weight": _random(TINY_VOCAB, _INNER)}
            tensors |= {f"speculator.ln.{step}.weight": 1 + _random(_INNER), f"speculator.ln.{step}.bias": _random(_INNER)}
        if not tied or step < 2:
            tensors[f"speculator.proj.{step}.weight"] = _random(_INNER, WIDTH if first else _INNER)
    return save_head(
        folder,
        {"architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator", "vocab_size": TINY_VOCAB, "emb_dim": WIDTH, "inner_dim": _INNER}
        | {"n_predict": HEADS, "tie_weights": tied, "scale_input": tied},
        tensors,
    )


def speculator_guess(target: Path, folder: Path) -> Guess:
    """A state, which is the model's row at first, and a token give the next state, from which the next token follows."""
    model, config = _target(target), json.loads((folder / "config.json").read_text())
    weights = {name.removeprefix("speculator."): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    lean = 0.5 ** (0.5 / config["n_predict"])

    def rms(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean() + 1e-6)

    @torch.inference_mode()
    def guess(tokens: list[int], count: int) -> list[int]:
        state, following = model.model(torch.tensor([tokens[:-1]])).last_hidden_state[0, -1], list(tokens)
        state = rms(state) / sqrt(2) if config["scale_input"] else state
        for step in range(count):
            own, turn = (0, min(step, 1)) if config["tie_weights"] else (step, step)
            x = weights[f"proj.{turn}.weight"] @ state
            x = x + sqrt((1 - lean**2) * config["inner_dim"] / 2) / lean * weights[f"emb.{own}.weight"][following[-1]]
            state = gelu(weights[f"ln.{own}.weight"] * rms(x) + weights[f"ln.{own}.bias"])
            following.append(int((weights[f"head.{own}.weight"] @ state).argmax()))
        return following[len(tokens) :]

    return guess


# -- parallel drafts -------------------------------------------------------------------------------------------------------


def write_pard(target: Path, folder: Path, seed: int | None = None) -> Path:
    """A copy of the target that has a mask token; with a seed its head is another one."""
    shutil.copytree(target, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "pard_token": 380}))
    if seed is not None:
        torch.manual_seed(seed)
        weights = load_file(folder / "model.safetensors")
        weights["lm_head.weight"] = _random(TINY_VOCAB, WIDTH)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def pard_guess(folder: Path) -> Guess:
    """One run over the tokens and masks behind them."""
    model, mask = _target(folder), json.loads((folder / "config.json").read_text())["pard_token"]

    @torch.inference_mode()
    def guess(tokens: list[int], count: int) -> list[int]:
        logits = model(torch.tensor([[*tokens, *[mask] * (count - 1)]])).logits[0]
        return [int(row.argmax()) for row in logits[len(tokens) - 1 :]]

    return guess
