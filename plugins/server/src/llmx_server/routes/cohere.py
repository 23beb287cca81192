"""POST /v2/embed: vectors as Cohere's clients ask for them."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmx.engine.pooling_outputs import as_json
from llmx.errors import RequestError
from llmx.pooling_params import PoolingParams
from llmx_server.body import BodyModel, shorten
from llmx_server.errors import JsonResponse
from llmx_server.pooling_jobs import pooling_config, run_jobs, text_job, token_usage
from llmx_server.protocol.extra_fields import check_extra, warning_header
from llmx_server.protocol.pooling import texts_of
from llmx_server.protocol.pooling_fields import pooling_field
from llmx_server.protocol.pooling_routes import COHERE_EMBED
from llmx_server.protocol.usage import response_head
from llmx_server.routing import Router
from llmx_server.served_models import open_body

__all__ = ["CohereEmbedRequest", "router"]

router = Router()
_TYPES = ("float", "base64", "binary", "ubinary")


class CohereEmbedRequest(BodyModel):
    """A body of /v2/embed."""

    model: str | None = None
    texts: list[Any] | None = None
    inputs: list[Any] | None = None
    embedding_types: list[str] = ["float"]
    output_dimension: int | None = None
    truncate: str = "END"
    max_tokens: int | None = None
    priority: int = 0

    def all_texts(self) -> list[str]:
        """Texts of texts or inputs. Raises RequestError unless exactly one is given."""
        if (self.texts is None) == (self.inputs is None):
            raise RequestError("exactly one of texts and inputs must be given", field="texts")
        if self.texts is not None:
            return texts_of(self.texts, "texts")
        return texts_of([_joined(item, f"inputs[{i}]") for i, item in enumerate(self.inputs or [])], "inputs")

    def params(self, max_model_len: int) -> PoolingParams:
        """What the engine is asked for. Raises RequestError naming the field."""
        if self.truncate not in ("NONE", "START", "END"):
            raise RequestError(f"truncate is {shorten(self.truncate)}: it must be NONE, START or END", field="truncate")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(f"max_tokens is {self.max_tokens}: it must be at least 1", field="max_tokens")
        wrong = next((kind for kind in self.embedding_types if kind not in _TYPES), None)
        if wrong is not None or not self.embedding_types:
            raise RequestError(f"embedding_types has {shorten(wrong)}: give a list of {', '.join(_TYPES)}", field="embedding_types")
        cut = None if self.truncate == "NONE" else min(self.max_tokens or max_model_len, max_model_len)
        return PoolingParams("embed", self.output_dimension, None, cut, "left" if self.truncate == "START" else "right")


def _joined(item: Any, place: str) -> str:
    """The text parts of one input, joined by a newline."""
    parts = item.get("content") if isinstance(item, dict) else None
    if not isinstance(parts, list) or not all(isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts):
        raise RequestError(f"{place} is {shorten(item)}: it must be an object whose content is a list of parts of type text", field="inputs")
    return "\n".join(part["text"] for part in parts)


@router.post(COHERE_EMBED, body=CohereEmbedRequest)
async def create_cohere_embeddings(request: Request) -> Response:
    """The vector of each text, in every type that was asked for."""
    serving, body = await open_body(request, CohereEmbedRequest)
    model = serving.model_name(body.model)
    headers = warning_header(check_extra(COHERE_EMBED, body.model_extra, pooling_field))
    params = body.params(serving.engine.info.max_model_len)
    pooling_config(serving, params)
    texts = body.all_texts()
    name = "inputs" if body.texts is None else "texts"
    jobs = [await text_job(serving, text, params, f"{name}[{i}]") for i, text in enumerate(texts)]
    outputs = await run_jobs(request, serving, None, jobs, body.priority)
    head = response_head("embd", "list", model, serving.fingerprint)
    meta = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": token_usage(outputs)["prompt_tokens"]}}
    shown = {kind: [as_json(output.outputs.data, kind) for output in outputs] for kind in body.embedding_types}
    return JsonResponse({"id": head["id"], "embeddings": shown, "texts": texts, "meta": meta, "response_type": "embeddings_by_type"}, headers=headers)
