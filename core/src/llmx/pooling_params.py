"""What a user may ask of a model that gives vectors or scores instead of text, and what such a model does by itself."""

from __future__ import annotations

from typing import Literal

from llmx.errors import RequestError
from llmx.record import record

__all__ = ["POOLING_KINDS", "TASKS", "PoolingConfig", "PoolingKind", "PoolingParams", "Task", "check_pooling", "gives_rows"]

PoolingKind = Literal["cls", "last", "mean", "all"]
Task = Literal["embed", "classify", "token_embed", "token_classify"]
POOLING_KINDS: tuple[str, ...] = ("cls", "last", "mean", "all")
TASKS: tuple[str, ...] = ("embed", "classify", "token_embed", "token_classify")


@record
class PoolingConfig:
    """How a model's rows become its answer.

    classifies: rows are scores of labels; else they are vectors. kind: the row that stands for a text: its first (cls) or last,
    the mean of all, or all of them. normalize: vectors get length 1. activation: of scores. dimensions: sizes that a vector may
    be cut to; empty: any, where matryoshka. width: of a row. pairs: the model takes two texts at once (token types).
    bidirectional: rows see the whole text. whole_prompt: a text is computed in one step.
    """

    classifies: bool
    kind: PoolingKind
    width: int
    normalize: bool = True
    activation: Literal["none", "sigmoid", "softmax"] = "none"
    labels: tuple[str, ...] = ()
    matryoshka: bool = False
    dimensions: tuple[int, ...] = ()
    pairs: bool = False
    bidirectional: bool = False
    whole_prompt: bool = False

    @property
    def tasks(self) -> tuple[str, ...]:
        """What may be asked for."""
        whole: tuple[str, ...] = () if self.kind == "all" else ("classify",) if self.classifies else ("embed",)
        return (*whole, "token_classify" if self.classifies else "token_embed")


@record
class PoolingParams:
    """What one request wants. None: what the model does by itself.

    task: embed or classify (one row per text), token_embed or token_classify (one per token). dimensions: the vector's first
    elements only, where the model was trained for it. use_activation: vectors of length 1, scores as probabilities; False: as the
    model gives them. truncate_prompt_tokens: -1: what fits the model. Raises RequestError naming the field.
    """

    task: str | None = None
    dimensions: int | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str = "right"

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in TASKS:
            raise RequestError(f"task is {self.task!r}: it must be one of {', '.join(TASKS)}", field="task")
        if self.dimensions is not None and self.dimensions < 1:
            raise RequestError(f"dimensions is {self.dimensions}: it must be at least 1", field="dimensions")
        cut = self.truncate_prompt_tokens
        if cut is not None and cut < 1 and cut != -1:
            raise RequestError(f"truncate_prompt_tokens is {cut}: give -1 (what fits the model) or at least 1", field="truncate_prompt_tokens")
        if self.truncation_side not in ("left", "right"):
            raise RequestError(f"truncation_side is {self.truncation_side!r}: give left or right", field="truncation_side")


def check_pooling(config: PoolingConfig | None, params: PoolingParams | None) -> None:
    """Raise RequestError, naming the field, for a request that a model cannot serve. params None: text is wanted."""
    if params is None:
        if config is not None:
            what = "scores" if config.classifies else "vectors"
            raise RequestError(f"this model gives {what}, no text: ask for {', '.join(config.tasks)} instead, or serve a model that generates", field="model")
        return
    if config is None:
        raise RequestError("this model gives text, no vectors: start it with --runner pooling, or serve an embedding model", field="model")
    if params.task is not None and params.task not in config.tasks:
        raise RequestError(f"task is {params.task!r}: this model does {', '.join(config.tasks)}", field="task")
    _check_dimensions(config, params.dimensions)


def _check_dimensions(config: PoolingConfig, wanted: int | None) -> None:
    if wanted is None or (wanted == config.width and not config.classifies):
        return
    why = f"dimensions is {wanted}, but the vectors of this model have {config.width} elements"
    if config.classifies:
        raise RequestError(f"dimensions is {wanted}, but this model gives scores, no vectors: leave it out", field="dimensions")
    if not config.matryoshka:
        raise RequestError(f"{why} and it was not trained for shorter ones: leave it out, or cut and norm them yourself", field="dimensions")
    if wanted > config.width or (config.dimensions and wanted not in config.dimensions):
        fits = ", ".join(map(str, config.dimensions)) or f"1 to {config.width}"
        raise RequestError(f"{why}: give {fits}", field="dimensions")


def gives_rows(config: PoolingConfig | None, params: PoolingParams) -> bool:
    """True when the answer has a row per token."""
    return config is not None and (config.kind == "all" or params.task in ("token_embed", "token_classify"))
