"""From Jobs to engine outputs: several prompts of one request run at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from llmx.answers.budget import ReasoningCount
from llmx.engine.outputs import NOTHING_ALLOWED, CompletionOutput, RequestOutput
from llmx.errors import EngineDead, QueueTimeout, RequestError, RequestTimeout
from llmx_server.caller import caller
from llmx_server.errors import GenerationFailed, NothingAllowed
from llmx_server.jobs import Job, runner
from llmx_server.pacing import paced
from llmx_server.serving import Serving

__all__ = ["Answers", "collect", "stream"]

_AHEAD = 4  # outputs per prompt that may wait for a slow reader when several prompts share one response


class Answers:
    """The latest state of each of a job's n answers; engine outputs are cumulative, so the last one has it all."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.by_index: dict[int, CompletionOutput] = {}
        self.output: RequestOutput | None = None
        self._thoughts: dict[int, ReasoningCount] = {}

    def update(self, output: RequestOutput) -> None:
        """Takes over an output. Raises GenerationFailed, or NothingAllowed, when an answer ended with an error."""
        self.output = output
        for answer in output.outputs:
            if answer.finish_reason in ("error", "abort"):
                kind = NothingAllowed if answer.error == NOTHING_ALLOWED else GenerationFailed
                raise kind(answer.error or f"the engine ended this request ({answer.finish_reason})")
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
    def reasoning_tokens(self) -> int:
        """Tokens of all answers that are reasoning, as the job marks it."""
        begin = self.job.reasoning
        if begin is None:
            return 0
        return sum(self._thoughts.setdefault(index, begin()).upto(answer.token_ids) for index, answer in self.by_index.items())

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache had."""
        return self.output.num_cached_tokens if self.output else 0


async def stream(
    serving: Serving, jobs: list[Job], *, replay: bool = False, interval: int | None = None
) -> AsyncGenerator[tuple[Job, RequestOutput], None]:
    """Outputs of all jobs as they come. Closing it, or an error in one job, aborts the others in the engine.

    interval: new tokens that an output must bring; the first and the last output of a job come at once.
    replay: nothing is shown before the end, so an engine that dies meanwhile is no reason to give up.
    """
    await caller().admit(sum(len(job.token_ids) for job in jobs))
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
    watch, who, begun = serving.metrics.stopwatch(job.params, job.request_id, len(job.token_ids)), caller(), False
    reason = "abort"
    try:
        generated = runner(serving, job).generate(
            job.token_ids, job.params, job.request_id, priority=job.params.priority, cache_salt=who.salted(job.cache_salt), lora=serving.lora,
            timeout_s=serving.config.server.request_timeout_s, replay=replay,
        )  # fmt: skip
        async with aclosing(generated) as outputs:  # closing it aborts the request
            async for output in outputs:
                if output.finished:
                    reason = ""
                begun = True
                who.used(sum(len(answer.new_token_ids) for answer in output.outputs))
                watch.step(output)
                yield output
    except RequestError as error:
        reason = "timeout" if isinstance(error, RequestTimeout | QueueTimeout) else "refused"
        who.used(0 if begun or isinstance(error, RequestTimeout) else -len(job.token_ids))
        raise
    except EngineDead:
        reason = "engine_dead"
        raise
    finally:
        if reason:
            watch.failed(reason)
