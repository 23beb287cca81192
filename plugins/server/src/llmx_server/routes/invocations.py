"""POST /invocations: SageMaker's one path for everything; what the body has says which route answers it."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from llmx.errors import RequestError
from llmx_server.body import read_bytes
from llmx_server.protocol.api_fields import CHAT, COMPLETIONS, RESPONSES
from llmx_server.protocol.pooling_routes import EMBEDDINGS, RERANK, SCORE
from llmx_server.routing import Router
from llmx_server.served_models import models_of

__all__ = ["router"]

router = Router()

# The first whose fields are all there. `input` is a text to answer, or to make vectors of where the model does that.
_PATHS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"messages"}), CHAT),
    (frozenset({"prompt"}), COMPLETIONS),
    (frozenset({"query", "documents"}), RERANK),
    (frozenset({"queries", "documents"}), SCORE),
    (frozenset({"queries", "items"}), SCORE),
    (frozenset({"text_1", "text_2"}), SCORE),
    (frozenset({"data_1", "data_2"}), SCORE),
)


@router.post("/invocations")
async def invoke(request: Request) -> Response:
    """Answer a body of chat, completions, responses, embeddings, score or rerank."""
    models = models_of(request)
    models.host.check_ready()
    data = await read_bytes(request)
    try:
        given = from_json(data)
    except ValueError as error:
        raise RequestError(f"the body is not valid JSON: {str(error)[:200]}") from error
    names = set(given) if isinstance(given, dict) else set()
    path = next((one for wanted, one in _PATHS if wanted <= names), None)
    if path is None and "input" in names:
        path = EMBEDDINGS if models.find(_model_of(given)).engine.info.pooling else RESPONSES
    if path is None:
        raise RequestError("the body fits no route: it must have messages, prompt, input, or query and documents, or text_1 and text_2")
    return _Forwarded(request, path, data)


def _model_of(given: dict[str, Any]) -> str | None:
    name = given.get("model")
    return name if isinstance(name, str) else None  # of another type: the route says so


class _Forwarded(Response):
    """The answer of another route to the same body."""

    def __init__(self, request: Request, path: str, data: bytes) -> None:
        super().__init__()
        self._router, self._path, self._data = request.app.router, path, data

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it."""
        parts: list[Message] = [{"type": "http.request", "body": self._data, "more_body": False}]

        async def again() -> Message:
            return parts.pop() if parts else await receive()

        await self._router({**scope, "path": self._path, "raw_path": self._path.encode()}, again, send)
