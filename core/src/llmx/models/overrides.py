"""What the user says about a model's files: changes of their configuration, and claims that are checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmx.config import ModelConfig
from llmx.errors import ConfigError
from llmx.sampling_params import GENERATION_DEFAULTS
from llmx.weights.at_load import SCHEMES, QuantisedSource
from llmx.weights.host_tensor import WeightSource
from llmx.weights.json_file import read_json_object

if TYPE_CHECKING:
    from llmx.weights.sources import Checkpoint

__all__ = ["as_asked", "quantised_as_asked"]

_KEPT = ("eos_token_id",)  # where text ends is a fact of the model, no default of sampling


def as_asked(checkpoint: Checkpoint, config: ModelConfig) -> Checkpoint:
    """The checkpoint with the user's overrides. Raises ConfigError for claims that its files do not keep."""
    _check_format(checkpoint, config.load_format)
    _check_quantization(checkpoint, config.quantization)
    generation = {**_generation(checkpoint, config.generation_config), **_checked(config.generation_overrides)}
    return replace(checkpoint, config=_merged(checkpoint.config, config.hf_overrides), generation=generation)


def _check_format(checkpoint: Checkpoint, wanted: str) -> None:
    found = "gguf" if checkpoint.gguf_metadata is not None else "safetensors"
    if wanted not in ("auto", found):
        raise ConfigError(f"--load-format is {wanted}, but {checkpoint.path} holds {found}: give {found} or auto", field="load_format")


def quantised_as_asked(checkpoint: Checkpoint, wanted: str | None, vocab_size: int) -> tuple[WeightSource, list[str]]:
    """The weights, quantised while they are read for `wanted` int8 or int4; and what the user should know of it."""
    if wanted is None or wanted.lower() not in SCHEMES:
        return checkpoint.weights, list(getattr(checkpoint.weights, "notes", ()))
    source = QuantisedSource(checkpoint.weights, wanted.lower(), vocab_size, checkpoint.path)
    kept = f"{len(source.kept)} matrices stay as they are stored: their columns are no multiple of 32 ({source.kept[0]}, ...)" if source.kept else ""
    return source, [kept] if kept else []


def _check_quantization(checkpoint: Checkpoint, wanted: str | None) -> None:
    """GGUF files have block types, other checkpoints may name a method in their config.json."""
    if wanted is None:
        return
    if wanted.lower() in SCHEMES:
        blocks = sorted({str(quant) for name in checkpoint.weights.names() if (quant := checkpoint.weights.quant(name)).scheme != "dense"})
        if blocks:
            why = f"{checkpoint.path} is quantised already ({', '.join(blocks)}), and such weights run as they are stored"
            raise ConfigError(f"--quantization is {wanted}, but {why}: leave it out", field="quantization")
        return
    method = checkpoint.config.get("quantization_config")
    named = str(method.get("quant_method")).lower() if isinstance(method, dict) else None
    if checkpoint.gguf_metadata is not None:
        stored = {str(checkpoint.weights.quant(name)) for name in checkpoint.weights.names()}
        found = {"gguf", *(kind for kind in stored if kind.startswith("q"))}
    else:
        found = {named or "none"}
    if wanted.lower() not in found:
        remedy = f"leave it out, or give {' or '.join(SCHEMES)} to quantise dense weights"
        raise ConfigError(f"--quantization is {wanted}, but {checkpoint.path} has {', '.join(sorted(found))}: {remedy}", field="quantization")


def _generation(checkpoint: Checkpoint, wanted: str) -> dict[str, Any]:
    if wanted == "auto":
        return checkpoint.generation
    kept = {name: checkpoint.generation[name] for name in _KEPT if name in checkpoint.generation}
    if wanted == "none":
        return kept
    path = Path(wanted).expanduser()
    path = path / "generation_config.json" if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(f"--generation-config is {wanted!r}: give auto, none, a generation_config.json or a folder that holds one", field="generation_config")
    return {**kept, **read_json_object(path)}


def _checked(given: Mapping[str, Any]) -> Mapping[str, Any]:
    unknown = sorted(set(given) - {*GENERATION_DEFAULTS, *_KEPT})
    if unknown:
        known = ", ".join(GENERATION_DEFAULTS)
        raise ConfigError(f"--override-generation-config has {unknown[0]!r}, which is no default of sampling: give {known}", field="override_generation_config")
    return given


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes`, objects inside merged too."""
    result = dict(base)
    for name, value in changes.items():
        old = result.get(name)
        result[name] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result
