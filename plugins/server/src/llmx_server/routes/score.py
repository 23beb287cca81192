"""POST /score and /rerank, under every name that clients use: how well texts go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmx.engine.pooling_outputs import PoolingRequestOutput, similarity
from llmx.errors import RequestError
from llmx_server.errors import JsonResponse
from llmx_server.pooling_jobs import PoolingJob, pair_job, pooling_config, run_jobs, text_job, token_usage
from llmx_server.protocol.extra_fields import check_extra, warning_header
from llmx_server.protocol.pooling import PairFields, RerankRequest, ScoreRequest
from llmx_server.protocol.pooling_fields import pooling_field
from llmx_server.protocol.pooling_routes import RERANK, SCORE
from llmx_server.protocol.usage import response_head
from llmx_server.routing import Router
from llmx_server.served_models import open_body
from llmx_server.serving import Serving

__all__ = ["router"]

router = Router()


@router.post(SCORE, body=ScoreRequest)
@router.post("/v1/score", body=ScoreRequest)
async def create_score(request: Request) -> Response:
    """A score for each pair of texts."""
    serving, body = await open_body(request, ScoreRequest)
    model = serving.model_name(body.model)
    headers = warning_header(check_extra(SCORE, body.model_extra, pooling_field))
    head = response_head("score", "list", model, serving.fingerprint, **body.named())
    scores, outputs = await _scores(request, serving, body, body.pairs())
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    return JsonResponse({**head, "data": data, "usage": token_usage(outputs)}, headers=headers)


@router.post(RERANK, body=RerankRequest)
@router.post("/v1/rerank", body=RerankRequest)
@router.post("/v2/rerank", body=RerankRequest)
async def create_ranking(request: Request) -> Response:
    """The documents, those that fit the query best first; of equal ones the earlier."""
    serving, body = await open_body(request, RerankRequest)
    model = serving.model_name(body.model)
    headers = warning_header(check_extra(RERANK, body.model_extra, pooling_field))
    head = response_head("rerank", "list", model, serving.fingerprint, **body.named())
    pairs = body.pairs()
    scores, outputs = await _scores(request, serving, body, pairs)
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: body.top_n or None]
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in order]
    if body.return_documents:
        results = [{**result, "document": {"text": pairs[result["index"]][1]}} for result in results]
    usage = token_usage(outputs)
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}, "tokens": {"input_tokens": usage["prompt_tokens"]}}
    return JsonResponse({"id": head["id"], "model": model, "usage": usage, "results": results, "meta": meta}, headers=headers)


async def _scores(
    request: Request, serving: Serving, body: PairFields, pairs: Sequence[tuple[str, str]]
) -> tuple[list[float], list[PoolingRequestOutput]]:
    """A score per pair: a one-label classifier's over both texts, else the cosine of their vectors, each computed once."""
    params, limits = body.params(), body.limits()
    config = pooling_config(serving, params)
    if config.classifies:
        if len(config.labels) != 1:
            raise RequestError(f"this model has {len(config.labels)} labels, and scores need one: use /classify", field="model")
        one = replace(params, task="classify")
        outputs = await run_jobs(request, serving, body, [await pair_job(serving, pair, one, limits, f"documents[{i}]") for i, pair in enumerate(pairs)])
        return [float(output.outputs.data[0]) for output in outputs], outputs
    params = replace(params, task="embed" if "embed" in config.tasks else "token_embed")
    jobs: dict[tuple[str, int], PoolingJob] = {}
    for i, pair in enumerate(pairs):
        for text, limit, place in zip(pair, limits, ("queries", f"documents[{i}]"), strict=True):
            if (text, limit) not in jobs:
                jobs[text, limit] = await text_job(serving, text, params, place, limit=limit)
    answers = dict(zip(jobs, await run_jobs(request, serving, body, list(jobs.values())), strict=True))
    first, second = limits
    scores = [similarity(answers[a, first].outputs.data, answers[b, second].outputs.data) for a, b in pairs]
    return scores, list(answers.values())
