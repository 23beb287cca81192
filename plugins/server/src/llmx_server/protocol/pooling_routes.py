"""Names of the routes for vectors and scores; /v1/score is /score, /v1/rerank and /v2/rerank are /rerank."""

from __future__ import annotations

from typing import Literal

__all__ = ["CLASSIFY", "COHERE_EMBED", "EMBEDDINGS", "POOLING", "RERANK", "SCORE", "PoolingRoute"]

PoolingRoute = Literal["/v1/embeddings", "/pooling", "/classify", "/score", "/rerank", "/v2/embed"]
EMBEDDINGS: PoolingRoute = "/v1/embeddings"
POOLING: PoolingRoute = "/pooling"
CLASSIFY: PoolingRoute = "/classify"
SCORE: PoolingRoute = "/score"
RERANK: PoolingRoute = "/rerank"
COHERE_EMBED: PoolingRoute = "/v2/embed"
