"""What a caller gets back of a model that gives vectors or scores, and how the engine's news become it."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from llmx.engine.messages import Abort, SeqOutput
from llmx.errors import RequestFailed

if TYPE_CHECKING:  # a server of a model that gives text needs no numpy
    import numpy as np

__all__ = [
    "Answered",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "PoolingOutput",
    "PoolingProcessor",
    "PoolingRequestOutput",
    "ScoringOutput",
    "ScoringRequestOutput",
    "as_json",
    "similarity",
]


def as_json(data: np.ndarray, encoding: str) -> Any:
    """Numbers as lists (float), their little-endian float32 bytes (base64), or a bit per element, the first one highest, as bytes: of a
    vector as numbers 0..255 (ubinary) or -128..127 (binary).
    """
    if encoding == "base64":
        return base64.b64encode(data.astype("<f4").tobytes()).decode()
    if encoding in ("binary", "ubinary"):
        import numpy as np

        bits = np.packbits(data > 0).astype(np.int16)
        return (bits - 128 if encoding == "binary" else bits).tolist()
    return data.tolist()


def similarity(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of two vectors; of two tables of token vectors the sum of each row's best match (MaxSim)."""
    import numpy as np

    if a.ndim == 1:
        return float(np.dot(a, b) / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12))
    return float((a @ b.T).max(axis=1).sum())


@dataclass(slots=True)
class PoolingOutput:
    """data: f32 [W], or [tokens, W] where every token has a row."""

    data: np.ndarray


@dataclass(slots=True)
class EmbeddingOutput:
    """The vector of one text."""

    embedding: list[float]


@dataclass(slots=True)
class ClassificationOutput:
    """A number per label; probabilities unless use_activation was False."""

    probs: list[float]


@dataclass(slots=True)
class ScoringOutput:
    """How well two texts go together."""

    score: float


Rows = TypeVar("Rows")


@dataclass(slots=True)
class Answered(Generic[Rows]):
    """The answer to one request. prompt_token_ids: of its text, of a pair, or of two texts one after the other."""

    request_id: str
    outputs: Rows
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


class PoolingRequestOutput(Answered[PoolingOutput]):
    """What LLM.encode gives for one text."""


class EmbeddingRequestOutput(Answered[EmbeddingOutput]):
    """What LLM.embed gives for one text."""


class ClassificationRequestOutput(Answered[ClassificationOutput]):
    """What LLM.classify gives for one text."""


class ScoringRequestOutput(Answered[ScoringOutput]):
    """What LLM.score gives for one pair."""


class PoolingProcessor:
    """One request's news, in the place of an OutputProcessor: there is one output, at the end. whole: a row per token stays two-dimensional."""

    def __init__(self, request_id: str, prompt_ids: list[int], *, whole: bool) -> None:
        self.request_id = request_id
        self._ids, self._whole = prompt_ids, whole
        self._data: np.ndarray | None = None
        self._error: str | None = None
        self._cached = 0
        self.news = False

    @property
    def finished(self) -> bool:
        """True once it has ended."""
        return self._data is not None or self._error is not None

    def take(self, item: SeqOutput) -> Abort | None:
        """Take in the news; nothing has to be aborted."""
        self._cached = item.num_cached
        if item.pooled is not None and item.error is None:
            import numpy as np

            rows = np.frombuffer(item.pooled, np.float32).reshape(item.pooled_rows, -1)
            self._data = rows if self._whole else rows[0]
        elif item.finish_reason is not None:
            self._error = item.error or f"the engine ended this request ({item.finish_reason})"
        self.news = self.news or self.finished
        return None

    def fail(self, message: str) -> None:
        """End it with an error, unless it has ended."""
        if not self.finished:
            self._error, self.news = message, True

    def drain(self) -> PoolingRequestOutput:
        """The answer. Raises RequestFailed when the engine ended the request with an error."""
        self.news = False
        if self._data is None:
            raise RequestFailed(self._error or "the request has not ended")
        return PoolingRequestOutput(self.request_id, PoolingOutput(self._data), self._ids, self._cached)
