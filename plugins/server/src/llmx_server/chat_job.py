"""From a chat request to the Job that the engine runs and the form of its answers; every API that has messages goes through here."""

from __future__ import annotations

from llmx_server.answer_form import AnswerForm
from llmx_server.jobs import Job, make_job
from llmx_server.protocol.chat import ChatRequest
from llmx_server.serving import Serving

__all__ = ["chat_job"]


async def chat_job(serving: Serving, body: ChatRequest) -> tuple[Job, AnswerForm, list[str]]:
    """(job, form, phrases for the Warning header). Raises RequestError for whatever the model or the engine cannot do."""
    params = body.params(serving.engine.info.vocab_size, serving.engine.sampling_defaults)
    serving.check_priority(params.priority)
    tools = body.wanted_tools()
    arguments, phrases = serving.forms.arguments(body.template_arguments(), tools)
    prompt = serving.render(arguments)
    form, params = serving.forms.form(tools, prompt, params, show_reasoning=body.include_reasoning)
    job = await make_job(serving, prompt, params, add_special_tokens=body.add_special_tokens, max_tokens_given=True, cache_salt=body.salt())
    return job, form, [*phrases, *body.unread(serving.template_variables())]
