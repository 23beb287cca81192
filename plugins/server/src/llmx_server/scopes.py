"""Which scopes a path asks for. A path that stands in no list asks for admin: a route added later is closed until it is put here."""

from __future__ import annotations

__all__ = ["scopes_of"]

_ADMIN = frozenset({"admin"})

# scopes that a key must have -> paths, each with everything below it
_PATHS = {
    ("generate",): ("/v1/chat/completions", "/v1/chat/ws", "/v1/completions", "/v1/messages", "/v1/responses"),
    ("embed",): ("/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
    ("generate", "embed"): ("/v1/files", "/v1/batches", "/invocations"),  # their bodies say which it is
    (): ("/v1/models", "/ping", "/tokenize", "/detokenize", "/metrics", "/engine/state", "/openapi.json"),  # any key
}
_BY_PATH = {path: frozenset(scopes) for scopes, paths in _PATHS.items() for path in paths}


def scopes_of(path: str) -> frozenset[str]:
    """The scopes that a key needs for this path (without the root path)."""
    while path:
        if path in _BY_PATH:
            return _BY_PATH[path]
        path = path.rpartition("/")[0]
    return _ADMIN
