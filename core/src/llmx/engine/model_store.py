"""Models of the hub, for front ends: pull, list, show, remove. Only `pull_model` may use the network."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmx.config import ModelConfig
from llmx.engine.model_fetch import OnTransfer, hub_of
from llmx.errors import ConfigError, ModelError
from llmx.record import record
from llmx.weights.gguf import GgufFile
from llmx.weights.gguf_source import split_paths
from llmx.weights.hub_cache import CachedModel, HubCache, Removal
from llmx.weights.hub_name import HubName, quant_label
from llmx.weights.json_file import read_json_object
from llmx.weights.safetensors import SafetensorsFile, checkpoint_files
from llmx.weights.sources import EMBEDDED, hub_name, locate

__all__ = [
    "EMBEDDED",
    "CachedModel",
    "ModelCard",
    "Removal",
    "embedded_models",
    "hub_folder",
    "list_models",
    "plan_removal",
    "pull_model",
    "remove_model",
    "show_model",
]

_CARD_BYTES = 1 << 20  # of a model card, whose head names the licence


@record
class ModelCard:
    """What `llmx show` tells. quantization: storage of most of the weights; None: the files do not say. problem: why the headers cannot be read."""

    name: str
    path: str
    commit: str | None
    architecture: str | None
    quantization: str | None
    context_length: int | None
    license: str | None
    size: int
    files: tuple[tuple[str, int], ...]
    problem: str | None = None


def pull_model(config: ModelConfig, on_transfer: OnTransfer | None = None) -> CachedModel:
    """Fetch the newest state of a hub model. Raises ModelError."""
    name = _named(config)
    path = hub_of(config).fetch(name, on_transfer)
    return next(model for model in _cache(config).models() if model.path == path)


def list_models(config: ModelConfig) -> list[CachedModel]:
    """The complete models in the cache."""
    return _cache(config).models()


def hub_folder(config: ModelConfig) -> str:
    """The folder of hub models."""
    return str(_cache(config).folder)


def embedded_models() -> list[tuple[str, str, int]]:
    """(name, path, bytes) of the models that installed packages carry."""
    found = []
    for name in EMBEDDED:
        try:
            path = locate(name)
        except ModelError:
            continue  # its package is not installed
        found.append((name, path, Path(path).stat().st_size))
    return found


def show_model(config: ModelConfig) -> ModelCard:
    """A model's card, from its files. Raises ModelError when it is not on this machine."""
    path = Path(locate(config.source, revision=config.revision, download_dir=config.download_dir))
    name = hub_name(config.source, config.revision)
    cached = next((model for model in _cache(config).models() if model.path == str(path)), None) if name else None
    if cached is not None:
        files = cached.files
    elif path.is_file():
        files = tuple((Path(part).name, Path(part).stat().st_size) for part in split_paths(str(path)))
    else:
        files = tuple((part.name, part.stat().st_size) for part in sorted(path.iterdir()) if part.is_file())
    read: Callable[[Path], dict[str, Any]] = _read_gguf if path.is_file() else _read_directory
    try:
        facts: dict[str, Any] = {"problem": None, **read(path)}
    except ModelError as error:
        facts = {"architecture": None, "quantization": quant_label(path.name) if path.is_file() else None, "context_length": None, "problem": str(error)}
    folder = _cache(config).snapshot(name.repo, cached.commit) if name and cached else path if path.is_dir() else path.parent
    facts["license"] = facts.get("license") or _license_of(folder / "README.md")
    size = sum(size for _, size in files)
    return ModelCard(str(name or config.source), str(path), cached.commit if cached else None, size=size, files=files, **facts)


def plan_removal(config: ModelConfig) -> Removal:
    """What `remove_model` would delete. Raises ModelError when the model is not in the cache."""
    name = _named(config)
    asked = "@" in config.source or config.revision is not None
    return _cache(config).removal(name, every_revision=not asked)


def remove_model(config: ModelConfig, removal: Removal) -> None:
    """Delete what was planned. Raises ModelError for what the system refuses."""
    _cache(config).remove(removal)


def _named(config: ModelConfig) -> HubName:
    name = hub_name(config.source, config.revision)
    if name is None:
        what = "comes with a package" if config.source.lower() in EMBEDDED else "is a path" if Path(config.source).expanduser().exists() else "is none"
        raise ConfigError(f"a model of the hub is needed, org/name, org/name@revision or org/name:QUANT; {config.source!r} {what}", field="model")
    return name


def _cache(config: ModelConfig) -> HubCache:
    return HubCache(config.download_dir)


def _read_gguf(path: Path) -> dict[str, Any]:
    files = [GgufFile(part) for part in split_paths(str(path))]
    metadata = files[0].metadata
    architecture = str(metadata.get("general.architecture", ""))
    context = metadata.get(f"{architecture}.context_length")
    stored: Counter[str] = Counter()
    for file in files:
        for tensor in file.tensors.values():
            stored[tensor.dtype] += tensor.nbytes
    return {
        "architecture": architecture or None,
        "quantization": _storage(stored),
        "context_length": int(context) if isinstance(context, int) else None,
        "license": metadata.get("general.license"),
    }


def _read_directory(path: Path) -> dict[str, Any]:
    config = read_json_object(path / "config.json")
    stored: Counter[str] = Counter()
    for part in checkpoint_files(str(path))[0]:
        for tensor in SafetensorsFile(part).tensors.values():
            stored[tensor.dtype] += tensor.nbytes
    method = config.get("quantization_config")
    named = method.get("quant_method") if isinstance(method, dict) else None
    context = config.get("max_position_embeddings")
    architectures = config.get("architectures")
    return {
        "architecture": str(architectures[0]) if isinstance(architectures, list) and architectures else config.get("model_type"),
        "quantization": f"{named}, {method.get('bits', method.get('w_bit'))} bits" if isinstance(method, dict) and named else _storage(stored),
        "context_length": context if isinstance(context, int) else None,
    }


def _storage(stored: Counter[str]) -> str | None:
    return stored.most_common(1)[0][0] if stored else None


def _license_of(card: Path) -> str | None:
    """The licence that the head of a model card names."""
    if not card.is_file() or card.stat().st_size > _CARD_BYTES:
        return None
    import yaml  # 20 ms that only `llmx show` pays

    head = re.match(r"---\s*\n(.*?)\n---", card.read_text(encoding="utf-8", errors="replace"), re.DOTALL)
    try:
        table = yaml.safe_load(head[1]) if head else None
    except yaml.YAMLError:
        return None
    if not isinstance(table, dict) or not isinstance(table.get("license"), str):
        return None
    return str(table.get("license_name") or table["license"]) if table["license"] == "other" else str(table["license"])
