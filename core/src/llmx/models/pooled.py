"""Models that give vectors or scores: which ones do, what decoders must lose to do it, and how their rows are pooled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmx.config import ModelConfig
from llmx.errors import ConfigError, ModelError
from llmx.models.bert import num_labels
from llmx.models.registry import ModelDef, ModelRegistry, TensorLayout
from llmx.models.sentence_files import SentenceFiles, read_sentence_files
from llmx.pooling_params import POOLING_KINDS, PoolingConfig
from llmx.program.ops import DENSE_BF16, Model, Part, QuantOf, WeightRef
from llmx.program.passes.pooled import pooled

__all__ = ["find_definition", "pooling_of", "sentence_files"]

_INNER = "model."  # beginning of the names that files of the inner model alone leave out
_ACTIVATIONS = {"Sigmoid": "sigmoid", "Identity": "none", "Softmax": "softmax"}
_POOLER_FIELDS = ("pooling_type", "seq_pooling_type", "normalize", "use_activation", "dimensions")


def sentence_files(path: str) -> SentenceFiles:
    """The files beside a checkpoint; nothing beside a GGUF file."""
    return read_sentence_files(Path(path)) if Path(path).is_dir() else SentenceFiles()


def find_definition(config: ModelConfig, hf_config: Mapping[str, Any], files: SentenceFiles, registry: ModelRegistry, path: str) -> ModelDef:
    """The ModelDef, with its head taken off where vectors or scores are wanted: by the class's name (XModel,
    XForSequenceClassification), by --runner or --convert, or because sentence-transformers' files lie beside it.

    Raises ModelError for an unknown architecture, ConfigError for a wish that the model cannot fulfil.
    """
    name = str((hf_config.get("architectures") or [""])[0])
    base, labels = _decoder_class(name), num_labels(hf_config)
    known = set(registry.architectures())
    if name not in known and base in known:
        if config.runner == "generate" or config.convert == "none":
            raise ConfigError(f"{path} is a {name}, which has no head for text: leave out --runner and --convert, or take its {base}", field="runner")
        definition = registry.find({**hf_config, "architectures": [base]}, path)
        return _headless(definition, labels)
    definition = registry.find(hf_config, path)
    if definition.whole_prompt_only:  # an encoder
        if config.runner == "generate":
            raise ConfigError(f"{path} is a {name}, which gives vectors and no text: leave --runner out", field="runner")
        if (config.convert == "classify") > bool(labels):
            raise ConfigError(f"{path} is a {name}, which has no classifier: leave --convert out", field="convert")
        return definition
    if config.convert == "classify":
        raise ConfigError(f"{path} is a {name}, which has no classifier: --convert can be embed", field="convert")
    wanted = config.runner == "pooling" or config.convert == "embed" or (config.runner == config.convert == "auto" and files.present)
    if wanted and config.runner == "generate":
        raise ConfigError("--convert is embed and --runner is generate: leave one of them out", field="runner")
    return _headless(definition, 0) if wanted else definition


def _decoder_class(name: str) -> str:
    for ending in ("ForSequenceClassification", "Model"):
        if name.endswith(ending):
            return name.removesuffix(ending) + "ForCausalLM"
    return name


def _headless(definition: ModelDef, labels: int) -> ModelDef:
    """A decoder without its head; with a score of `labels` labels on top when it has some."""

    def build(config: Mapping[str, Any], quant: QuantOf, layout: TensorLayout) -> Model:
        def rename(tensor: str) -> str:
            return tensor.removeprefix(_INNER) if layout.bare and definition.outer != _INNER and not definition.outer else tensor

        def stored(tensor: str) -> Any:
            return DENSE_BF16 if tensor.startswith("lm_head.") else quant(rename(tensor))

        model = definition.build({**config, "tie_word_embeddings": True}, stored, layout)
        width = _width(pooled(model))
        score = Part("score", WeightRef("score.weight", (labels, width), quant("score.weight")), None, labels) if labels else None
        return pooled(model, score, rename)

    return replace(definition, build=build, ignored=(*definition.ignored, "lm_head."), outer=definition.outer or _INNER)


def _width(model: Model) -> int:
    width = model.programs["main"].outputs()["pooled"].shape[-1]
    assert isinstance(width, int)
    return width


def pooling_of(config: ModelConfig, hf_config: Mapping[str, Any], files: SentenceFiles, definition: ModelDef, model: Model) -> PoolingConfig | None:
    """How the model's rows are pooled; None for a model that gives text. Raises ConfigError for a --pooler-config that does not fit."""
    main = model.programs["main"]
    if "pooled" not in main.outputs():
        if config.pooler_config:
            raise ConfigError("--pooler-config is given, but the model gives text: start with --runner pooling, or leave it out", field="pooler_config")
        return None
    encoder = definition.whole_prompt_only
    labels = _labels(hf_config, num_labels(hf_config))
    named = files.kind or ("cls" if encoder else "last")
    kind: Any = named if not labels else ("cls" if encoder else "last")
    dims = hf_config.get("matryoshka_dimensions") or ()
    base = PoolingConfig(
        classifies=bool(labels),
        kind=kind,
        width=_width(model),
        normalize=files.normalize if files.present else True,
        activation=_activation(hf_config, len(labels)) if labels else "none",  # type: ignore[arg-type]
        labels=labels,
        matryoshka=bool(dims) or hf_config.get("is_matryoshka") is True,
        dimensions=tuple(dims),
        pairs="token_types" in main.inputs and _types(model) > 1,
        bidirectional=encoder,
    )
    return _overridden(base, config.pooler_config, encoder)


def _overridden(base: PoolingConfig, asked: Mapping[str, Any], encoder: bool) -> PoolingConfig:
    for name in asked:
        if name not in _POOLER_FIELDS:
            raise ConfigError(f"--pooler-config has {name!r}: the fields are {', '.join(_POOLER_FIELDS)}", field="pooler_config")
    kind = str(asked.get("pooling_type", asked.get("seq_pooling_type", base.kind))).lower()
    if kind not in POOLING_KINDS:
        raise ConfigError(f"--pooler-config has pooling_type {kind!r}: it can be {', '.join(POOLING_KINDS)}", field="pooler_config")
    if base.classifies and kind != base.kind and encoder:
        raise ConfigError(f"--pooler-config has pooling_type {kind!r}: the classifier of this model reads the first row (cls)", field="pooler_config")
    active = asked.get("use_activation", asked.get("normalize"))
    if active is not None and not isinstance(active, bool):
        raise ConfigError(f"--pooler-config has use_activation {active!r}: it is true or false", field="pooler_config")
    if asked.get("dimensions") is not None:
        raise ConfigError("--pooler-config has dimensions: requests ask for them (the field dimensions)", field="pooler_config")
    changed = replace(base, kind=kind, whole_prompt=encoder or kind != "last")  # type: ignore[arg-type]
    if active is None:
        return changed
    return replace(changed, activation=changed.activation if active else "none") if base.classifies else replace(changed, normalize=active)


def _types(model: Model) -> int:
    """Rows of the table of token types."""
    main = model.programs["main"]
    types = main.inputs["token_types"].id
    return next(op.weights["w"][0].weight.shape[0] for op in main.ops if op.kind == "embed" and op.ins[0] is not None and op.ins[0].id == types)


def _labels(hf_config: Mapping[str, Any], count: int) -> tuple[str, ...]:
    given = hf_config.get("id2label")
    names: Mapping[Any, Any] = given if isinstance(given, Mapping) else {}
    return tuple(str(names.get(str(i), names.get(i, f"LABEL_{i}"))) for i in range(count))


def _activation(hf_config: Mapping[str, Any], labels: int) -> str:
    """sentence-transformers' own field, else what the problem's type means, else sigmoid for one label and softmax for several."""
    own = hf_config.get("sentence_transformers")
    named = own.get("activation_fn") if isinstance(own, Mapping) else hf_config.get("sbert_ce_default_activation_function")
    if isinstance(named, str):
        kind = named.rsplit(".", 1)[-1]
        if kind not in _ACTIVATIONS:
            raise ModelError(f"config.json names the activation {named!r}; {', '.join(sorted(_ACTIVATIONS))} can be computed here")
        return _ACTIVATIONS[kind]
    problem = hf_config.get("problem_type")
    if problem == "regression":
        return "none"
    return "sigmoid" if labels == 1 or problem == "multi_label_classification" else "softmax"
