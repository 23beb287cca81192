"""ModelRegistry: which builder makes the Programs of which architecture. Built explicitly, by llmx.models.builtin and by plugins."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from llmx.errors import ModelError
from llmx.models.fields import Fields
from llmx.program.ops import Model, QuantOf
from llmx.record import record

__all__ = ["Build", "ModelDef", "ModelFacts", "ModelRegistry", "TensorLayout", "facts_from"]


@record
class TensorLayout:
    """How a checkpoint's tensors differ from the canonical Hugging Face ones. rope_pairs: rows of q and k lie as rotary
    pairs (2i, 2i + 1) instead of halves, as in GGUF files of the llama family. norms_whole: weights of norms with an offset
    (Gemma: 1 + weight) hold the sum already, as in GGUF files. bare: names lack ModelDef.outer.
    """

    rope_pairs: bool = False
    norms_whole: bool = False
    bare: bool = False


@record
class ModelFacts:
    """What the engine needs of a configuration beside the Programs. eos_ids: ids that end a generation, [] when unknown.

    extended: max_model_len already counts what rope scaling adds.
    """

    vocab_size: int
    max_model_len: int
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    pad_id: int | None = None
    extended: bool = False


def facts_from(config: Mapping[str, Any]) -> ModelFacts:
    """Vocabulary, longest context and special ids of a decoder's configuration."""
    f = Fields(config)
    eos = f.get("eos_token_id", [])
    return ModelFacts(
        vocab_size=f.integer("vocab_size"),
        max_model_len=f.integer("max_position_embeddings"),
        eos_ids=tuple(eos) if isinstance(eos, list | tuple) else (f.integer("eos_token_id", low=-1),),
        bos_id=f.get("bos_token_id"),
        pad_id=f.get("pad_token_id"),
    )


Build = Callable[[Mapping[str, Any], QuantOf, TensorLayout], Model]  # (config.json, storage of each tensor, layout)


@record
class ModelDef:
    """One family of models. architectures, model_types: as in config.json; gguf: values of general.architecture.

    build and facts raise ModelError that names the field of config.json at fault. ignored: beginnings or ends of names of
    checkpoint tensors that the Programs do not use. outer: beginning of names that files of the inner model alone leave out
    ("transformer." of GPT-2's first files). whole_prompt_only: prompts are never chunked. drafter_needs_next_token:
    the model's own drafter writes a kv slot from the token after it. input_kinds: names of inputs beside text.
    """

    name: str
    architectures: tuple[str, ...]
    model_types: tuple[str, ...]
    build: Build
    facts: Callable[[Mapping[str, Any]], ModelFacts]
    gguf: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    outer: str = ""
    whole_prompt_only: bool = False
    drafter_needs_next_token: bool = False
    input_kinds: tuple[str, ...] = ()

    def ignores(self, tensor: str) -> bool:
        """True when a checkpoint tensor of this name may stay unused."""
        return tensor.startswith(self.ignored) or tensor.endswith(self.ignored) if self.ignored else False


class ModelRegistry:
    """ModelDefs by architecture class name, model_type and GGUF architecture."""

    def __init__(self, defs: Iterable[ModelDef] = ()) -> None:
        self._architectures: dict[str, ModelDef] = {}
        self._model_types: dict[str, ModelDef] = {}
        self._gguf: dict[str, ModelDef] = {}
        self.merge(defs)

    def merge(self, defs: Iterable[ModelDef]) -> None:
        """Add definitions. Raises ModelError for a name that another definition has."""
        for new in defs:
            for table, names in ((self._architectures, new.architectures), (self._model_types, new.model_types), (self._gguf, new.gguf)):
                for name in names:
                    if table.setdefault(name, new) is not new:
                        raise ModelError(f"{name!r} of model {new.name!r} is registered already, by {table[name].name!r}")

    def find(self, config: Mapping[str, Any], path: str | None = None) -> ModelDef:
        """The definition for a config.json: by `architectures`, or by `model_type` where there is none.

        Raises ModelError naming the file, the value and the nearest supported names.
        """
        named = config.get("architectures") or ()
        for name in named:
            if name in self._architectures:
                return self._architectures[name]
        model_type = config.get("model_type")
        if not named and model_type in self._model_types:
            return self._model_types[model_type]
        if not named and not model_type:
            raise ModelError("the configuration has neither 'architectures' nor 'model_type'; one of them must name the model", path=path)
        if named:
            raise ModelError(_unknown("architecture", str(named[0]), self._architectures), path=path)
        raise ModelError(_unknown("model_type", str(model_type), self._model_types), path=path)

    def find_gguf(self, architecture: str, path: str | None = None) -> ModelDef:
        """The definition for a GGUF file's `general.architecture`. Raises ModelError as `find` does."""
        if architecture in self._gguf:
            return self._gguf[architecture]
        raise ModelError(_unknown("GGUF architecture", architecture, self._gguf), path=path)

    def architectures(self) -> list[str]:
        """All supported architecture class names, sorted."""
        return sorted(self._architectures)


def _unknown(what: str, value: str, table: Mapping[str, ModelDef]) -> str:
    near = difflib.get_close_matches(value, table, n=3, cutoff=0.5) or sorted(table)[:5]
    return (
        f"{what} {value!r} is not supported; nearest supported: {', '.join(near) or 'none'}. "
        f"All: {', '.join(sorted(table))}. A plugin can bring others (hook llmx_models)"
    )
