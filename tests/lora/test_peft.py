"""Adapters that peft makes, loaded from the files that it writes: logits equal peft's, merged and unmerged, on every executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("peft")

import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

from llmx.config import ModelConfig  # noqa: E402
from llmx.executor import LoraPart, ModelBundle  # noqa: E402
from llmx.lora.bind import bind  # noqa: E402
from llmx.lora.peft import read_peft  # noqa: E402
from llmx.models.load import load_model  # noqa: E402
from tests.families.cases import CASES  # noqa: E402
from tests.families.checkpoint import PROMPT, write_checkpoint  # noqa: E402
from tests.families.run import EXECUTORS, in_memory, logits_of  # noqa: E402

pytestmark = [  # what peft says of itself
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:Model .*with `tie_word_embeddings=True`:UserWarning"),
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False.*:UserWarning"),
]
FAMILIES = ("llama 1, 2", "phi-3", "gpt-2", "qwen2.5", "gemma3")  # one tensor for qkv; matrices stored turned over; biases; norms on both sides
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rsLoRA, patterns": {"use_rslora": True, "rank_pattern": {r".*layers\.1\..*": 6}, "alpha_pattern": {"o_proj": 16}},
    "DoRA": {"use_dora": True},
}


@dataclass
class Trained:
    """A tiny model, an adapter of it, and what peft makes of the two: logits of the adapter beside the weights, and merged into them."""

    bundle: ModelBundle
    parts: dict[str, LoraPart]
    unmerged: np.ndarray
    merged: np.ndarray


def _case(name: str) -> Any:
    found = [case for case in CASES if case.name.replace(" ", "").lower().startswith(name.replace(" ", ""))]
    assert found, [case.name for case in CASES]
    return found[0]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp("model")
            write_checkpoint(_case(family), made[family])
        return made[family]

    return get


def train(folder: Path, to: Path, **options: Any) -> Trained:
    """An adapter with random matrices; peft's own zeros would change nothing."""
    torch.manual_seed(3)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=8, **{"target_modules": "all-linear", **options})).eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            if "lora_B" in name or "lora_embedding_A" in name:  # peft begins with zeros in these
                values.normal_(0.0, 0.3)
            if "modules_to_save" in name:
                values.add_(torch.empty_like(values).normal_(0.0, 0.3 * float(values.std())))
            if "magnitude" in name:
                values.mul_(torch.empty_like(values).uniform_(0.7, 1.4))
        prompt = torch.tensor([PROMPT])
        unmerged = model(prompt, use_cache=False).logits[0].numpy()
        model.save_pretrained(to)
        merged = unmerged  # where head and embedding are one matrix, peft's merge puts the adapter of one into both
        if not (base.config.tie_word_embeddings and "embed_tokens" in str(options)):
            merged = model.merge_and_unload()(prompt, use_cache=False).logits[0].numpy()
    bundle = in_memory(load_model(ModelConfig(str(folder), dtype="float32", max_model_len=len(PROMPT))).bundle)
    return Trained(bundle, bind(read_peft(str(to)), bundle.model), unmerged, merged)


def check(trained: Trained, executor: str) -> None:
    got = logits_of(trained.bundle, PROMPT, executor, adapter=trained.parts)
    spread = trained.unmerged.std()
    for want in (trained.unmerged, trained.merged):
        assert np.abs(got - want).max() / spread < 1e-3
    assert np.abs(logits_of(trained.bundle, PROMPT, executor) - trained.unmerged).max() / spread > 0.1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("executor", ["", "torch"])
def test_every_linear_equals_peft(family: str, executor: str, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    check(train(checkpoint(family), tmp_path), executor)


@pytest.mark.parametrize("options", [name for name in OPTIONS if name != "plain"])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_options_equal_peft(options: str, executor: str, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    check(train(checkpoint("llama 1, 2"), tmp_path, **OPTIONS[options]), executor)


@pytest.mark.parametrize("executor", ["", "torch"])
def test_dora_beside_biases_and_in_one_tensor_for_qkv(executor: str, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    check(train(checkpoint("gpt-2"), tmp_path, **OPTIONS["DoRA"]), executor)


WHOLE: dict[str, dict[str, Any]] = {
    "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "embedding and head": {"target_modules": ["embed_tokens", "lm_head"]},
    "embedding, DoRA": {"target_modules": ["embed_tokens", "lm_head", "o_proj"], "use_dora": True},
    "whole embedding and head": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    "whole projections": {"target_modules": ["v_proj", "up_proj"], "modules_to_save": ["q_proj", "gate_proj", "down_proj"]},
    "whole embedding, head as a LoRA": {"target_modules": ["lm_head"], "modules_to_save": ["embed_tokens"]},
    "tied": {"target_modules": ["embed_tokens", "v_proj"], "ensure_weight_tying": True},
}
FAMILIES_WHOLE = [("llama 1, 2", name) for name in WHOLE if name != "tied"]
FAMILIES_WHOLE += [(family, name) for family in ("qwen2.5", "gemma3") for name in ("embedding", "tied")]


@pytest.mark.parametrize(("family", "options"), FAMILIES_WHOLE)
@pytest.mark.parametrize("executor", ["", "torch"])
def test_embeddings_and_whole_modules_equal_peft(
    family: str, options: str, executor: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    check(train(checkpoint(family), tmp_path, **WHOLE[options]), executor)


@pytest.mark.parametrize("executor", ["", "torch"])
def test_the_head(executor: str, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    check(train(checkpoint("llama 1, 2"), tmp_path, target_modules=["lm_head", "q_proj"]), executor)
