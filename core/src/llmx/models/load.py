"""A ModelConfig -> a model ready for an executor: checkpoint opened, Programs built and verified, every weight accounted for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from llmx.config import ModelConfig
from llmx.errors import ConfigError, ModelError, ProgramError
from llmx.executor.bundle import ModelBundle
from llmx.models.builtin import builtin_models
from llmx.models.overrides import as_asked, quantised_as_asked
from llmx.models.pooled import find_definition, pooling_of, sentence_files
from llmx.models.registry import ModelDef, ModelFacts, ModelRegistry, TensorLayout
from llmx.pooling_params import PoolingConfig
from llmx.program.ops import Model, QuantOf
from llmx.program.verify import verify
from llmx.record import record
from llmx.tokens.source import TokenizerSource
from llmx.weights.gguf_source import GgufSource
from llmx.weights.host_tensor import WeightSource
from llmx.weights.names import norms_are_whole, rows_are_pairs
from llmx.weights.sources import EMBEDDED, Checkpoint, find_cached, hub_name, locate, open_checkpoint
from llmx.weights.transforms import transformed_shape

__all__ = ["LoadedModel", "ModelSummary", "load_model", "read_model_info", "tokenizer_source"]

_EDGE_BYTES = 4096  # of each end of a tensor, read for the digest
_LISTED = 5  # names in an error message


@record
class ModelSummary:
    """What headers and configuration files say of a model; no weight is read.

    max_model_len: tokens of one request (what the user asked for, or context_length). eos_ids: every id that ends a generation.
    generation: generation_config.json's content, for defaults of sampling; {} without one.
    """

    name: str
    served_names: tuple[str, ...]
    path: str
    architecture: str
    vocab_size: int
    max_model_len: int
    context_length: int
    eos_ids: tuple[int, ...]
    bos_id: int | None
    pad_id: int | None
    tokenizer: TokenizerSource
    generation: Mapping[str, Any] = field(default_factory=dict)


@record
class LoadedModel:
    """A model for an executor. hf_config: config.json's content or its equivalent; warnings: what the user should read, one line each."""

    bundle: ModelBundle
    summary: ModelSummary
    definition: ModelDef
    hf_config: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    pooling: PoolingConfig | None = None  # of a model that gives vectors or scores


def load_model(config: ModelConfig, registry: ModelRegistry | None = None) -> LoadedModel:
    """The model that `config` names; weights stay mapped and are read when the executor packs them.

    registry: known architectures, core's own by default. Raises ModelError (file and reason) for anything missing, corrupt, unknown
    or left over in the files, ConfigError for options that the model cannot satisfy.
    """
    checkpoint = _open(config)
    definition, summary = _summarise(config, checkpoint, registry or builtin_models())
    weights, notes = quantised_as_asked(checkpoint, config.quantization, summary.vocab_size)
    model = _build(checkpoint, definition, weights.quant)
    warnings = [*notes, *_check_weights(checkpoint, weights, model, definition)]
    bundle = ModelBundle(
        name=summary.name,
        architecture=summary.architecture,
        model=model,
        weights=weights,
        vocab_size=summary.vocab_size,
        max_model_len=summary.max_model_len,
        digest=_digest(checkpoint, model, config.hf_overrides),
    )
    pooling = pooling_of(config, checkpoint.config, sentence_files(checkpoint.path), definition, model)
    return LoadedModel(bundle, summary, definition, checkpoint.config, tuple(warnings), pooling)


def read_model_info(config: ModelConfig, registry: ModelRegistry | None = None) -> ModelSummary:
    """Names, lengths, vocabulary and special ids from headers alone, in milliseconds. Raises as `load_model` does."""
    return _summarise(config, _open(config), registry or builtin_models())[1]


def tokenizer_source(config: ModelConfig, checkpoint: Checkpoint, eos_ids: tuple[int, ...] = ()) -> TokenizerSource:
    """Where the tokenizer is: `config.tokenizer` (a directory, tokenizer.json, a .gguf file or a hub name), or the model itself."""
    if config.tokenizer is None:
        return TokenizerSource(checkpoint.path, checkpoint.gguf_metadata, eos_ids, config.cache_dir)
    on_hub = hub_name(config.tokenizer)
    path = Path(config.tokenizer).expanduser() if on_hub is None else Path(find_cached(on_hub, config.download_dir, tokenizer=True))
    if path.is_dir() or (path.is_file() and path.suffix == ".json"):
        return TokenizerSource(str(path), None, eos_ids)
    if path.is_file() and path.suffix.lower() == ".gguf":
        return TokenizerSource(str(path), GgufSource(str(path)).metadata, eos_ids, config.cache_dir)
    raise ConfigError(f"tokenizer is {config.tokenizer!r}: a directory with tokenizer.json, a tokenizer.json or a .gguf file is needed", field="tokenizer")


def _summarise(config: ModelConfig, checkpoint: Checkpoint, registry: ModelRegistry) -> tuple[ModelDef, ModelSummary]:
    files = sentence_files(checkpoint.path)
    definition = find_definition(config, checkpoint.config, files, registry, checkpoint.path)
    try:
        facts = definition.facts(checkpoint.config)
        context = _context_length(checkpoint.config, facts)
    except ModelError as error:
        raise error if error.path else ModelError(str(error), path=checkpoint.path) from error
    asked = config.max_model_len
    if asked is not None and not 1 <= asked <= context:
        raise ConfigError(
            f"max_model_len is {asked}, but {checkpoint.path} has a context of {context} tokens: give 1 to {context}, or leave it out", field="max_model_len"
        )
    eos_ids = _valid_ids((*facts.eos_ids, *_as_ids(checkpoint.generation.get("eos_token_id"))), facts.vocab_size)
    bos_pad = [next(iter(_valid_ids(_as_ids(token), facts.vocab_size)), None) for token in (facts.bos_id, facts.pad_id)]
    name = _name_of(config)
    return definition, ModelSummary(
        name=name,
        served_names=config.served_names or (name,),
        path=checkpoint.path,
        architecture=str((checkpoint.config.get("architectures") or [definition.architectures[0]])[0]),
        vocab_size=facts.vocab_size,
        max_model_len=asked or min(context, files.max_length or context),
        context_length=context,
        eos_ids=eos_ids,
        bos_id=bos_pad[0],
        pad_id=bos_pad[1],
        tokenizer=tokenizer_source(config, checkpoint, eos_ids),
        generation=checkpoint.generation,
    )


def _build(checkpoint: Checkpoint, definition: ModelDef, quant: QuantOf) -> Model:
    """The verified Programs. Raises ModelError naming the file for a configuration that describes no model."""
    source, layers = checkpoint.weights, checkpoint.config.get("num_hidden_layers")
    if isinstance(layers, int) and layers > len(list(source.names())):
        raise ModelError(f"num_hidden_layers is {layers}, more than there are tensors: the configuration is wrong", path=checkpoint.path)
    layout = TensorLayout(bare=bool(definition.outer) and not any(name.startswith(definition.outer) for name in source.names()))
    if isinstance(source, GgufSource):
        stored_as = source.metadata["general.architecture"]
        layout = TensorLayout(rope_pairs=rows_are_pairs(stored_as), norms_whole=norms_are_whole(stored_as))
    try:
        model = definition.build(checkpoint.config, quant, layout)
        verify(model)
    except ModelError as error:
        raise error if error.path else ModelError(str(error), path=checkpoint.path) from error
    except ProgramError as error:
        raise ModelError(f"the configuration describes no model that can run: {error}", path=checkpoint.path) from error
    return model


def _open(config: ModelConfig) -> Checkpoint:
    return as_asked(open_checkpoint(config.source, revision=config.revision, download_dir=config.download_dir), config)


def _name_of(config: ModelConfig) -> str:
    """The name in the API: the embedded name, the hub's, the file without .gguf, or the directory's name."""
    path = Path(config.source).expanduser()
    if config.source.lower() in EMBEDDED and not path.exists():
        return config.source.lower()
    on_hub = hub_name(config.source, config.revision)
    if on_hub is not None:
        return on_hub.repo + (f":{on_hub.quant}" if on_hub.quant else "")
    found = Path(locate(config.source))
    return found.stem if found.is_file() else found.resolve().name


def _context_length(config: Mapping[str, Any], facts: ModelFacts) -> int:
    """Tokens the positions reach: rope scaling by a factor extends what the model was trained on.

    linear, dynamic: max_position_embeddings x factor; yarn: original x factor; llama3, longrope: already extended in the file.
    """
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if facts.extended or not isinstance(scaling, Mapping):
        return facts.max_model_len
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor", 1.0)
    if kind not in ("linear", "dynamic", "yarn") or isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < 1 << 20:
        return facts.max_model_len
    original = scaling.get("original_max_position_embeddings")
    base = original if isinstance(original, int) and original > 0 else facts.max_model_len
    return max(facts.max_model_len, int(base * factor))


def _as_ids(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else () if value is None else (value,)


def _valid_ids(values: Iterable[Any], vocab_size: int) -> tuple[int, ...]:
    """Distinct token ids inside the vocabulary; some files write -1 or the vocabulary's size for a token that they lack."""
    return tuple(dict.fromkeys(v for v in values if isinstance(v, int) and not isinstance(v, bool) and 0 <= v < vocab_size))


def _check_weights(checkpoint: Checkpoint, source: WeightSource, model: Model, definition: ModelDef) -> list[str]:
    """Every parameter has a tensor of its shape, every tensor is used: returns warnings, raises ModelError."""
    used = set()
    for ref in model.weights().values():
        used.add(ref.name)
        quant, stored = source.quant(ref.name), source.shape(ref.name)
        dtype = quant.tensors[0][1] if quant.scheme == "dense" else quant.scheme
        try:
            shape = transformed_shape(dtype, stored, ref.transforms)
        except ModelError as error:
            raise ModelError(f"tensor {ref.name!r}: {error}", path=checkpoint.path) from error
        if shape != ref.shape or quant != ref.quant:
            raise ModelError(f"tensor {ref.name!r} is {quant} {list(shape)}, but the configuration asks for {list(ref.shape)}", path=checkpoint.path)
    left = sorted(name for name in source.names() if name not in used and not definition.ignores(name))
    warnings = []
    if "lm_head.weight" in left:  # every decoder has a head: here it is the embedding
        left.remove("lm_head.weight")
        warnings.append(f"{checkpoint.path}: tensor 'lm_head.weight' is not used: tie_word_embeddings (or its default) says that the embedding is the head")
    if left:
        more = f" and {len(left) - _LISTED} more" if len(left) > _LISTED else ""
        raise ModelError(
            f"{len(left)} tensors have no place in a {definition.name} model of this configuration: {', '.join(left[:_LISTED])}{more}."
            " The configuration does not belong to these weights, or the model has parts that are not supported",
            path=checkpoint.path,
        )
    return warnings


def _digest(checkpoint: Checkpoint, model: Model, overrides: Mapping[str, Any]) -> str:
    """sha256 over the tensors that the model uses: names, types, shapes, and both ends of each; and over what the user changed."""
    digest = hashlib.sha256(json.dumps(overrides, sort_keys=True).encode() if overrides else b"")
    stored_as = {ref.name: str(ref.quant) for ref in model.weights().values()}
    for name in sorted(stored_as):
        tensor = checkpoint.weights.raw(name)
        flat = tensor.data.reshape(-1)
        digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        if stored_as[name] != tensor.dtype:
            digest.update(f"as {stored_as[name]}\n".encode())
        digest.update(flat[:_EDGE_BYTES].tobytes())
        digest.update(flat[-_EDGE_BYTES:].tobytes())
    return digest.hexdigest()
