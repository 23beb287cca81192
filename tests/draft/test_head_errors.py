"""Checkpoints of drafters that do not fit, other spellings of their names, and drafters by their class."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from llmx import SamplingParams
from llmx.errors import ConfigError, ModelError
from tests.draft.cases import make_built
from tests.draft.engines import PROMPTS, open_llm
from tests.draft.head_files import write_medusa, write_speculator
from tests.draft.oracle import save_head, write_eagle
from tests.draft.oracle3 import write_random_eagle3

LAYERS = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
GREEDY = SamplingParams(temperature=0.0, max_tokens=41, ignore_eos=True)


def _changed(head: Path, folder: Path, config: dict[str, Any], **tensors: Any) -> Path:
    shutil.copytree(head, folder)
    (folder / "config.json").write_text(json.dumps({**json.loads((folder / "config.json").read_text()), **config}))
    weights = {**load_file(folder / "model.safetensors"), **tensors}
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("method", "error", "word", "config", "tensors"),
    [
        ("eagle", ConfigError, "hidden_size 32 and vocab_size 384", {"hidden_size": 32}, {}),
        ("eagle", ModelError, "tensor 'fc.weight' is missing", {}, {"fc.weight": None}),
        ("eagle", ModelError, r"'fc.weight' is \[64, 64\]", {}, {"fc.weight": torch.zeros(64, 64)}),
        ("eagle", ModelError, "1 tensors have no place in such a drafter: d2t", {}, {"d2t": torch.zeros(3)}),
        ("eagle", ModelError, "num_attention_heads", {"num_attention_heads": 0}, {}),
        ("eagle3", ConfigError, "hidden_size 32 and vocab_size 384", {"hidden_size": 32}, {}),
        ("eagle3", ModelError, "num_hidden_layers is 2", {"num_hidden_layers": 2}, {}),
        ("eagle3", ModelError, "draft_vocab_size is 0.5", {"draft_vocab_size": 0.5}, {}),
        ("eagle3", ModelError, "'d2t', which says of which, is missing", {}, {"d2t": None}),
        ("eagle3", ModelError, r"d2t has shape \[0\]: it must have 200 entries", {}, {"d2t": torch.zeros(0).long()}),
        ("eagle3", ModelError, r"d2t has shape \[\]: it must have 200 entries", {}, {"d2t": torch.tensor(3)}),
        ("eagle3", ConfigError, "enters layer 2 of", {"eagle_aux_hidden_state_layer_ids": None, "eagle_config": LAYERS}, {}),
        ("eagle3", ModelError, "d2t has 200 entries from 0 to 598", {}, {"d2t": torch.cat([torch.zeros(199), torch.tensor([399])]).long()}),
        ("eagle3", ModelError, "'d2t' is stored as f32", {}, {"d2t": torch.zeros(200)}),
        ("eagle3", ModelError, r"layer_ids is \[1\]", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1]}}, {}),
        ("eagle3", ConfigError, "enters layer 2 of .* has 2 layers", {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}, {}),
        ("mlp_speculator", ConfigError, "emb_dim 32 and vocab_size 384", {"emb_dim": 32}, {}),
        ("mlp_speculator", ModelError, "n_predict is 17", {"n_predict": 17}, {}),
        ("mlp_speculator", ModelError, "tie_weights is 1", {"tie_weights": 1}, {}),
        ("mlp_speculator", ModelError, "'emb.4.weight' is missing", {"n_predict": 5}, {}),
        ("mlp_speculator", ConfigError, "num_speculative_tokens is 4, but .* has 3 heads: give 1 to 3", {"n_predict": 3}, {}),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_does_not_fit_is_named(tiny: Path, tmp_path: Path, method: str, error: type, word: str, config: dict[str, Any], tensors: dict[str, Any]) -> None:
    if method == "eagle":
        head = write_eagle(tiny, tmp_path / "head", "all")
    else:
        head = write_random_eagle3(tiny, tmp_path / "head") if method == "eagle3" else write_speculator(tmp_path / "head", tied=False)
    with pytest.raises(error, match=word):
        open_llm(tiny, "cpu", {"method": method, "model": str(_changed(head, tmp_path / "changed", config, **tensors))})


def test_other_things_that_are_wrong_are_named(tiny: Path, tmp_path: Path) -> None:
    medusa = {"method": "medusa", "model": str(write_medusa(tmp_path / "medusa", "vllm", 2))}
    with pytest.raises(ConfigError, match="num_speculative_tokens is 4, but .* has 2 heads: give 1 to 2"):
        open_llm(tiny, "cpu", medusa)
    empty = save_head(tmp_path / "empty", {}, {"x": torch.zeros(2)})
    with pytest.raises(ModelError, match="no head is there"):
        open_llm(tiny, "cpu", {"method": "medusa", "model": str(empty)})
    with pytest.raises(ConfigError, match="was not trained for parallel drafting"):
        open_llm(tiny, "cpu", {"method": "pard", "model": str(tiny)})
    with pytest.raises(ConfigError, match="model is missing: name the folder of the EAGLE checkpoint"):
        open_llm(tiny, "cpu", {"method": "eagle"})
    with pytest.raises(ConfigError, match="quantization is no setting of 'eagle'"):
        open_llm(tiny, "cpu", {"method": "eagle", "model": str(empty), "quantization": "int8"})


def test_names_with_model_before_them(moody: Path, tmp_path: Path) -> None:
    head = Path(make_built("eagle-all", moody, tmp_path)["model"])
    weights = load_file(head / "model.safetensors")
    shared = load_file(moody / "model.safetensors")["model.embed_tokens.weight"]  # the model's own once more
    save_file({f"model.{name}": tensor for name, tensor in {**weights, "embed_tokens.weight": shared}.items()}, head / "model.safetensors")
    _check_right(moody, "eagle", head)


def test_eagle3_under_the_names_of_other_tools(moody: Path, tmp_path: Path) -> None:
    """The layer as layers.0, the layers that are read beside the other keys, and a head of all ids without a table."""
    head = Path(make_built("eagle3-all", moody, tmp_path)["model"])
    config = json.loads((head / "config.json").read_text())
    taken = config.pop("eagle_config")["eagle_aux_hidden_state_layer_ids"]
    (head / "config.json").write_text(json.dumps({**config, "eagle_aux_hidden_state_layer_ids": taken, "draft_vocab_size": None}))
    weights = {name.replace("midlayer", "layers.0"): tensor for name, tensor in load_file(head / "model.safetensors").items() if name != "d2t"}
    weights["lm_head.weight"] = load_file(moody / "model.safetensors")["lm_head.weight"]
    save_file(weights, head / "model.safetensors")
    _check_right(moody, "eagle3", head)


def _check_right(target: Path, method: str, head: Path) -> None:
    with open_llm(target, "cpu", {"method": method, "model": str(head)}) as llm:
        llm.generate(PROMPTS[:2], GREEDY, use_tqdm=False)
        stats = llm._engine.stats()
    assert stats.accepted_per_position[0] == stats.drafts > 10


class Repeats:
    """A drafter for the method custom_class: the last token again."""

    def __init__(self, settings: dict[str, Any]) -> None:
        assert settings == {}

    def begin(self, tokens: list[int], *, private: bool) -> Repeats:
        made = Repeats({})
        made.tokens = tokens  # type: ignore[attr-defined]
        return made

    def propose(self, limit: int) -> tuple[list[int], int] | None:
        return [self.tokens[-1]] * limit, 1  # type: ignore[attr-defined]

    def close(self) -> None:
        pass


def test_a_class_by_its_path(fixed: Path) -> None:
    with open_llm(fixed, "cpu", {"method": "custom_class", "model": f"{__name__}:Repeats"}) as llm:
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        stats = llm._engine.stats()
    assert stats.accepted_tokens > 100
    for path, word in (("nowhere:Class", "cannot be used: No module named 'nowhere'"), ("json", "must be the path"), ("json:dumps", "cannot|no drafter")):
        with pytest.raises(ConfigError, match=word):
            open_llm(fixed, "cpu", {"method": "custom_class", "model": path})
