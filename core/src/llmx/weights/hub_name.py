"""HubName: how a user names a model of the Hugging Face hub, and which files of a repository that means. No network, no disk."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import PurePosixPath

from llmx.errors import ConfigError, ModelError
from llmx.record import record

__all__ = ["INDEX", "SIDE_FILES", "HubName", "Selection", "gguf_models", "parse_hub_name", "quant_label", "safe_file_name", "select_files", "select_tokenizer"]

# org/name[@revision][:quantisation]
_NAME = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[^:@\s]+))?(?::(?P<quant>[^:@\s]+))?")
_REVISION = re.compile(r"[A-Za-z0-9_][\w.-]*(?:/[\w.-]+)*")
_SPLIT = re.compile(r"(?P<stem>.*)-\d{5}-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
# the last word of a file name that looks like a type of GGUF: Q4_K_M, IQ2_XXS, UD-Q4_K_XL, F16, MXFP4_MOE, ...
_LABEL = re.compile(r"(?:^|[-._])((?:UD-)?(?:(?:I|T)?Q\d+|MXFP\d+|NVFP\d+|BF16|FP?16|FP?32)(?:_[A-Z0-9]+)*)(?=$|[-._])", re.IGNORECASE)
_NO_MODEL = ("mmproj", "imatrix")  # GGUF files beside a model: a vision projector, statistics for quantising
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")

INDEX = "model.safetensors.index.json"
# What a model needs beside its weights, where the repository has it. The card is fetched for the licence in its head.
SIDE_FILES = (
    *("README.md", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    "chat_template.jinja",
    *("modules.json", "sentence_bert_config.json", "sentence_roberta_config.json", "sentence_distilbert_config.json", "sentence_xlm-roberta_config.json"),
)
_POOLING = re.compile(r"\d+_Pooling/config\.json")  # sentence-transformers: which rows become the vector of a text


@record
class HubName:
    """A model on the hub. revision: branch, tag or commit; quant: which GGUF file of the repository, None: the only model there is."""

    repo: str
    revision: str = "main"
    quant: str | None = None

    def __str__(self) -> str:
        """The name in the API and in messages: without the revision when it is the default one."""
        return self.repo + (f"@{self.revision}" if self.revision != "main" else "") + (f":{self.quant}" if self.quant else "")


@record
class Selection:
    """The files of a repository that make one model. weights: () for a sharded safetensors model, whose index names them."""

    kind: str  # gguf, safetensors or tokenizer
    side: tuple[str, ...]
    weights: tuple[str, ...]


def parse_hub_name(source: str, revision: str | None = None) -> HubName | None:
    """The hub model that `source` names by its form, or None when it can only be a path. revision: the option, instead of @revision.

    Raises ConfigError for a revision that is given twice or is none.
    """
    match = _NAME.fullmatch(source)
    if match is None or match["repo"].lower().endswith((".gguf", ".safetensors", ".json")) or ".." in match["repo"] or "--" in match["repo"]:
        return None
    if match["revision"] and revision and match["revision"] != revision:
        raise ConfigError(f"the revision is given twice, in {source!r} and with --revision {revision!r}: leave one out", field="revision")
    wanted = match["revision"] or revision or "main"
    if not _REVISION.fullmatch(wanted) or ".." in wanted:
        raise ConfigError(f"revision is {wanted!r}: it must be a branch, a tag or a commit", field="revision")
    return HubName(match["repo"], wanted, match["quant"])


def quant_label(file: str) -> str:
    """How a GGUF file is quantised, by its name: Q4_K_M; the name's stem when it does not say."""
    stem = PurePosixPath(_whole(file)).stem
    found = _LABEL.findall(stem)
    return str(found[-1]).upper() if found else stem


def safe_file_name(name: str) -> bool:
    """Whether a name that a server gave stays inside a folder."""
    return bool(name) and "\\" not in name and "\0" not in name and all(part not in ("", ".", "..") for part in name.split("/"))


def gguf_models(files: Collection[str]) -> dict[str, list[str]]:
    """The GGUF models among files: name without the part number -> its files in order. A split model may lack some."""
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        base = PurePosixPath(file).name.lower()
        if base.endswith(".gguf") and not base.startswith(_NO_MODEL) and "imatrix" not in base:
            models.setdefault(_whole(file), []).append(file)
    return models


def select_files(name: HubName, files: Collection[str]) -> Selection:
    """The files of `name` among those of its repository. Raises ModelError when there is no such model, saying what there is instead."""
    models = gguf_models(files)
    plain = [file for file in files if "/" not in file]
    side = tuple(file for file in SIDE_FILES if file in plain)
    if name.quant is None and "config.json" in plain:
        weights = _safetensors(plain)
        if weights is not None:
            return Selection("safetensors", (*side, *(file for file in sorted(files) if _POOLING.fullmatch(file))), weights)
    if models:
        card = tuple(file for file in side if file == "README.md")
        return Selection("gguf", card, tuple(_complete(name, models[_choose(name, models)])))
    if name.quant is not None:
        raise ModelError(f"{name.repo} has no GGUF file, so there is no {name.quant!r} to pick: name it without :{name.quant}")
    raise ModelError(_no_model(name, plain))


def select_tokenizer(name: HubName, files: Collection[str]) -> Selection:
    """The files of a tokenizer alone. Raises ModelError when the repository has no tokenizer.json."""
    if "tokenizer.json" not in files:
        raise ModelError(f"{name.repo} has no tokenizer.json, so it cannot be given as --tokenizer")
    return Selection("tokenizer", tuple(file for file in SIDE_FILES if file in files), ())


def _safetensors(plain: list[str]) -> tuple[str, ...] | None:
    """Weights of a safetensors model: one file, or () for those that an index names; None without any."""
    if "model.safetensors" in plain:
        return ("model.safetensors",)
    if INDEX in plain:
        return ()
    others = [file for file in plain if file.endswith(".safetensors") and not file.startswith("adapter")]
    return (others[0],) if len(others) == 1 else None


def _choose(name: HubName, models: dict[str, list[str]]) -> str:
    labels = {model: quant_label(model) for model in models}
    listed = ", ".join(sorted(set(labels.values())))
    if name.quant is None:
        if len(models) == 1:
            return next(iter(models))
        example = replace(name, quant=next(iter(sorted(labels.values()))))
        raise ModelError(f"{name.repo} has {len(models)} GGUF models: name one of them, e.g. {example}; there are {listed}")
    wanted = name.quant.lower()
    rules: tuple[Callable[[str], bool], ...] = (
        lambda model: labels[model].lower() == wanted,
        lambda model: wanted in (PurePosixPath(model).name.lower(), PurePosixPath(model).stem.lower()),
        lambda model: labels[model].lower().removeprefix("ud-") == wanted,
    )
    for rule in rules:
        found = [model for model in models if rule(model)]
        if len(found) > 1:
            files = ", ".join(PurePosixPath(model).name for model in found)
            raise ModelError(f"{name.repo} has {len(found)} GGUF models that are {name.quant}: give the file's name after the colon, one of {files}")
        if found:
            return found[0]
    near = difflib.get_close_matches(name.quant.upper(), labels.values(), n=1)
    raise ModelError(f"{name.repo} has no {name.quant!r}{f'; did you mean {near[0]}?' if near else ''}; there are {listed}")


def _complete(name: HubName, files: list[str]) -> list[str]:
    match = _SPLIT.fullmatch(files[0])
    if match is not None and len(files) != int(match["count"]):
        raise ModelError(f"{name.repo} has {len(files)} of the {int(match['count'])} parts of {PurePosixPath(_whole(files[0])).name}: the others are missing")
    return files


def _whole(file: str) -> str:
    match = _SPLIT.fullmatch(file)
    return f"{match['stem']}.gguf" if match else file


def _no_model(name: HubName, plain: list[str]) -> str:
    pickled = sorted(file for file in plain if file.endswith(_PICKLED))
    if pickled and not any(file.endswith(".safetensors") for file in plain):
        return (
            f"{name.repo} has its weights only as pickled files ({', '.join(pickled[:3])}), which can run code when they are read: llmx takes safetensors"
            " and GGUF only. Take a repository that has these, or convert it yourself with"
            " `model.save_pretrained(directory, safe_serialization=True)` of transformers and serve the directory"
        )
    if "adapter_config.json" in plain:
        return f"{name.repo} is an adapter (adapter_config.json), no whole model: merge it into its base model and serve that"
    return (
        f"{name.repo} holds no model that llmx can read: neither config.json with safetensors weights nor a GGUF file among its {len(plain)} top-level files"
    )
