"""Every body field of the routes for vectors and scores, as protocol/api_fields.py has them for text. docs/embeddings.md has this table."""

from __future__ import annotations

from typing import Any, get_args

from llmx_server.protocol.api_fields import ApiField, State
from llmx_server.protocol.pooling_routes import PoolingRoute

__all__ = ["POOLING_FIELDS", "pooling_field"]

ALL: tuple[PoolingRoute, ...] = get_args(PoolingRoute)
_VECTORS: tuple[PoolingRoute, ...] = ("/v1/embeddings", "/pooling")
_INPUT: tuple[PoolingRoute, ...] = ("/v1/embeddings", "/pooling", "/classify")
_PAIRS: tuple[PoolingRoute, ...] = ("/score", "/rerank")
_NOT_COHERE: tuple[PoolingRoute, ...] = (*_INPUT, *_PAIRS)
_EMBED: tuple[PoolingRoute, ...] = ("/v2/embed",)
_ACTIVE = "use use_activation"
_NO_MEDIA = "the model reads text only"
_NO_CHAT = "no chat template is applied: send the whole text"


def _field(state: State, name: str, what: str, routes: tuple[PoolingRoute, ...] = ALL, *neutral: Any) -> ApiField:
    return ApiField(name, state, what, routes, neutral)  # type: ignore[arg-type]  # the routes of this table


POOLING_FIELDS: tuple[ApiField, ...] = (
    _field("works", "model", "a served name, or that of a LoRA adapter (404 otherwise); left out: the first model"),
    _field("works", "input", "a string, token ids, or up to 2048 of either; no string empty, ids inside the vocabulary", _INPUT),
    _field("works", "task", "embed, classify, token_embed or token_classify, as the model can; default: the model's own", ("/pooling",)),
    _field("works", "encoding_format", "float (default), or base64: little-endian float32", _VECTORS),
    _field("works", "dimensions", "the vector's first elements, of length 1 again; for models trained for it (matryoshka), else 400", _VECTORS),
    _field("works", "add_special_tokens", "default true: the tokens that the model wants around a text", _INPUT),
    _field("works", "use_activation", "vectors of length 1, scores as probabilities; false: as the model gives them; default: the model's own", _NOT_COHERE),
    _field("works", "truncate_prompt_tokens", "keep so many tokens; -1: as many as the model reads; left out: a longer text is 400", _NOT_COHERE),
    _field("works", "truncation_side", "right (default) or left: which end is cut", _NOT_COHERE),
    _field("works", "request_id", "1 to 128 printable characters: the answer's id is made of it", _NOT_COHERE),
    _field("works", "priority", "a whole number, lower runs earlier; needs --scheduling-policy priority"),
    _field("works", "cache_salt", "up to 128 characters: prefix-cache entries are shared only by requests with the same one", _NOT_COHERE),
    _field("works", "query", "the text that documents are ranked for", ("/rerank",)),
    _field("works", "documents", "up to 2048 texts, or objects with text; /score: the texts that queries are scored against, one or as many", _PAIRS),
    _field("works", "top_n", "at least 1: so many of the best; 0 or left out: all", ("/rerank",)),
    _field("works", "return_documents", "default true: each result has its document", ("/rerank",)),
    _field("works", "max_tokens_per_query", "at least 1: so many tokens of a query; 0: no limit", _PAIRS),
    _field("works", "max_tokens_per_doc", "at least 1: so many tokens of a document; 0: no limit", _PAIRS),
    _field("works", "queries", "a text or a list; with documents or items: 1 to 1, 1 to many, or as many", ("/score",)),
    _field("works", "items", "other name of documents", ("/score",)),
    _field("works", "data_1", "other name of queries, with data_2", ("/score",)),
    _field("works", "data_2", "other name of documents, with data_1", ("/score",)),
    _field("works", "text_1", "other name of queries, with text_2", ("/score",)),
    _field("works", "text_2", "other name of documents, with text_1", ("/score",)),
    _field("works", "texts", "up to 2048 texts; or inputs", _EMBED),
    _field("works", "inputs", "objects with content: parts of type text; or texts", _EMBED),
    _field("works", "embedding_types", "float (default), base64, binary, ubinary: a list; binary ones have a bit per element", _EMBED),
    _field("works", "output_dimension", "as dimensions of /v1/embeddings", _EMBED),
    _field("works", "truncate", "END (default), START, or NONE: a text that is too long is 400", _EMBED),
    _field("works", "max_tokens", "at least 1: texts are cut to so many tokens, as truncate says", _EMBED),
    _field("ignored", "input_type", "texts go to the model as they are: write its prefix into them", _EMBED),
    _field("ignored", "user", "it describes the caller"),
    _field("ignored", "padding", "rows are computed without padding", _NOT_COHERE, "do_not_pad"),
    _field("refused", "images", _NO_MEDIA, _EMBED, []),
    _field("refused", "messages", "send input; " + _NO_CHAT, _INPUT),
    _field("refused", "chat_template", _NO_CHAT, _NOT_COHERE),
    _field("refused", "chat_template_kwargs", _NO_CHAT, _NOT_COHERE, {}),
    _field("refused", "add_generation_prompt", _NO_CHAT, _NOT_COHERE, False),
    _field("refused", "continue_final_message", _NO_CHAT, _NOT_COHERE, False),
    _field("refused", "instruction", "write it into the query", _PAIRS),
    _field("refused", "rank_fields", "send documents as texts", ("/rerank",), [], ["text"]),
    _field("refused", "max_chunks_per_doc", "documents are not cut into chunks: use max_tokens_per_doc", ("/rerank",)),
    _field("refused", "normalize", _ACTIVE, _NOT_COHERE),
    _field("refused", "activation", _ACTIVE, _NOT_COHERE),
    _field("refused", "softmax", _ACTIVE, _NOT_COHERE),
    _field("refused", "embed_dtype", "elements are float32", _VECTORS, "float32"),
    _field("refused", "endianness", "base64 is little-endian", _VECTORS, "native", "little"),
    _field("refused", "data", "there are no I/O plugins: send input", ("/pooling",)),
    _field("refused", "mm_processor_kwargs", _NO_MEDIA, _NOT_COHERE, {}),
    _field("refused", "media_io_kwargs", _NO_MEDIA, _NOT_COHERE, {}),
)

_BY_NAME = {(route, field.name): field for field in POOLING_FIELDS for route in field.routes}


def pooling_field(route: Any, name: str) -> ApiField | None:
    """The entry of a field; None for one that stands in no row of this route."""
    return _BY_NAME.get((route, name))
