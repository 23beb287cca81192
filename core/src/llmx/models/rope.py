"""RopeSpec of a configuration: old (`rope_theta`, `rope_scaling`) and new (`rope_parameters`) ways of writing it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

from llmx.errors import ModelError
from llmx.models.fields import Fields
from llmx.program.attrs import RopeSpec

__all__ = ["rope_spec"]

Scaling = Literal["none", "linear", "dynamic", "yarn", "llama3", "longrope"]
Params = tuple[tuple[str, float | int | bool | tuple[float, ...]], ...]

_FIELD = "config field 'rope_scaling' ('rope_parameters')"
_OLD_NAMES = {"default": "none", "su": "longrope", "mrope": "none"}
_NOT_PARAMS = {"rope_type", "type", "rope_theta", "mrope_section", "mrope_interleaved", "partial_rotary_factor"}
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor"),
}


def rope_spec(
    config: Mapping[str, Any], head_dim: int, style: Literal["neox", "gptj"] = "neox", layer_type: str | None = None, theta: float = 10000.0
) -> RopeSpec:
    """The rotary embedding that a configuration describes.

    layer_type: where `rope_parameters` has one entry per layer type, the one to read. theta: base when none is written.
    Raises ModelError for an unknown type or a missing parameter, naming both.
    """
    f = Fields(config)
    raw = _written(f, layer_type)
    kinds = [raw[name] for name in ("rope_type", "type") if raw.get(name) is not None]
    scaling, *other = [_OLD_NAMES.get(str(kind), str(kind)) for kind in kinds] or ["none"]
    if any(kind != scaling for kind in other):
        raise ModelError(f"{_FIELD} has 'rope_type' {kinds[0]!r} and 'type' {kinds[1]!r}: they contradict each other; remove one")
    if scaling not in get_args(Scaling):
        raise ModelError(f"rope type {kinds[0]!r} is not supported; supported: {', '.join(get_args(Scaling))}")
    base = Fields(raw).number("rope_theta", f.number("rope_theta", theta, above=0.0), above=0.0)
    share = Fields(raw).number("partial_rotary_factor", f.number("partial_rotary_factor", 1.0, above=0.0), above=0.0)
    rotary_dim = int(head_dim * share)
    if rotary_dim > head_dim or rotary_dim < 2 or rotary_dim % 2:
        raise ModelError(
            f"config field 'partial_rotary_factor' is {share:g}: {rotary_dim} of the {head_dim} elements of a head; an even number of 2 or more is needed"
        )
    return RopeSpec(
        style=style,
        rotary_dim=rotary_dim,
        theta=base,
        scaling=scaling,  # type: ignore[arg-type]  # checked above
        params=_params(f, raw, scaling, rotary_dim),
        mrope_sections=tuple(raw.get("mrope_section", ())),
        mrope_interleaved=bool(raw.get("mrope_interleaved", False)),
    )


def _written(f: Fields, layer_type: str | None) -> Mapping[str, Any]:
    """The mapping that describes the rope; {} without one."""
    old, new = f.get("rope_scaling") or {}, f.get("rope_parameters") or {}
    raw = new or old
    if not isinstance(raw, Mapping):
        raise ModelError(f"{_FIELD} is {raw!r}; a mapping is needed")
    if isinstance(old, Mapping) and new:
        _agree(old, new)
    if layer_type is not None and isinstance(raw.get(layer_type), Mapping):
        return dict(raw[layer_type])
    nested = [name for name, value in raw.items() if isinstance(value, Mapping)]
    if nested:
        raise ModelError(f"{_FIELD} has an entry per layer type ({', '.join(nested)}); this model reads {layer_type or 'one for all layers'}")
    return raw


def _agree(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Both ways of writing may stand in one file when they say the same."""
    for name in old:
        here, there = (_OLD_NAMES.get(str(m[name]), m[name]) if name in m else None for m in (old, new))
        if here is not None and there is not None and here != there:
            raise ModelError(f"config field 'rope_scaling' has {name!r} {old[name]!r} and 'rope_parameters' has {new[name]!r}: they contradict each other")


def _params(f: Fields, raw: Mapping[str, Any], scaling: str, rotary_dim: int) -> Params:
    if scaling == "none":
        return ()
    given = {name: value for name, value in raw.items() if name not in _NOT_PARAMS and value is not None}
    original = given.get("original_max_position_embeddings", f.get("original_max_position_embeddings"))
    if original is None and scaling in ("dynamic", "yarn", "longrope"):
        original = f.integer("max_position_embeddings")
    if original is not None:
        given["original_max_position_embeddings"] = Fields({"original_max_position_embeddings": original}).integer("original_max_position_embeddings")
    if scaling == "longrope" and "factor" not in given:
        given["factor"] = f.integer("max_position_embeddings") / given["original_max_position_embeddings"]
    for name in _NEEDED[scaling]:
        if name not in given:
            raise ModelError(f"rope type {scaling!r} needs {name!r} in 'rope_scaling' ('rope_parameters'); it has {', '.join(sorted(raw))}")
    _check(given, scaling, rotary_dim)
    return tuple(sorted((name, tuple(float(x) for x in value) if isinstance(value, list | tuple) else value) for name, value in given.items()))


def _check(given: Mapping[str, Any], scaling: str, rotary_dim: int) -> None:
    """Values that transformers would take and that describe no frequencies."""
    numbers = Fields(given)
    for name in ("factor", "low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast", "beta_slow"):
        if name in given:
            numbers.number(name, above=0.0)
    if scaling == "llama3" and given["high_freq_factor"] <= given["low_freq_factor"]:
        raise ModelError(f"{_FIELD} has high_freq_factor {given['high_freq_factor']}, which must be above low_freq_factor {given['low_freq_factor']}")
    for name in ("short_factor", "long_factor"):
        value = given.get(name)
        if scaling != "longrope" or value is None:
            continue
        if not isinstance(value, list | tuple) or len(value) != rotary_dim // 2 or not all(isinstance(x, int | float) and 0 < x < math.inf for x in value):
            raise ModelError(
                f"{_FIELD} has {name} {value!r}; a list of {rotary_dim // 2} positive numbers (half of the {rotary_dim} rotary elements) is needed"
            )
