"""Request bodies in /openapi.json. Handlers read bodies themselves, so the schema is given by hand."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

__all__ = ["json_body"]


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads `model`. The models are flat, so their schema stands alone."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}
