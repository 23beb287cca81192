"""POST /v1/embeddings, /pooling and /classify: something for each text."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmx.engine.pooling_outputs import as_json
from llmx.errors import RequestError
from llmx.pooling_params import PoolingParams
from llmx_server.body import shorten
from llmx_server.errors import JsonResponse
from llmx_server.pooling_jobs import pooling_config, run_jobs, text_job, token_usage
from llmx_server.protocol.extra_fields import check_extra, warning_header
from llmx_server.protocol.pooling import ClassifyRequest, EmbeddingRequest, InputFields, PoolingRequest
from llmx_server.protocol.pooling_fields import pooling_field
from llmx_server.protocol.pooling_routes import CLASSIFY, EMBEDDINGS, POOLING
from llmx_server.protocol.usage import response_head
from llmx_server.routing import Router
from llmx_server.served_models import open_body
from llmx_server.serving import Serving

__all__ = ["router"]

router = Router()


@router.post(EMBEDDINGS, body=EmbeddingRequest)
async def create_embeddings(request: Request) -> Response:
    """The vector of each text."""
    serving, body = await open_body(request, EmbeddingRequest)
    params = body.params("embed", body.dimensions)
    pooling_config(serving, params)
    return await _each(request, serving, body, params, EMBEDDINGS, ("embd", "embedding", "embedding"))


@router.post(POOLING, body=PoolingRequest)
async def create_pooling(request: Request) -> Response:
    """What the model gives for each text: a vector, scores, or one of these per token."""
    serving, body = await open_body(request, PoolingRequest)
    params = body.params(body.task, body.dimensions)
    pooling_config(serving, params)
    return await _each(request, serving, body, params, POOLING, ("pool", "pooling", "data"))


@router.post(CLASSIFY, body=ClassifyRequest)
async def create_classification(request: Request) -> Response:
    """The label of each text, and a number for every label."""
    serving, body = await open_body(request, ClassifyRequest)
    params = body.params("classify")
    labels = pooling_config(serving, params).labels

    def entry(index: int, data: Any) -> dict[str, Any]:
        return {"index": index, "label": labels[int(data.argmax())], "probs": data.tolist(), "num_classes": len(labels)}

    return await _answer(request, serving, body, params, CLASSIFY, ("classify", "list", entry))


async def _each(request: Request, serving: Serving, body: EmbeddingRequest, params: PoolingParams, route: Any, names: tuple[str, str, str]) -> Response:
    prefix, kind, key = names
    encoding = body.encoding_format
    if encoding not in ("float", "base64"):
        raise RequestError(f"encoding_format is {shorten(encoding)}: it must be float or base64", field="encoding_format")

    def entry(index: int, data: Any) -> dict[str, Any]:
        return {"index": index, "object": kind, key: as_json(data, encoding)}

    return await _answer(request, serving, body, params, route, (prefix, "list", entry))


async def _answer(request: Request, serving: Serving, body: InputFields, params: PoolingParams, route: Any, shape: tuple[str, str, Any]) -> Response:
    prefix, kind, entry = shape
    model = serving.model_name(body.model)
    headers = warning_header(check_extra(route, body.model_extra, pooling_field))
    head = response_head(prefix, kind, model, serving.fingerprint, **body.named())
    jobs = [await text_job(serving, text, params, f"input[{i}]", special=body.add_special_tokens) for i, text in enumerate(body.inputs())]
    outputs = await run_jobs(request, serving, body, jobs)
    data = [entry(index, output.outputs.data) for index, output in enumerate(outputs)]
    return JsonResponse({**head, "data": data, "usage": token_usage(outputs)}, headers=headers)
