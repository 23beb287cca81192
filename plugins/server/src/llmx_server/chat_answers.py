"""Whole answers to chat: choices with their messages, and usage."""

from __future__ import annotations

from typing import Any

from llmx_server.answer_form import AnswerForm, CallIds, finish_reason, message_of
from llmx_server.generation import Answers
from llmx_server.protocol.chat import ChatRequest, chat_choice
from llmx_server.protocol.logprobs import prompt_logprobs
from llmx_server.protocol.usage import usage_of

__all__ = ["choices_of", "whole_of"]


def choices_of(body: ChatRequest, answers: Answers, form: AnswerForm) -> list[dict[str, Any]]:
    """The finished choices of one conversation."""
    echo = body.echoed()
    choices = []
    for answer in answers.in_order:
        logprobs = body.shown_logprobs(answer.logprobs or []) if body.logprobs else None
        read = form.read(answer.text)
        read.content = echo + read.content
        reason = finish_reason(answer.finish_reason, bool(read.calls), form.tools)
        choices.append(chat_choice(answer, message_of(read, CallIds(form.ids)), reason, logprobs, with_ids=body.return_token_ids))
    return choices


def whole_of(body: ChatRequest, answers: Answers, form: AnswerForm) -> dict[str, Any]:
    """What an answer to one conversation says beside its head."""
    whole: dict[str, Any] = {"choices": choices_of(body, answers, form), "usage": usage_of([answers])}
    if body.prompt_logprobs is not None and answers.output:
        whole["prompt_logprobs"] = prompt_logprobs(answers.output.prompt_logprobs, body.prompt_logprobs)
    return whole
