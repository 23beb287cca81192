"""Layers that are alike become one loop; what differs, or is read from elsewhere, does not."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jax")

from llmx.program.attrs import OutputAttrs  # noqa: E402
from llmx.program.ops import Model, Op  # noqa: E402
from llmx.testing import bundle_of, tiny_llama  # noqa: E402
from tests.tpu.jax_model import config_for, jax_executor  # noqa: E402

WINDOWS: dict[str, Any] = {
    "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "head_dim": 16, "sliding_window": 20, "query_pre_attn_scalar": 24,
    "rope_local_base_freq": 100.0, "num_hidden_layers": 6, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
}  # fmt: skip


def blocks_of(model: Model) -> list[tuple[int, int]]:
    """(blocks, ops of a block) of each run of a model's body."""
    executor = jax_executor(bundle_of(model, max_model_len=64), config_for(16, 2), 20)
    runs = executor._device.traced._runs
    executor.close()
    return [(len(run.blocks), len(run.blocks[0])) for run in runs]


def repeated(model: Model) -> list[int]:
    return [count for count, _ in blocks_of(model) if count > 1]


def test_equal_layers_are_one_loop() -> None:
    assert repeated(tiny_llama("f32", num_hidden_layers=5).model) == [5]


def test_a_pattern_of_layers_is_one_block() -> None:
    model = tiny_llama("f32", **WINDOWS).model
    found = blocks_of(model)
    whole = [size for count, size in found if count == 2]
    per_layer = sum(op.region.index == 0 and op.region.block == "layer" for op in model.programs["main"].ops)
    assert whole == [3 * per_layer], found


def test_a_result_of_a_layer_in_the_middle_ends_a_run() -> None:
    """What the loop passes over cannot be read from outside."""
    model = tiny_llama("f32", num_hidden_layers=5).model
    main = model.programs["main"]
    last = [op for op in main.ops if op.region.block == "layer" and op.region.index == 2][-1]
    shown = Op("output", (last.outs[0],), (), OutputAttrs("hidden.2"), region=last.region)
    at = main.ops.index(last) + 1
    ops = (*main.ops[:at], shown, *main.ops[at:])
    program = type(main)(main.name, main.inputs, ops)
    assert repeated(Model({"main": program}, model.states)) == [2, 2]
