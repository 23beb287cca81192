"""Adapters that cannot be served are refused by the name of what is wrong; what a digest covers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmx.errors import ModelError
from llmx.lora.bind import bind
from llmx.lora.peft import read_peft
from llmx.testing import tiny_llama
from tests.lora.adapters import write_adapter

MODEL = tiny_llama().model
SIZES = {part.target: part.weight.shape for part in MODEL.programs["main"].parts()}
BY_CHANCE = random.Random(1)
GOOD, TABLE = "model.layers.0.self_attn.q_proj", "model.embed_tokens"


def pair(rank: int = 4, rows: int = SIZES[GOOD][0], columns: int = SIZES[GOOD][1], value: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    return np.full((rank, columns), value, np.float32), np.full((rows, rank), value, np.float32)


def embedding(module: str, vocab: int, width: int) -> dict[str, np.ndarray]:
    return {f"base_model.model.{module}.lora_embedding_{role}": m for role, m in zip("AB", pair(4, width, vocab), strict=True)}


def table(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {f"base_model.model.{TABLE}.weight": np.ones(shape, np.float32)}


def load(folder: Path) -> Any:
    return bind(read_peft(str(folder)), MODEL)


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (lambda f: None, "is no folder"),
    "no config": (lambda f: f.mkdir(), "holds no adapter_config.json"),
    "no weights": (lambda f: (write_adapter(f, {GOOD: pair()}) / "adapter_model.safetensors").unlink(), "holds no adapter_model.safetensors"),
    "pickled": (
        lambda f: (write_adapter(f, {GOOD: pair()}) / "adapter_model.safetensors").rename(f / "adapter_model.bin"), "pickled, which can run code when read"
    ),
    "another kind": (lambda f: write_adapter(f, {GOOD: pair()}, peft_type="IA3"), "peft_type is 'IA3': only LORA"),
    "bias": (lambda f: write_adapter(f, {GOOD: pair()}, bias="all"), "bias is 'all'"),
    "a whole module that is missing": (
        lambda f: write_adapter(f, {GOOD: pair()}, modules_to_save=["lm_head"]), "modules_to_save names 'lm_head', but there is no weight of it"
    ),
    "a whole module that nobody named": (lambda f: write_adapter(f, {}, tensors=table(SIZES[TABLE])), "modules_to_save does not name it"),
    "a whole table of another size": (
        lambda f: write_adapter(f, {}, tensors=table((99, 64)), modules_to_save=["embed_tokens"]), r"whole with a weight of \[99, 64\], but the model's is"
    ),
    "a whole norm": (
        lambda f: write_adapter(f, {}, tensors={"base_model.model.model.norm.weight": np.ones(64, np.float32)}, modules_to_save=["norm"]),
        r"weight of shape \[64\] and 0 more: one matrix is needed",
    ),
    "a whole module with a bias": (
        lambda f: write_adapter(f, {}, tensors={"base_model.model.lm_head.bias": pair()[0]}, modules_to_save=["lm_head"]), "lm_head.bias' is no part of a LoRA"
    ),
    "changed base": (lambda f: write_adapter(f, {GOOD: pair()}, init_lora_weights="pissa_niter_4"), "init_lora_weights is 'pissa_niter_4'"),
    "aLoRA": (lambda f: write_adapter(f, {GOOD: pair()}, alora_invocation_tokens=[5]), "alora_invocation_tokens"),
    "no rank": (lambda f: write_adapter(f, {GOOD: pair()}, r=0), "r is 0: a whole number above 0"),
    "no alpha": (lambda f: write_adapter(f, {GOOD: pair()}, lora_alpha=None), "lora_alpha is None"),
    "senseless pattern": (lambda f: write_adapter(f, {GOOD: pair()}, rank_pattern={"(": 4}), "no regular expression"),
    "a pattern that is wrong behind other text": (
        lambda f: write_adapter(f, {GOOD: pair()}, rank_pattern={"(?i)q_proj": 4}), r"rank_pattern has '\(\?i\)q_proj', which is no regular expression"
    ),
    "a pattern of another kind": (lambda f: write_adapter(f, {GOOD: pair()}, alpha_pattern={"(?=q)": 4}), r"alpha_pattern has '\(\?=q\)', .*write module"),
    "too many patterns": (
        lambda f: write_adapter(f, {GOOD: pair()}, rank_pattern={f"(a|b){i}": 4 for i in range(65)}), "rank_pattern has 65 keys with groups or counts, more"
    ),
    "a pattern of too many ways": (
        lambda f: write_adapter(f, {"".join(BY_CHANCE.choices("ab", k=40_000)): pair()}, rank_pattern={"(a|b)*a(a|b){200}": 4}),
        r"rank_pattern has '\(a\|b\)\*a\(a\|b\)\{200\}', which .*: it takes more than 100000 steps; write module names as peft does",
    ),
    "a pattern that is too large": (lambda f: write_adapter(f, {GOOD: pair()}, rank_pattern={"q{99999999999999}": 4}), "rank_pattern has 'q"),
    "an endless rank": (lambda f: write_adapter(f, {GOOD: pair()}, rank_pattern={"q_proj": float("inf")}), "rank_pattern is .*finite numbers above 0"),
    "an alpha of 400 digits": (lambda f: write_adapter(f, {GOOD: pair()}, lora_alpha=10**400), r"lora_alpha is 1000*\.\.\.: a finite number is needed"),
    "an alpha of 400 digits for some": (lambda f: write_adapter(f, {GOOD: pair()}, alpha_pattern={"q_proj": 10**400}), "alpha_pattern is .*finite"),
    "an alpha that is no number": (lambda f: write_adapter(f, {GOOD: pair()}, lora_alpha=float("nan")), "lora_alpha is nan: a finite number"),
    "a rank of 400 digits": (lambda f: write_adapter(f, {GOOD: pair()}, r=10**400, use_rslora=True), "adapter_config.json says 1000"),
    "whole modules that are a number": (lambda f: write_adapter(f, {GOOD: pair()}, modules_to_save=5), "modules_to_save is 5: a list of module names"),
    "whole modules that are one text": (lambda f: write_adapter(f, {GOOD: pair()}, modules_to_save="lm_head"), "modules_to_save is 'lm_head': a list"),
    "whole modules that are numbers": (lambda f: write_adapter(f, {GOOD: pair()}, modules_to_save=[5]), r"modules_to_save is \[5\]: a list"),
    "wrong rank": (lambda f: write_adapter(f, {GOOD: pair()}, r=8), f"{GOOD}' has rank 4 in lora_A and 4 in lora_B, but adapter_config.json says 8"),
    "two ranks": (lambda f: write_adapter(f, {GOOD: (pair(4)[0], pair(3)[1])}), "rank 4 in lora_A and 3 in lora_B"),
    "one matrix": (
        lambda f: write_adapter(f, {}, tensors={f"base_model.model.{GOOD}.lora_A.weight": pair()[0]}), f"module '{GOOD}' has no lora_B.weight"
    ),
    "an embedding as a linear": (lambda f: write_adapter(f, {TABLE: pair()}), "module 'model.embed_tokens' is no linear but 'embed'"),
    "a linear as an embedding": (lambda f: write_adapter(f, {}, tensors=embedding(GOOD, 9, 9)), f"module '{GOOD}' is no embedding but 'linear'"),
    "half an embedding": (
        lambda f: write_adapter(f, {}, tensors={f"base_model.model.{TABLE}.lora_embedding_B": pair()[1]}), "has no lora_embedding_A"
    ),
    "an embedding of another vocabulary": (lambda f: write_adapter(f, {}, tensors=embedding(TABLE, 99, SIZES[TABLE][1])), "lora_A takes 99 inputs"),
    "a norm": (lambda f: write_adapter(f, {"model.norm": pair()}), "module 'model.norm' is no linear but 'norm'"),
    "unknown tensor": (lambda f: write_adapter(f, {GOOD: pair()}, tensors={"x.parameter": pair()[0]}), "tensor 'x.parameter' is no part of a LoRA"),
    "unknown module": (lambda f: write_adapter(f, {"model.layers.9.self_attn.q_proj": pair()}), "layers.9.self_attn.q_proj' is not in this model; nearest"),
    "another model's rows": (lambda f: write_adapter(f, {GOOD: pair(rows=32)}), "lora_B gives 32 outputs, but the model's has"),
    "another model's columns": (lambda f: write_adapter(f, {GOOD: pair(columns=32)}), "lora_A takes 32 inputs"),
    "not trained": (lambda f: write_adapter(f, {GOOD: (pair()[0], pair(value=0.0)[1])}), "would change nothing"),
    "no strength": (lambda f: write_adapter(f, {GOOD: pair()}, alpha=0.0), "would change nothing"),
    "nothing": (lambda f: write_adapter(f, {}), "holds no tensors"),
    "DoRA without lengths": (lambda f: write_adapter(f, {GOOD: pair()}, use_dora=True), "no lora_magnitude_vector, but use_dora is true"),
    "lengths without DoRA": (
        lambda f: write_adapter(f, {GOOD: pair()}, tensors={f"base_model.model.{GOOD}.lora_magnitude_vector": pair()[0][0]}), "but use_dora is false"
    ),
    "a larger vocabulary": (
        lambda f: write_adapter(f, {GOOD: pair()}, tensors={f"base_model.model.{GOOD}.base_layer.weight": pair(rows=99)[1]}), "vocabulary that was changed"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_refused_by_name(name: str, tmp_path: Path) -> None:
    make, words = FILES[name]
    make(tmp_path / "adapter")
    with pytest.raises(ModelError, match=words) as caught:
        load(tmp_path / "adapter")
    assert str(tmp_path) in str(caught.value)


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    file = write_adapter(tmp_path, {GOOD: pair()}) / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ModelError, match="cut off"):
        load(tmp_path)


@pytest.mark.parametrize("spelling", [GOOD, GOOD.removeprefix("model.")])
def test_names_with_and_without_the_prefix_of_models_with_a_head(spelling: str, tmp_path: Path) -> None:
    assert list(load(write_adapter(tmp_path, {spelling: pair()}))) == [GOOD]


def test_scales(tmp_path: Path) -> None:
    modules = {f"model.layers.{i}.self_attn.q_proj": pair(8 if i else 4) for i in range(2)}
    patterns = {"rank_pattern": {"layers.1.self_attn.q_proj": 8}, "alpha_pattern": {r"layers\.0\..*": 2}}
    plain = load(write_adapter(tmp_path / "plain", modules, alpha=16.0, **patterns))
    assert [part.scale for part in plain.values()] == [0.5, 2.0]
    stable = load(write_adapter(tmp_path / "rs", modules, alpha=16.0, use_rslora=True, **patterns))
    assert [part.scale for part in stable.values()] == [1.0, 16 / 8**0.5]


def test_a_digest_is_of_the_content(tmp_path: Path) -> None:
    def digest(name: str, modules: dict[str, Any], **config: Any) -> bytes:
        return read_peft(str(write_adapter(tmp_path / name, modules, **config))).digest

    first = digest("a", {GOOD: pair()})
    assert first == digest("b", {GOOD: pair()}, base_model_name_or_path="else", target_modules=["x"])
    other = pair()
    other[1][3, 2] += 1e-6
    changed = [digest("c", {GOOD: other}), digest("d", {GOOD: pair()}, alpha=5.0), digest("e", {"model.layers.1.self_attn.q_proj": pair()})]
    changed += [read_peft(str(write_adapter(tmp_path / name, {}, tensors=tensors, modules_to_save=save))).digest for name, tensors, save in (
        ("f", embedding(TABLE, *SIZES[TABLE]), []), ("g", table(SIZES[TABLE]), ["embed_tokens"]), ("h", table((3, 3)), ["embed_tokens"]),
    )]  # fmt: skip
    assert len({first, *changed}) == 7
    assert json.loads((tmp_path / "d/adapter_config.json").read_text())["lora_alpha"] == 5.0
