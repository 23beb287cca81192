"""The routes for vectors and scores, as one router."""

from __future__ import annotations

from llmx_server.routes import cohere, embeddings, score
from llmx_server.routing import Router

__all__ = ["router"]

router = Router()
for _module in (embeddings, score, cohere):
    router.routes += _module.router.routes
