"""GPTQ and AWQ: what stored groups mean, what they become, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.grouped_checkpoints import write_grouped

from llmx.config import ModelConfig
from llmx.errors import ConfigError, ModelError
from llmx.models.load import load_model
from llmx.weights.host_tensor import BLOCK_BYTES, HostTensor
from llmx.weights.quant import dequantize, quant_key, quantize
from llmx.weights.quant.groups import AS_BLOCKS, GROUP_KEYS, as_blocks, parts_of, stored

V1: dict[str, Any] = {"sym": False}
V2: dict[str, Any] = {"sym": False, "plus_one": False}
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "gptq, symmetric": ("gptq", {}, "int4_g32"),
    "gptq, zero points less one": ("gptq", V1, "int4z_g32"),
    "gptq_v2, zero points as they are": ("gptq", V2, "int4z_g32"),
    "gptq, groups of 64": ("gptq", {"group": 64}, "int4_g64"),
    "gptq, one group per row": ("gptq", {"group": -1, "sym": False}, "int4z_g128 int4z_g64"),
    "gptq, act-order": ("gptq", {"act_order": True, "sym": False}, "f16"),
    "gptq, 8 bits": ("gptq", {"bits": 8}, "int8_g32"),
    "gptq, 8 bits, zero points": ("gptq", {"bits": 8, "sym": False}, "f16"),
    "awq": ("awq", {"sym": False}, "int4z_g32"),
    "awq, groups of 64": ("awq", {"sym": False, "group": 64}, "int4z_g64"),
    "awq, all zero points 8": ("awq", {}, "int4_g32"),
}


@pytest.mark.parametrize("case", CASES)
def test_weights_mean_what_the_layout_says(tmp_path: Path, case: str) -> None:
    method, how, expected = CASES[case]
    dense = write_grouped(tmp_path, method, **how)
    loaded = load_model(ModelConfig(str(tmp_path)))
    bundle = loaded.bundle
    found = set()
    for ref in bundle.model.weights().values():
        tensor = bundle.weights.get(ref)
        if ref.name.endswith("_proj.weight"):
            found.add(tensor.dtype)
        want = dense[ref.name].astype(np.float16).astype(np.float32) if tensor.dtype == "f16" else dense[ref.name]
        np.testing.assert_array_equal(dequantize(tensor), want, err_msg=ref.name)
    assert found == set(expected.split())
    assert [text for text in loaded.warnings if "float16" in text] == list(loaded.warnings)
    assert bool(loaded.warnings) == (expected == "f16") and ("act-order" in "".join(loaded.warnings)) == how.get("act_order", False)


@pytest.mark.parametrize("dtype", GROUP_KEYS)
def test_groups_are_the_same_values_in_blocks(dtype: str) -> None:
    rng, group = np.random.default_rng(1), BLOCK_BYTES[dtype][0]
    codes = rng.integers(-128, 128, (5, 2 * group)) if dtype.startswith("int8") else rng.integers(0, 16, (5, 2 * group))
    scales, zeros = rng.normal(0, 0.1, (5, 2)).astype(np.float16), rng.integers(0, 17, (5, 2))
    tensor = HostTensor(dtype, (5, 2 * group), stored(dtype, codes, scales, zeros))
    back = parts_of(dtype, tensor.data)
    np.testing.assert_array_equal(back[0], codes)
    np.testing.assert_array_equal(back[1], scales.astype(np.float32))
    block = as_blocks(tensor)
    assert block.dtype == AS_BLOCKS[dtype] and block.data.shape[1] == 2 * group // 32 * BLOCK_BYTES[block.dtype][1]
    zero = zeros if dtype.startswith("int4z") else np.full((5, 2), 0 if dtype.startswith("int8") else 8)
    want = (np.repeat(scales.astype(np.float64), group, 1) * (codes - np.repeat(zero, group, 1))).astype(np.float32)
    np.testing.assert_array_equal(dequantize(tensor), want)
    np.testing.assert_array_equal(dequantize(block), want)
    bits = {"f16": 16, "u16": 16, "u4": 4, "i8": 8}
    assert sum(bits[kind] * (group if role == "q" else 1) for role, kind, _ in quant_key(dtype).tensors) == BLOCK_BYTES[dtype][1] * 8


@pytest.mark.parametrize("dtype", GROUP_KEYS)
def test_values_are_quantised_to_the_nearest_code(dtype: str) -> None:
    x = np.random.default_rng(0).standard_normal((3, 256)).astype(np.float32)
    x[0, :128] = 0
    error = np.abs(dequantize(quantize(x, dtype)) - x).max()
    assert error < {"int4_": 0.5 * 4 / 7, "int4z": 0.5 * 8 / 15, "int8_": 0.5 * 4 / 127}[dtype[:5]] * 1.1
    with pytest.raises(ModelError, match=f"must be a multiple of {BLOCK_BYTES[dtype][0]}"):
        quantize(x[:, :33], dtype)


def test_a_tensor_that_is_not_in_groups_stays_as_it_is() -> None:
    tensor = quantize(np.ones((2, 32), np.float32), "q4_1")
    assert as_blocks(tensor) is tensor


REFUSED = (
    ({"quant_method": "bitsandbytes"}, r"quantization_config.quant_method is 'bitsandbytes', but only gptq or awq can be read: take"),
    ({"bits": 3}, r"quantization_config.bits is '3', but only 4 or 8 with gptq"),
    ({"bits": True}, r"bits is 'True'"),
    ({"group_size": 48}, r"group_size is '48', but only -1 or a multiple of 32"),
    ({"group_size": 0}, r"group_size is '0'"),
    ({"group_size": None}, r"group_size is 'None'"),
    ({"group_size": 64}, r"layers.0.mlp.down_proj.scales' is \[6, 128\]: qweight \[24, 128\] with 4 bits and group_size 64 asks for \[3, 128\]"),
    ({"group_size": 96}, r"self_attn.k_proj.qweight has 128 inputs: a multiple of 32 and of group_size 96 is needed|down_proj.scales"),
    ({"bits": 8}, r"down_proj.* is \[.*8 bits and group_size 32 asks for"),
    ({"checkpoint_format": "marlin"}, r"checkpoint_format is 'marlin', but only gptq or gptq_v2"),
    ({"is_marlin_format": True}, r"is_marlin_format is 'True'"),
    ({"dynamic": {"-:.*down.*": {}}}, r"dynamic is .* one setting for all matrices"),
    ({"pack_dtype": "int16"}, r"pack_dtype is 'int16', but only int32"),
)


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[next(iter(changes)) + str(i) for i, (changes, _) in enumerate(REFUSED)])
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_grouped(tmp_path, "gptq", changes)
    with pytest.raises(ModelError, match=message) as error:
        load_model(ModelConfig(str(tmp_path)))
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("field", "value", "limit"), [("version", "gemv", "gemm"), ("zero_point", False, "true"), ("backend", "llm-awq", "autoawq"), ("bits", 8, "4 with awq")]
)
def test_what_cannot_be_read_of_awq(tmp_path: Path, field: str, value: object, limit: str) -> None:
    write_grouped(tmp_path, "awq", {field: value})
    with pytest.raises(ModelError, match=f"quantization_config.{field} is '{value}', but only {limit} can be read"):
        load_model(ModelConfig(str(tmp_path)))


def test_older_names_of_awq_settings(tmp_path: Path) -> None:
    write_grouped(tmp_path, "awq")
    config = json.loads((tmp_path / "config.json").read_text())
    table = config["quantization_config"]
    config["quantization_config"] = {**{k: v for k, v in table.items() if k not in ("bits", "group_size")}, "w_bit": 4, "q_group_size": 32, "version": "GEMM"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_model(ModelConfig(str(tmp_path))).warnings == ()


_NAME = "model.layers.0.mlp.down_proj"
DAMAGE = (
    ({f"{_NAME}.qzeros": np.zeros((6, 16), np.float32)}, r"down_proj.qzeros' is f32 \[6, 16\]: i32 with two axes"),
    ({f"{_NAME}.scales": np.full((6, 128), np.nan, np.float16)}, r"down_proj.scales' holds values that are no finite float16"),
    ({f"{_NAME}.scales": np.full((6, 128), 0.1, np.float32)}, r"down_proj.scales' holds values that are no finite float16"),
    ({f"{_NAME}.g_idx": np.full(192, 6, np.int32)}, r"down_proj.g_idx' is i32 \[192\]: 192 i32 from 0 to 5 are needed"),
    ({f"{_NAME}.g_idx": np.zeros(100, np.int32)}, r"down_proj.g_idx' is i32 \[100\]"),
)


@pytest.mark.parametrize(("extra", "message"), DAMAGE, ids=[str(i) for i in range(len(DAMAGE))])
def test_damaged_tensors_are_refused_by_name(tmp_path: Path, extra: dict[str, np.ndarray], message: str) -> None:
    write_grouped(tmp_path, "gptq", extra=extra)
    with pytest.raises(ModelError, match=message):
        bundle = load_model(ModelConfig(str(tmp_path))).bundle
        for ref in bundle.model.weights().values():
            bundle.weights.get(ref)


def test_biases_of_zeros_have_no_place_and_no_effect(tmp_path: Path) -> None:
    write_grouped(tmp_path, "gptq", extra={f"{_NAME}.bias": np.zeros(128, np.float16)})
    load_model(ModelConfig(str(tmp_path)))
    write_grouped(tmp_path, "gptq", extra={f"{_NAME}.bias": np.ones(128, np.float16)})
    with pytest.raises(ModelError, match=r"1 tensors have no place.*down_proj.bias"):
        load_model(ModelConfig(str(tmp_path)))


def test_packed_tensors_without_their_settings(tmp_path: Path) -> None:
    write_grouped(tmp_path, "gptq")
    config = json.loads((tmp_path / "config.json").read_text())
    table = config.pop("quantization_config")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"config.json has no quantization_config: copy the content of quantize_config.json"):
        load_model(ModelConfig(str(tmp_path)))
    assert table["quant_method"] == "gptq"


def test_the_option_names_the_method(tmp_path: Path) -> None:
    write_grouped(tmp_path, "gptq")
    assert load_model(ModelConfig(str(tmp_path), quantization="gptq")).warnings == ()
    with pytest.raises(ConfigError, match="has gptq: leave it out"):
        load_model(ModelConfig(str(tmp_path), quantization="awq"))
    with pytest.raises(ConfigError, match=r"is quantised already \(int4_g32\)"):
        load_model(ModelConfig(str(tmp_path), quantization="int4"))


def test_pages_of_another_zero_point_convention_never_match(tmp_path: Path) -> None:
    digests = set()
    for form in ("gptq", "gptq_v2"):
        write_grouped(tmp_path / form, "gptq", {"checkpoint_format": form}, sym=False)
        digests.add(load_model(ModelConfig(str(tmp_path / form))).bundle.digest)
    assert len(digests) == 2
