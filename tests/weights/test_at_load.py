"""--quantization int8 | int4: matrices are quantised while they are read; the rest of a model stays as it is stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from llmx.config import ModelConfig
from llmx.errors import ConfigError
from llmx.models.load import LoadedModel, load_model
from llmx.weights.host_tensor import HostTensor
from llmx.weights.quant import dequantize, quantize
from llmx.weights.quant.fitted import fit_q4_1, fit_q8_0

WriteFile = Callable[..., Path]
HEAD = "model.embed_tokens.weight"


def load(source: Path, quantization: str | None = None) -> LoadedModel:
    return load_model(ModelConfig(str(source), quantization=quantization))


def values_of(loaded: LoadedModel) -> dict[str, np.ndarray]:
    weights = loaded.bundle.weights
    return {ref.name: dequantize(weights.get(ref)) for ref in loaded.bundle.model.weights().values()}


@pytest.mark.parametrize(("scheme", "stored"), [("int8", {"q8_0"}), ("int4", {"q8_0", "q4_1"})])
def test_matrices_come_quantised_and_vectors_as_they_are(write_hf: WriteFile, scheme: str, stored: set[str]) -> None:
    plain, made = load(path := write_hf(dtype="float32")), load(path, scheme)
    refs = {ref.name: ref for ref in made.bundle.model.weights().values()}
    assert {str(ref.quant) for ref in refs.values() if len(ref.shape) == 2} == stored
    assert {str(ref.quant) for ref in refs.values() if len(ref.shape) == 1} == {"f32"}
    assert str(refs[HEAD].quant) == "q8_0" and made.warnings == ()
    want, got = values_of(plain), values_of(made)
    for name, values in want.items():
        step = {"f32": 0.0, "q8_0": 1 / 127, "q4_1": 2 / 15}[str(refs[name].quant)]  # of the largest value of a block
        np.testing.assert_allclose(got[name], values, rtol=0, atol=step * np.abs(values).max())
        assert (got[name] != values).any() == (step > 0)


def test_pages_of_another_quantisation_never_match(write_hf: WriteFile) -> None:
    path = write_hf(dtype="float32")
    assert len({load(path, scheme).bundle.digest for scheme in (None, "int8", "int4")}) == 3


def test_rows_of_rotary_pairs_are_moved_before_they_are_quantised(write_gguf: WriteFile, write_hf: WriteFile, tiny_tensors: dict) -> None:
    """A GGUF file of f32 keeps q and k in another order of rows; blocks lie in rows, so both give the same codes."""
    heads = {"attn_q": 4, "attn_k": 2}

    def stored(name: str, values: np.ndarray) -> np.ndarray:
        count = next((n for part, n in heads.items() if f".{part}." in name), None)
        return values if count is None else values.reshape(count, 2, -1, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)

    gguf = write_gguf(tensors={name: (stored(name, values), "f32") for name, (values, _) in tiny_tensors.items()})
    left, right = values_of(load(gguf, "int4")), values_of(load(write_hf(dtype="float32"), "int4"))
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def test_what_is_quantised_already_is_refused(write_gguf: WriteFile) -> None:
    with pytest.raises(ConfigError, match=r"int4, but .* is quantised already \(q4_1, q8_0\).*leave it out"):
        load(write_gguf(), "int4")


@pytest.mark.parametrize("spread", ["normal", "outliers", "offset", "flat", "zero", "tiny"])
def test_fitted_scales_are_no_worse_than_the_format_s_own(spread: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 32)).astype(np.float32)
    x = {"normal": x, "outliers": x**3, "offset": x + 100, "flat": np.full_like(x, 0.3), "zero": np.zeros_like(x), "tiny": x * np.float32(1e-6)}[spread]
    for dtype, encode in (("q8_0", fit_q8_0), ("q4_1", fit_q4_1)):
        plain, fitted = dequantize(quantize(x, dtype)), dequantize(HostTensor(dtype, x.shape, encode(x)))
        ours, own = ((x.astype(np.float64) - values) ** 2 for values in (fitted, plain))
        assert ours.sum() <= own.sum() * 1.0001 + 1e-20
        if (dtype, spread) == ("q4_1", "normal"):
            assert ours.sum() < 0.9 * own.sum()
