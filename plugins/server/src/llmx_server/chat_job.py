"""From a chat request to the Job that the engine runs and the form of its answers; every API that has messages goes through here."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from llmx.answers.budget import ReasoningCount
from llmx.record import record
from llmx_server.answer_form import AnswerForm
from llmx_server.jobs import Job, make_job
from llmx_server.protocol.api_fields import CHAT
from llmx_server.protocol.beams import beams_of
from llmx_server.protocol.chat import ChatRequest
from llmx_server.protocol.extra_fields import check_extra
from llmx_server.protocol.usage import response_head
from llmx_server.serving import Serving

__all__ = ["Chat", "chat_job", "open_chat"]


@record
class Chat:
    """A body of /v1/chat/completions, checked: what runs and what its answers share."""

    job: Job
    form: AnswerForm
    head: dict[str, Any]
    phrases: list[str]  # what is ignored, for the Warning header
    beside: dict[str, Any]  # what the answer tells of the prompt


async def open_chat(serving: Serving, body: ChatRequest, kind: str) -> Chat:
    """Check a body. kind: the `object` of its answers. Raises RequestError."""
    model = serving.model_name(body.model)
    phrases = [*check_extra(CHAT, body.model_extra), *body.without_effect()]
    body.usage_in_stream()
    job, form, more = await chat_job(serving, body)
    beside: dict[str, Any] = {"prompt_token_ids": job.token_ids} if body.return_token_ids else {}
    if body.return_prompt_text:
        beside["prompt_text"] = job.text
    return Chat(job, form, response_head("chatcmpl", kind, model, serving.fingerprint, **body.head_fields()), [*phrases, *more], beside)


async def chat_job(serving: Serving, body: ChatRequest) -> tuple[Job, AnswerForm, list[str]]:
    """(job, form, phrases for the Warning header). Raises RequestError for whatever the model or the engine cannot do."""
    params = body.params(serving.engine.info.vocab_size, serving.engine.sampling_defaults)
    serving.check_priority(params.priority)
    tools = body.wanted_tools()
    variables = await serving.template_variables(body.chat_template, tools=tools is not None)
    reads_tools = None if body.chat_template is None else "tools" in variables
    arguments, phrases = serving.forms.arguments(body.template_arguments(), tools, reads_tools=reads_tools)
    prompt = await serving.render(arguments, body.chat_template)
    form, params = serving.forms.form(tools, prompt, params, show_reasoning=body.include_reasoning)
    special, salt, beams = body.add_special_tokens, body.salt(), beams_of(body, params)
    job = await make_job(serving, prompt, params, add_special_tokens=special, max_tokens_given=True, cache_salt=salt, beams=beams)
    if serving.forms.reasoning is not None:
        job = replace(job, reasoning=partial(ReasoningCount, serving.forms.reasoning, prompt, serving.engine.tokenizer.token_bytes))
    return job, form, [*phrases, *body.unread(variables)]
