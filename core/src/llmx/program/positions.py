"""Tables of what depends on a position alone: rotary embedding, position scales, alibi. Computed in float64, given as float32.

The scalings follow Hugging Face transformers (modeling_rope_utils.py). dynamic and longrope depend on the length of the
sequence: the engine's max_model_len stands for it, so that a row never depends on its neighbours.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from llmx.program.attrs import RopeSpec

__all__ = ["alibi_slopes", "inverse_frequencies", "position_scales", "rope_table", "section_rows"]


def rope_table(spec: RopeSpec, positions: int) -> np.ndarray:
    """f32 [positions, rotary_dim]: cosines of the half, then sines, times the scaling's attention factor."""
    inverse, factor = inverse_frequencies(spec, positions)
    angles = np.arange(positions, dtype=np.float64)[:, None] * inverse[None, :]
    return np.ascontiguousarray(np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * factor, dtype=np.float32)


def position_scales(scale: float, floor: float, positions: int) -> np.ndarray:
    """f32 [positions]: 1 + scale * log(1 + floor((position + 1) / floor))."""
    steps = np.floor((np.arange(positions, dtype=np.float64) + 1.0) / floor)
    return (1.0 + scale * np.log1p(steps)).astype(np.float32)


def alibi_slopes(heads: int) -> np.ndarray:
    """f32 [heads]: the geometric slopes of ALiBi; heads that are no power of two take every other slope of the next one."""
    power = 1 << (heads.bit_length() - 1)
    first = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    rest = [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * (heads - power), 2)]
    return np.array(first + rest, dtype=np.float32)


def section_rows(spec: RopeSpec) -> np.ndarray:
    """i64 [rotary_dim / 2]: which row of positions [sections, T] turns each frequency of a spec with mrope_sections."""
    sections = np.array(spec.mrope_sections)
    if not spec.mrope_interleaved:
        return np.repeat(np.arange(len(sections)), sections)
    index = np.arange(sections.sum())
    row = index % len(sections)  # dealt in turn until a section has its share; what is left over is the first one's
    return np.where(index < len(sections) * sections[row], row, 0)


def inverse_frequencies(spec: RopeSpec, length: int) -> tuple[np.ndarray, float]:
    """f64 [rotary_dim / 2] and the factor of cosines and sines. length: tokens of the longest sequence."""
    params: dict[str, Any] = dict(spec.params)
    if spec.axial:
        return np.concatenate([np.float64(spec.theta) ** -(np.arange(n, dtype=np.float64) / n) for n in spec.mrope_sections]), 1.0
    exponents = np.arange(0, spec.rotary_dim, 2, dtype=np.float64) / spec.rotary_dim
    if spec.scaling == "dynamic":
        trained = params["original_max_position_embeddings"]
        stretch = params["factor"] * max(length, trained) / trained - (params["factor"] - 1.0)
        theta = spec.theta * stretch ** (spec.rotary_dim / (spec.rotary_dim - 2))
        return theta**-exponents, 1.0
    plain = np.float64(spec.theta) ** -exponents
    if spec.scaling == "linear":
        return plain / params["factor"], 1.0
    if spec.scaling == "llama3":
        return _llama3(plain, params), 1.0
    if spec.scaling == "yarn":
        return _yarn(plain, spec, params)
    if spec.scaling == "longrope":
        return _longrope(plain, params, length)
    return plain, 1.0


def _llama3(plain: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    """Long wavelengths divided by factor, short ones kept, a ramp between."""
    trained, low, high = params["original_max_position_embeddings"], params["low_freq_factor"], params["high_freq_factor"]
    wavelength = 2.0 * math.pi / plain
    smooth = (trained / wavelength - low) / (high - low)
    ramp = (1.0 - smooth) * plain / params["factor"] + smooth * plain
    scaled = np.where(wavelength > trained / low, plain / params["factor"], plain)
    between = (wavelength <= trained / low) & (wavelength >= trained / high)
    return np.where(between, ramp, scaled)


def _yarn(plain: np.ndarray, spec: RopeSpec, params: dict[str, Any]) -> tuple[np.ndarray, float]:
    dim, factor, trained = spec.rotary_dim, float(params["factor"]), params["original_max_position_embeddings"]
    attention = params.get("attention_factor")
    if attention is None:
        mscale, all_dim = params.get("mscale"), params.get("mscale_all_dim")
        attention = _mscale(factor, mscale) / _mscale(factor, all_dim) if mscale and all_dim else _mscale(factor, 1.0)

    def dimension(rotations: float) -> float:
        return dim * math.log(trained / (rotations * 2.0 * math.pi)) / (2.0 * math.log(spec.theta))

    low, high = dimension(params.get("beta_fast") or 32.0), dimension(params.get("beta_slow") or 1.0)
    if params.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2, dtype=np.float64) - low) / ((high - low) or 0.001), 0.0, 1.0)
    return plain / factor * ramp + plain * (1.0 - ramp), float(attention)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def _longrope(plain: np.ndarray, params: dict[str, Any], length: int) -> tuple[np.ndarray, float]:
    trained, factor = params["original_max_position_embeddings"], params["factor"]
    attention = params.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1.0 else math.sqrt(1.0 + math.log(factor) / math.log(trained))
    factors = params["long_factor" if length > trained else "short_factor"]
    return plain / np.asarray(factors, dtype=np.float64), float(attention)
