"""Request bodies in /openapi.json. Handlers read bodies themselves, so the schema is given by hand."""

from __future__ import annotations

from collections.abc import ItemsView
from typing import Any

from pydantic import BaseModel

__all__ = ["json_body"]


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads `model`. The models are flat, so their schema stands alone."""
    return _Body(model)


class _Body(dict[str, Any]):
    """Makes the schema when /openapi.json is asked for: it takes longer than any other part of the server's start."""

    def __init__(self, model: type[BaseModel]) -> None:
        super().__init__(requestBody={"required": True})
        self._model = model

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]  # what FastAPI merges into the document
        schema = self._model.model_json_schema()
        return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}.items()
