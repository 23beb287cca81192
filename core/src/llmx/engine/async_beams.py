"""Beam search on an AsyncEngine: a round asks about all live beams at once; the answers look like those of any other request.

The search itself stands in beam_search.py. Text, stop strings and logprobs are made of the found tokens by OutputProcessor, as elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from llmx.engine.beam_search import BeamSearch, BeamSearchSequence, one_step, row_of
from llmx.engine.messages import SeqOutput
from llmx.engine.output_processor import OutputProcessor
from llmx.engine.outputs import RequestOutput, TokenLogprobs
from llmx.engine.request_input import ParsedPrompt
from llmx.engine.running import too_late
from llmx.errors import RequestFailed
from llmx.record import record
from llmx.sampling_params import BeamSearchParams, SamplingParams

if TYPE_CHECKING:
    from llmx.engine.async_engine import AsyncEngine

__all__ = ["AsyncBeams"]


@record
class AsyncBeams:
    """Use it in the place of an engine: `generate` gives one output, the params.n most likely answers, best first."""

    engine: AsyncEngine
    length_penalty: float = 1.0

    async def generate(
        self, prompt: list[int], params: SamplingParams, request_id: str, *, timeout_s: float | None = None, replay: bool = True, **how: int | str
    ) -> AsyncGenerator[RequestOutput, None]:
        """As AsyncEngine.generate. Of params the limits, what ends an answer and what is shown of it are heeded; nothing is drawn."""
        search = BeamSearch(ParsedPrompt(None, prompt), self._params(params), params.max_tokens or 1, self._ends(params), _Stops(self.engine, params).hit)
        outputs: list[RequestOutput] = []
        try:
            async with asyncio.timeout(timeout_s):
                while search.live:
                    outputs = await self._round(search, params.logprobs or 0, request_id, how) or outputs
        except TimeoutError:
            raise too_late(timeout_s or 0.0) from None
        yield self._whole(search, params, request_id, outputs[0])

    def _params(self, params: SamplingParams) -> BeamSearchParams:
        return BeamSearchParams(params.n, params.max_tokens or 1, length_penalty=self.length_penalty, include_stop_str_in_output=True)

    def _ends(self, params: SamplingParams) -> frozenset[int]:
        tokenizer = self.engine.tokenizer
        named = {token for stop in params.stop if (token := tokenizer.token_id(stop)) in tokenizer.special_ids}
        return frozenset({*params.stop_token_ids, *named, *(() if params.ignore_eos else tokenizer.eos_ids)})

    async def _round(self, search: BeamSearch, num_top: int, request_id: str, how: dict[str, int | str]) -> list[RequestOutput]:
        """One token more for every live beam. Returns what the engine said in the first round, else nothing."""
        first = not search.live[0].logprobs
        ask = one_step(min(max(search.num_wanted, num_top), self.engine.info.vocab_size))
        steps = [self._step(beam, ask, f"{request_id}-{len(beam.logprobs)}-{index}", how) for index, beam in enumerate(search.live)]
        tasks = [asyncio.create_task(step) for step in steps]
        try:
            said = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        search.advance([row_of(output.outputs[0]) for output in said])
        return said if first else []

    async def _step(self, beam: BeamSearchSequence, ask: SamplingParams, name: str, how: dict[str, int | str]) -> RequestOutput:
        async with aclosing(self.engine.generate(beam.tokens, ask, name, replay=True, **how)) as outputs:  # type: ignore[arg-type]
            async for output in outputs:
                if output.finished:
                    return output
        raise RequestFailed("the engine gave no token to a beam")

    def _whole(self, search: BeamSearch, params: SamplingParams, request_id: str, first: RequestOutput) -> RequestOutput:
        """The answers as an output. first: of the first round, which met the prompt."""
        tokenizer, length = self.engine.tokenizer, len(search.prompt.ids)
        made = OutputProcessor(request_id, None, search.prompt.ids, params, tokenizer)
        started = first.metrics.scheduled_ts if first.metrics is not None else 0.0
        for index, beam in enumerate(search.answers):
            tokens = beam.tokens[length:]
            rows = [_row(row, token, params.logprobs) for row, token in zip(beam.logprobs, tokens, strict=True)] if params.logprobs is not None else None
            shown = beam.stop_reason in params.stop_token_ids or beam.stop_reason not in tokenizer.eos_ids
            reason = int(beam.stop_reason) if beam.stop_reason is not None and shown else None
            # A stop string ends the answer in the processor, which would take "stop" for the work of the last token.
            ended = None if beam.finish_reason == "stop" and beam.stop_reason is None else beam.finish_reason
            made.take(SeqOutput(request_id, index, tokens, ended, reason, lp=rows, num_cached=first.num_cached_tokens, started_s=started))
            made.take(SeqOutput(request_id, index, [], "stop"))
        return made.drain()


class _Stops:
    """Stop strings, looked for at the end of an answer's bytes."""

    def __init__(self, engine: AsyncEngine, params: SamplingParams) -> None:
        self._tokenizer, self._skips = engine.tokenizer, params.skip_special_tokens
        self._wanted = [stop.encode() for stop in params.stop]
        self._longest = max((len(stop) for stop in self._wanted), default=0)

    def hit(self, tokens: list[int]) -> bool:
        """Whether one of them ends in the last of these tokens."""
        if not self._wanted:
            return False
        tail = last = self._bytes(tokens[-1])
        for token in reversed(tokens[:-1]):
            if len(tail) >= self._longest + len(last):
                break
            tail = self._bytes(token) + tail
        return any(stop in tail for stop in self._wanted)

    def _bytes(self, token: int) -> bytes:
        return b"" if self._skips and self._tokenizer.is_special(token) else self._tokenizer.token_bytes(token)


def _row(row: TokenLogprobs, token: int, num_top: int | None) -> tuple[list[int], list[float], int]:
    """A place's logprobs as the engine sends them: the token that stands there, then the most likely ones."""
    chosen, top = row[token], row.top[: num_top or 0]
    return [token, *(one.token_id for one in top)], [chosen.logprob, *(one.logprob for one in top)], chosen.rank or 1
