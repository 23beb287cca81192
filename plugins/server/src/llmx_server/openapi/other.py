"""The shapes of vectors, scores, tokens, models and the server's own state."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from llmx_server.openapi.answers import CachedTokens, Head

__all__ = [
    "Classes",
    "CohereVectors",
    "Model",
    "Models",
    "Pooled",
    "Ranking",
    "Scores",
    "State",
    "Status",
    "Text",
    "Tokens",
    "Vectors",
    "Version",
]


class PoolingUsage(TypedDict):
    """Token counts; nothing is generated."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: Literal[0]
    prompt_tokens_details: CachedTokens


class Vector(TypedDict):
    """The vector of a text: numbers, or base64 of little-endian float32."""

    index: int
    object: Literal["embedding"]
    embedding: list[float] | str


class Vectors(Head):
    """The answer of /v1/embeddings."""

    object: Literal["list"]
    data: list[Vector]
    usage: PoolingUsage


class PooledText(TypedDict):
    """What the model gives for a text: a vector or scores, or a list of these, one for each token."""

    index: int
    object: Literal["pooling"]
    data: list[float] | list[list[float]] | str


class Pooled(Head):
    """The answer of /pooling."""

    object: Literal["list"]
    data: list[PooledText]
    usage: PoolingUsage


class Class(TypedDict):
    """The label of a text, and a number for every label."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classes(Head):
    """The answer of /classify."""

    object: Literal["list"]
    data: list[Class]
    usage: PoolingUsage


class Score(TypedDict):
    """How well a pair of texts goes together."""

    index: int
    object: Literal["score"]
    score: float


class Scores(Head):
    """The answer of /score."""

    object: Literal["list"]
    data: list[Score]
    usage: PoolingUsage


class Document(TypedDict):
    """A document."""

    text: str


class Ranked(TypedDict):
    """A document's place in the request, and how well it fits."""

    index: int
    relevance_score: float
    document: NotRequired[Document]


class Ranking(TypedDict):
    """The answer of /rerank: the best first. meta: for clients of Cohere."""

    id: str
    model: str
    usage: PoolingUsage
    results: list[Ranked]
    meta: dict[str, Any]


class CohereVectors(TypedDict):
    """The answer of /v2/embed: vectors by type."""

    id: str
    embeddings: dict[str, list[list[float] | list[int] | str]]
    texts: list[str]
    meta: dict[str, Any]
    response_type: Literal["embeddings_by_type"]


class Tokens(TypedDict):
    """Token ids of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Text(TypedDict):
    """The text of token ids."""

    prompt: str


class Model(TypedDict):
    """A name under which a model is served. root: the model's own name."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int


class Models(TypedDict):
    """All names."""

    object: Literal["list"]
    data: list[Model]


class Status(TypedDict):
    """Whether the server works. models: each of several. detail: what was warned of when the engines started."""

    status: str
    reason: str
    models: NotRequired[dict[str, str]]
    detail: NotRequired[list[str]]


class Version(TypedDict):
    """The version of the server."""

    version: str


class State(TypedDict):
    """What an engine does now; engine is null while it loads, and when it is dead. Times in seconds, sizes in tokens and bytes."""

    version: str
    phase: Literal["loading", "ready", "draining", "dead"]
    model: str
    models: list[str]
    time: float
    started: int
    info: dict[str, Any]
    engine: dict[str, Any] | None
    latency: dict[str, Any]
