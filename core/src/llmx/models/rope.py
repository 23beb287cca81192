"""RopeSpec of a configuration: old (`rope_theta`, `rope_scaling`) and new (`rope_parameters`) ways of writing it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from llmx.errors import ModelError
from llmx.models.fields import Fields
from llmx.program.attrs import RopeSpec

__all__ = ["rope_spec"]

Scaling = Literal["none", "linear", "dynamic", "yarn", "llama3", "longrope"]
Params = tuple[tuple[str, float | int | bool | tuple[float, ...]], ...]

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
    raw = f.get("rope_parameters") or f.get("rope_scaling") or {}
    if layer_type is not None and isinstance(raw.get(layer_type), Mapping):
        raw = raw[layer_type]
    if not isinstance(raw, Mapping):
        raise ModelError(f"config field 'rope_scaling' is {raw!r}; a mapping is needed")
    written = str(raw.get("rope_type", raw.get("type", "default")))
    scaling = _OLD_NAMES.get(written, written)
    if scaling not in get_args(Scaling):
        raise ModelError(f"rope type {written!r} is not supported; supported: {', '.join(get_args(Scaling))}")
    base = raw.get("rope_theta", f.get("rope_theta", theta))
    share = raw.get("partial_rotary_factor", f.get("partial_rotary_factor", 1.0))
    return RopeSpec(
        style=style,
        rotary_dim=int(head_dim * share),
        theta=float(base),
        scaling=scaling,  # type: ignore[arg-type]  # checked above
        params=_params(f, raw, scaling),
        mrope_sections=tuple(raw.get("mrope_section", ())),
        mrope_interleaved=bool(raw.get("mrope_interleaved", False)),
    )


def _params(f: Fields, raw: Mapping[str, Any], scaling: str) -> Params:
    if scaling == "none":
        return ()
    given = {name: value for name, value in raw.items() if name not in _NOT_PARAMS and value is not None}
    original = given.get("original_max_position_embeddings", f.get("original_max_position_embeddings"))
    if original is None and scaling in ("dynamic", "yarn", "longrope"):
        original = f.integer("max_position_embeddings")
    if original is not None:
        given["original_max_position_embeddings"] = original
    if scaling == "longrope" and "factor" not in given:
        given["factor"] = f.integer("max_position_embeddings") / given["original_max_position_embeddings"]
    for name in _NEEDED[scaling]:
        if name not in given:
            raise ModelError(f"rope type {scaling!r} needs {name!r} in 'rope_scaling' ('rope_parameters'); it has {', '.join(sorted(raw))}")
    return tuple(sorted((name, tuple(float(x) for x in value) if isinstance(value, list | tuple) else value) for name, value in given.items()))
