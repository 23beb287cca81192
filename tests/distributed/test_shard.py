"""The sharding pass: every decoder family on the torch executor in 2 ranks gives the logits of 1; what cannot be cut is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from llmx.config import ModelConfig  # noqa: E402
from llmx.errors import ProgramError  # noqa: E402
from llmx.executor import ModelBundle  # noqa: E402
from llmx.models.load import load_model  # noqa: E402
from llmx.program.passes.cuts import Share, head_share, share  # noqa: E402
from llmx.program.passes.shard import shard  # noqa: E402
from llmx.program.verify import verify  # noqa: E402
from llmx.testing import Driver, tiny_llama  # noqa: E402
from tests.distributed.ranks import communicators, in_threads, share_of  # noqa: E402
from tests.families.cases import CASES, Case  # noqa: E402
from tests.families.checkpoint import PROMPT, write_checkpoint  # noqa: E402
from tests.families.run import in_memory  # noqa: E402
from tests.torch_executor.torch_model import config_for, torch_executor  # noqa: E402

WHOLE = {"olmo 2": "normed over their full width"}  # families that cannot be cut, and the reason that they are told


def torch_ranks(bundle: ModelBundle, size: int) -> list[np.ndarray]:
    """Logits of the prompt, in two chunks, of every rank."""
    ends = communicators(size)

    def rank(number: int) -> np.ndarray:
        one = share_of(bundle, number, size) if size > 1 else bundle
        executor = torch_executor(one, config_for(64, 2), blocks=40, communicator=ends[number] if size > 1 else None)
        driver = Driver(executor, room=0)
        driver.join({0: PROMPT})
        driver.step({0: PROMPT[:30]}, sample=[])
        rows: np.ndarray = driver.last_rows({0: PROMPT[30:]})
        executor.close()
        return rows

    return in_threads(rank, ends)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    found: dict[str, ModelBundle] = {}

    def load(case: Case) -> ModelBundle:
        if case.name not in found:
            folder: Path = tmp_path_factory.mktemp("model")
            write_checkpoint(case, folder)
            found[case.name] = in_memory(load_model(ModelConfig(source=str(folder))).bundle)
        return found[case.name]

    return load


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_family_in_two_ranks(case: Case, loaded: Any) -> None:
    bundle = loaded(case)
    if case.name in WHOLE:
        with pytest.raises(ProgramError, match=WHOLE[case.name]):
            shard(bundle.model, 0, 2)
        return
    (alone,) = torch_ranks(bundle, 1)
    first, second = torch_ranks(bundle, 2)
    assert np.array_equal(first, second)
    assert np.abs(first - alone).max() <= 2e-5 * np.abs(alone).max()


@pytest.mark.parametrize("size", [2, 3])
def test_every_element_has_one_owner(size: int) -> None:
    """Rows and columns of all ranks together are the matrix, none twice; what is not cut is there whole."""
    bundle = tiny_llama(num_attention_heads=6, num_key_value_heads=3, head_dim=16)
    models = [shard(bundle.model, rank, size) for rank in range(size)]
    for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj"):
        cuts = [bundle.weights.get(ref).data for model in models for (tensor, _), ref in model.weights().items() if f"0.{name}" in tensor]
        whole = next(bundle.weights.get(ref).data for (tensor, _), ref in bundle.model.weights().items() if f"0.{name}" in tensor)
        assert len(cuts) == size and np.array_equal(np.concatenate(cuts), whole)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        cuts = [bundle.weights.get(ref).data for model in models for (tensor, _), ref in model.weights().items() if f"0.{name}" in tensor]
        whole = next(bundle.weights.get(ref).data for (tensor, _), ref in bundle.model.weights().items() if f"0.{name}" in tensor)
        assert np.array_equal(np.concatenate(cuts, axis=1), whole)


def test_one_rank_is_the_model_itself() -> None:
    model = tiny_llama().model
    assert shard(model, 0, 1) is model


def test_kv_heads_with_several_owners() -> None:
    """4 ranks, 2 key-value heads: each is on two ranks, with half of its queries."""
    assert [head_share(8, 2, 1, rank, 4, "x").kv for rank in range(4)] == [Share(0, 1), Share(0, 1), Share(1, 2), Share(1, 2)]
    assert [head_share(8, 2, 1, rank, 4, "x").q for rank in range(4)] == [Share(0, 2), Share(2, 4), Share(4, 6), Share(6, 8)]
    models = [shard(tiny_llama(num_attention_heads=8, num_key_value_heads=2).model, rank, 4) for rank in range(4)]
    for model in models:
        verify(model)


def test_shares_are_whole_units() -> None:
    assert [share(96, 32, rank, 2, "x") for rank in range(2)] == [Share(0, 32), Share(32, 96)]
    with pytest.raises(ProgramError, match=r"x \(96 in blocks of 32\) cannot be shared by 4 ranks"):
        share(96, 32, 0, 4, "x")


@pytest.mark.parametrize(
    ("scheme", "changes", "why"),
    [
        ("f32", {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16}, r"3 query and 1 key-value heads \(1\) cannot be shared by 2 ranks"),
        ("q8_0", {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32}, "1 query and 1 key-value heads"),
        ("q8_0", {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "hidden_size": 32}, r"heads \(2 in blocks of 2\)"),
        ("q4_K", {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 256}, "mlp.gate_proj"),
    ],
)
def test_what_cannot_be_shared_is_named(scheme: str, changes: dict[str, Any], why: str) -> None:
    from llmx.models.builtin import builtin_models
    from llmx.models.registry import TensorLayout
    from llmx.testing import TINY
    from llmx.weights.quant import quant_key

    config = {**TINY, **changes}
    model = builtin_models().find(config).build(config, lambda name: quant_key("f32" if "norm" in name else scheme), TensorLayout())
    with pytest.raises(ProgramError, match=why):
        shard(model, 0, 2)
