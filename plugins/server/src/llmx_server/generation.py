"""From prompts to engine outputs: everything is checked before anything runs, several prompts run at once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

from llmx.engine.outputs import CompletionOutput, RequestOutput
from llmx.engine.request_input import cut_prompt
from llmx.errors import EngineDead, PromptTooLong, QueueTimeout, RequestError, RequestTimeout
from llmx.sampling_params import SamplingParams
from llmx_server.errors import GenerationFailed
from llmx_server.pacing import paced
from llmx_server.serving import Serving

__all__ = ["Answers", "Job", "collect", "fit", "make_job", "stream"]

_AHEAD = 4  # outputs per prompt that may wait for a slow reader when several prompts share one response


@dataclass(slots=True, frozen=True)
class Job:
    """One prompt of an HTTP request, checked and ready for the engine."""

    index: int  # of the prompt in its request
    text: str  # the prompt as text
    token_ids: list[int]
    params: SamplingParams
    request_id: str  # the engine's own id, unique
    cache_salt: str = ""


class Answers:
    """The latest state of each of a job's n answers; engine outputs are cumulative, so the last one has it all."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.by_index: dict[int, CompletionOutput] = {}
        self.output: RequestOutput | None = None

    def update(self, output: RequestOutput) -> None:
        """Takes over an output. Raises GenerationFailed when an answer ended with an error."""
        self.output = output
        for answer in output.outputs:
            if answer.finish_reason in ("error", "abort"):
                raise GenerationFailed(answer.error or f"the engine ended this request ({answer.finish_reason})")
            self.by_index[answer.index] = answer

    @property
    def in_order(self) -> list[CompletionOutput]:
        """The answers by index."""
        return [self.by_index[index] for index in sorted(self.by_index)]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt; counted once."""
        return len(self.job.token_ids)

    @property
    def completion_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(len(answer.token_ids) for answer in self.by_index.values())

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache had."""
        return self.output.num_cached_tokens if self.output else 0


async def make_job(
    serving: Serving,
    prompt: str | list[int],
    params: SamplingParams,
    *,
    index: int = 0,
    add_special_tokens: bool,
    max_tokens_given: bool,
    cache_salt: str = "",
) -> Job:
    """A Job that the engine can take. Raises RequestError for an empty or over-long prompt or a token id out of range."""
    vocab_size = serving.engine.info.vocab_size
    text: str | None = None
    if isinstance(prompt, str):
        token_ids = await serving.encode(prompt, add_special_tokens=add_special_tokens)
        text = prompt
    else:
        bad = next((token for token in prompt if not 0 <= token < vocab_size), None)
        if bad is not None:
            raise RequestError(f"prompt holds token id {str(bad)[:40]}, but the vocabulary has {vocab_size} tokens (0..{vocab_size - 1})", field="prompt")
        token_ids = prompt
    if len(cut := cut_prompt(token_ids, params, serving.engine.info.max_model_len)) < len(token_ids):
        token_ids, text = cut, None
    if not token_ids:
        raise RequestError("the prompt is empty: it must have at least one token", field="prompt")
    fitted = fit(params, len(token_ids), serving.engine.info.max_model_len, max_tokens_given=max_tokens_given)
    if text is None:
        text = serving.engine.tokenizer.decode(token_ids, skip_special_tokens=False)
    return Job(index, text, token_ids, fitted, f"req-{uuid.uuid4().hex}", cache_salt)


def fit(params: SamplingParams, num_prompt_tokens: int, max_model_len: int, *, max_tokens_given: bool) -> SamplingParams:
    """params whose max_tokens fits the context. A default is lowered; what the client asked for is not: PromptTooLong."""
    room = max_model_len - num_prompt_tokens
    wanted = params.max_tokens
    if room < (0 if wanted == 0 else 1):
        raise PromptTooLong(
            f"the prompt has {num_prompt_tokens} tokens, but the context of this model is {max_model_len} tokens, the answer included: shorten the prompt",
            field="prompt",
        )
    if params.min_tokens > room:
        message = f"min_tokens is {params.min_tokens}, but after the prompt of {num_prompt_tokens} tokens only {room} fit: lower it"
        raise PromptTooLong(message, field="min_tokens")
    if wanted is None or wanted <= room:
        return params
    if max_tokens_given:
        raise PromptTooLong(
            f"the prompt has {num_prompt_tokens} tokens and max_tokens is {wanted}, together {num_prompt_tokens + wanted}, but the context of this "
            f"model is {max_model_len} tokens: lower max_tokens to {room} or shorten the prompt",
            field="max_tokens",
        )
    return replace(params, max_tokens=room)


async def stream(
    serving: Serving, jobs: list[Job], *, replay: bool = False, interval: int | None = None
) -> AsyncGenerator[tuple[Job, RequestOutput], None]:
    """Outputs of all jobs as they come. Closing it, or an error in one job, aborts the others in the engine.

    interval: new tokens that an output must bring; the first and the last output of a job come at once.
    replay: nothing is shown before the end, so an engine that dies meanwhile is no reason to give up.
    """
    if len(jobs) == 1:
        async with aclosing(paced(_run(serving, jobs[0], replay), interval)) as outputs:
            async for output in outputs:
                yield jobs[0], output
        return
    # The semaphore bounds what waits for the reader; the queue itself also carries the ends, which may never block.
    queue: asyncio.Queue[tuple[Job, RequestOutput] | asyncio.Task[None]] = asyncio.Queue()
    room = asyncio.Semaphore(_AHEAD * len(jobs))

    async def pump(job: Job) -> None:
        async with aclosing(paced(_run(serving, job, replay), interval)) as outputs:
            async for output in outputs:
                await room.acquire()
                queue.put_nowait((job, output))

    tasks = [asyncio.create_task(pump(job)) for job in jobs]
    try:
        for task in tasks:
            task.add_done_callback(queue.put_nowait)
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, asyncio.Task):
                item.result()
                running -= 1
            else:
                room.release()
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def collect(serving: Serving, jobs: list[Job]) -> list[Answers]:
    """All answers, complete, in the order of the jobs."""
    answers = {job.index: Answers(job) for job in jobs}
    async with aclosing(stream(serving, jobs, replay=True)) as outputs:
        async for job, output in outputs:
            answers[job.index].update(output)
    return [answers[job.index] for job in jobs]


async def _run(serving: Serving, job: Job, replay: bool) -> AsyncGenerator[RequestOutput, None]:
    watch = serving.metrics.stopwatch(job.params)
    reason = "abort"
    try:
        generated = serving.engine.generate(
            job.token_ids,
            job.params,
            job.request_id,
            priority=job.params.priority,
            cache_salt=job.cache_salt,
            timeout_s=serving.config.server.request_timeout_s,
            replay=replay,
        )
        async with aclosing(generated) as outputs:  # closing it aborts the request
            async for output in outputs:
                if output.finished:
                    reason = ""
                watch.step(output)
                yield output
    except RequestError as error:
        reason = "timeout" if isinstance(error, RequestTimeout | QueueTimeout) else "refused"
        raise
    except EngineDead:
        reason = "engine_dead"
        raise
    finally:
        if reason:
            serving.metrics.failed(reason)
