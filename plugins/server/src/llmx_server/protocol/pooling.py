"""Bodies of the routes for vectors and scores."""

from __future__ import annotations

from typing import Any

from llmx.errors import RequestError
from llmx.pooling_params import PoolingParams
from llmx_server.body import BodyModel, shorten, whole
from llmx_server.protocol.sampling import checked_request_id, checked_salt

__all__ = [
    "MAX_INPUTS",
    "ClassifyRequest",
    "EmbeddingRequest",
    "InputFields",
    "PairFields",
    "PoolingFields",
    "PoolingRequest",
    "RerankRequest",
    "ScoreRequest",
    "texts_of",
]

MAX_INPUTS = 2048  # OpenAI's limit for the texts of one request
_SIDES = {"queries": ("queries", "data_1", "text_1"), "documents": ("documents", "items", "data_2", "text_2")}


class PoolingFields(BodyModel):
    """Fields of all routes. null is the same as absent; types are strict."""

    model: str | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str = "right"
    request_id: str | None = None
    priority: int = 0
    cache_salt: str | None = None

    def params(self, task: str | None = None, dimensions: int | None = None) -> PoolingParams:
        """What the engine is asked for. Raises RequestError naming the field."""
        return PoolingParams(task, dimensions, self.use_activation, self.truncate_prompt_tokens, self.truncation_side)

    def salt(self) -> str:
        """The cache salt, checked."""
        return checked_salt(self.cache_salt)

    def named(self) -> dict[str, str]:
        """{"request_id": ...} where the request names its answer. Raises RequestError for what is no name."""
        return {} if self.request_id is None else {"request_id": checked_request_id(self.request_id)}


class InputFields(PoolingFields):
    """Routes that take texts one by one."""

    input: Any
    add_special_tokens: bool = True

    def inputs(self) -> list[str | list[int]]:
        """Each text, or its token ids. Raises RequestError for any other shape, for nothing and for too many."""
        value = self.input
        if isinstance(value, str) or (isinstance(value, list) and value and type(whole(value[0])) is int):
            value = [value]
        if not isinstance(value, list) or not value:
            shapes = "a string, a list of strings, a list of token ids or a list of such lists"
            raise RequestError(f"input is {shorten(value)}: it must be {shapes}, and not empty", field="input")
        if len(value) > MAX_INPUTS:
            raise RequestError(f"input has {len(value)} texts: at most {MAX_INPUTS} are allowed in one request", field="input")
        return [_text_or_ids(item, f"input[{index}]") for index, item in enumerate(value)]


class EmbeddingRequest(InputFields):
    """A body of /v1/embeddings."""

    encoding_format: str = "float"
    dimensions: int | None = None


class PoolingRequest(EmbeddingRequest):
    """A body of /pooling."""

    task: str | None = None


class ClassifyRequest(InputFields):
    """A body of /classify."""


class PairFields(PoolingFields):
    """Routes that compare texts."""

    documents: Any = None
    max_tokens_per_query: int = 0
    max_tokens_per_doc: int = 0

    def limits(self) -> tuple[int, int]:
        """Tokens of a query and of a document; 0: no limit. Raises RequestError."""
        for name in ("max_tokens_per_query", "max_tokens_per_doc"):
            if getattr(self, name) < 0:
                raise RequestError(f"{name} is {getattr(self, name)}: it must be 0 (no limit) or more", field=name)
        return self.max_tokens_per_query, self.max_tokens_per_doc


class ScoreRequest(PairFields):
    """A body of /score. Either side has several names."""

    queries: Any = None
    items: Any = None
    data_1: Any = None
    data_2: Any = None
    text_1: Any = None
    text_2: Any = None

    def pairs(self) -> list[tuple[str, str]]:
        """All pairs, in order. Raises RequestError unless it is one to one, one to many or as many to as many."""
        queries, documents = self._side("queries"), self._side("documents")
        if len(queries) not in (1, len(documents)):
            why = f"{len(queries)} queries and {len(documents)} documents"
            raise RequestError(f"{why}: give one query for all documents, or as many of both", field="queries")
        return list(zip(queries * len(documents) if len(queries) == 1 else queries, documents, strict=True))

    def _side(self, side: str) -> list[str]:
        given = [name for name in _SIDES[side] if getattr(self, name) is not None]
        if len(given) != 1:
            why = f"exactly one of {', '.join(_SIDES[side])} is needed, found {', '.join(given) or 'none'}"
            raise RequestError(f"{side}: {why}", field=given[0] if given else side)
        value = getattr(self, given[0])
        return texts_of([value] if isinstance(value, str | dict) else value, given[0])


class RerankRequest(PairFields):
    """A body of /rerank."""

    query: Any
    top_n: int = 0
    return_documents: bool = True

    def pairs(self) -> list[tuple[str, str]]:
        """The query with each document. Raises RequestError."""
        if self.top_n < 0:
            raise RequestError(f"top_n is {self.top_n}: it must be 0 (all) or more", field="top_n")
        (query,) = texts_of([self.query], "query")
        return [(query, document) for document in texts_of(self.documents, "documents")]


def texts_of(value: Any, field: str) -> list[str]:
    """A list of strings, or of objects with a text. Raises RequestError."""
    if not isinstance(value, list) or not value:
        raise RequestError(f"{field} is {shorten(value)}: it must be a list of texts, and not empty", field=field)
    if len(value) > MAX_INPUTS:
        raise RequestError(f"{field} has {len(value)} texts: at most {MAX_INPUTS} are allowed in one request", field=field)
    texts: list[Any] = [item.get("text") if isinstance(item, dict) else item for item in value]
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise RequestError(f"{field}[{index}] is {shorten(value[index])}: it must be a string, or an object with a text", field=field)
    return texts


def _text_or_ids(item: Any, place: str) -> str | list[int]:
    if isinstance(item, str):
        if not item:
            raise RequestError(f"{place} is empty: it must have at least one character", field="input")
        return item
    ids = [whole(token) for token in item] if isinstance(item, list) else []
    if not ids or any(type(token) is not int for token in ids):
        raise RequestError(f"{place} is {shorten(item)}: it must be a string or a list of token ids", field="input")
    return ids
