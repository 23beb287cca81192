"""The routes for vectors and scores, as one router."""

from __future__ import annotations

from fastapi import APIRouter

from llmx_server.routes import cohere, embeddings, score

__all__ = ["router"]

router = APIRouter()
for _module in (embeddings, score, cohere):
    router.include_router(_module.router)
