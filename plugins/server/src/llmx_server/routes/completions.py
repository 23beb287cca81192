"""POST /v1/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from llmx_server.completion_chunks import completion_choices, completion_events
from llmx_server.disconnect import until_disconnect
from llmx_server.errors import JsonResponse
from llmx_server.frames import Frames
from llmx_server.generation import collect
from llmx_server.jobs import Job, make_job
from llmx_server.protocol.api_fields import COMPLETIONS
from llmx_server.protocol.beams import beams_of
from llmx_server.protocol.completions import CompletionRequest
from llmx_server.protocol.extra_fields import check_extra, warning_header
from llmx_server.protocol.usage import response_head, usage_of
from llmx_server.routing import Router
from llmx_server.served_models import open_body
from llmx_server.serving import Serving
from llmx_server.sse import EventStream

__all__ = ["router"]

router = Router()


@router.post(COMPLETIONS, body=CompletionRequest)
async def create_completion(request: Request) -> Response:
    """Continue one or several prompts."""
    serving, body = await open_body(request, CompletionRequest)
    serving.check_generates()
    model = serving.model_name(body.model)
    headers = warning_header([*check_extra(COMPLETIONS, body.model_extra), *body.without_effect()])
    usage_at_end, _ = body.usage_in_stream()
    head = response_head("cmpl", "text_completion", model, serving.fingerprint, **body.head_fields())
    jobs = await _jobs(serving, body)
    if body.stream:
        return EventStream(completion_events(serving, body, jobs, Frames(head, with_usage=usage_at_end)), headers)
    answers = await until_disconnect(request.receive, collect(serving, jobs))
    return JsonResponse({**head, "choices": completion_choices(serving, body, answers), "usage": usage_of(answers)}, headers=headers)


async def _jobs(serving: Serving, body: CompletionRequest) -> list[Job]:
    """All prompts, each checked, before the first runs."""
    params = body.params(serving.engine.info.vocab_size, serving.engine.sampling_defaults)
    serving.check_priority(params.priority)
    special, given, salt, beams = body.add_special_tokens, body.max_tokens is not None, body.salt(), beams_of(body, params)
    return [
        await make_job(serving, prompt, params, index=index, add_special_tokens=special, max_tokens_given=given, cache_salt=salt, beams=beams)
        for index, prompt in enumerate(body.prompts())
    ]
