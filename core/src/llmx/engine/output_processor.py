"""From the engine's token news to text: detokenizer, stop strings, logprobs. Runs where the client is, not in the engine.

A stop string that spans tokens ends the answer here; the engine is told by an Abort with reason "stop". Tokens, logprobs
and usage past the hit are never shown.
"""

from __future__ import annotations

from dataclasses import replace
from time import monotonic, time
from typing import Any

from llmx.engine.flat_logprobs import FlatLogprobs
from llmx.engine.messages import Abort, SeqOutput
from llmx.engine.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput, TokenLogprobs
from llmx.sampling_params import SamplingParams
from llmx.tokens.detokenizer import Detokenizer
from llmx.tokens.stop import StopChecker
from llmx.tokens.tokenizer import Tokenizer

__all__ = ["OutputProcessor", "only_new"]

_LogprobRow = tuple[list[int], list[float], int]


class OutputProcessor:
    """The answers of one request. `take` news as they come; `drain` gives what was added since the last drain."""

    def __init__(self, request_id: str, prompt: str | None, prompt_ids: list[int], params: SamplingParams, tokenizer: Tokenizer) -> None:
        self.request_id = request_id
        self._prompt, self._prompt_ids = prompt, prompt_ids
        self._tokenizer = tokenizer
        self._answers = [_Answer(index, params, tokenizer) for index in range(params.n)]
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None if params.prompt_logprobs is None else [None]
        self._params = params
        self._num_cached: int | None = None  # what the first answer found when it began: later ones find what it has left there
        self._metrics = RequestMetrics(time(), monotonic())
        self.news = False  # something was taken since the last drain

    @property
    def finished(self) -> bool:
        """True once every answer has ended."""
        return all(answer.out.finished for answer in self._answers)

    def take(self, item: SeqOutput) -> Abort | None:
        """Take in one answer's news; returns the Abort to send when a stop string ended it here."""
        answer = self._answers[item.index]
        if item.prompt_lp is not None and self._prompt_logprobs is not None and item.index == 0:
            self._prompt_logprobs += [_token_logprobs(row, self._tokenizer, self._params.prompt_logprobs or 0) for row in item.prompt_lp]
        if self._num_cached is None and item.index == 0:
            self._num_cached = item.num_cached
        if answer.out.finished:
            return None
        self.news = True
        self._metrics.note(len(item.tokens))
        self._metrics.scheduled_ts = self._metrics.scheduled_ts or item.started_s
        self._metrics.num_preemptions = max(self._metrics.num_preemptions, item.preemptions)
        if answer.take(item):
            return Abort(self.request_id, item.index, "stop")
        return None

    def fail(self, message: str) -> None:
        """End all answers that still run with an error."""
        self.news = True
        for answer in self._answers:
            if not answer.out.finished:
                answer.out.finish_reason, answer.out.error = "error", message

    def drain(self) -> RequestOutput:
        """The state of the request, with the deltas since the last call. The lists inside go on growing: read, do not keep."""
        self.news = False
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_ids,
            outputs=[answer.drain() for answer in self._answers],
            finished=self.finished,
            prompt_logprobs=_flat(self._prompt_logprobs) if self._params.flat_logprobs else self._prompt_logprobs,
            num_cached_tokens=min(self._num_cached or 0, len(self._prompt_ids)),
            metrics=self._metrics,
        )


class _Answer:
    """One answer: its text so far and what is new."""

    def __init__(self, index: int, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self.out = CompletionOutput(index, logprobs=None if params.logprobs is None else [])
        self._params, self._tokenizer = params, tokenizer
        self._detokenizer = Detokenizer(
            tokenizer, skip_special_tokens=params.skip_special_tokens, spaces_between_special_tokens=params.spaces_between_special_tokens
        )
        self._stop = StopChecker(params.stop, include=params.include_stop_str_in_output) if params.stop else None
        # A special token is no part of the text when it is skipped, but its name works as a stop string.
        names = {tokenizer.token_id(stop): stop for stop in params.stop if params.skip_special_tokens}
        self._stop_tokens = {token: stop for token, stop in names.items() if token in tokenizer.special_ids}
        self._drained_text = self._drained_tokens = 0

    def take(self, item: SeqOutput) -> bool:
        """Add the news; True when a stop string ended the answer and the engine does not know yet."""
        hit = False
        self.out.num_draft_tokens, self.out.num_accepted_tokens = item.drafted, item.accepted
        for at, token in enumerate(item.tokens):
            last = at + 1 == len(item.tokens)
            self._add_token(token, item.lp[at] if item.lp is not None else None, shown=not (last and item.finish_reason == "stop"))
            if token in self._stop_tokens and len(self.out.token_ids) > self._params.min_tokens:
                self._stop_at(self._stop_tokens[token])
            if self._stop is not None and self._stop.hit is not None:
                self.out.finish_reason, self.out.stop_reason = "stop", self._stop.hit.stop
                hit = item.finish_reason is None
                break
        else:
            if item.finish_reason is not None:
                self._end(item)
        return hit

    def _add_token(self, token: int, row: _LogprobRow | None, *, shown: bool) -> None:
        out = self.out
        out.token_ids.append(token)
        if out.logprobs is not None and row is not None:
            out.logprobs.append(_token_logprobs(row, self._tokenizer, self._params.logprobs or 0))
        stop_token_shown = self._params.include_stop_str_in_output or self._params.ignore_eos
        if (shown or stop_token_shown) and self._params.detokenize:
            delta = self._detokenizer.add(token)
            # A stop string is looked for only once min_tokens are there.
            if self._stop is not None and len(out.token_ids) > self._params.min_tokens:
                delta = self._stop.feed(delta)
            out.text += delta

    def _stop_at(self, name: str) -> None:
        """A special token that is a stop string by its name."""
        assert self._stop is not None
        if self._stop.hit is None:
            self.out.text += self._stop.feed(self._detokenizer.flush()) + self._stop.end_at(name)

    def _end(self, item: SeqOutput) -> None:
        tail = self._detokenizer.flush()
        if self._stop is not None:
            tail = self._stop.feed(tail) if tail else ""
            if self._stop.hit is not None:
                self.out.text += tail
                self.out.finish_reason, self.out.stop_reason = "stop", self._stop.hit.stop
                return
            tail += self._stop.flush()
        self.out.text += tail
        self.out.finish_reason = item.finish_reason  # type: ignore[assignment]
        self.out.stop_reason, self.out.error = item.stop_reason, item.error

    def drain(self) -> CompletionOutput:
        out = self.out
        logprobs = _flat(out.logprobs) if self._params.flat_logprobs else out.logprobs
        copy = CompletionOutput(out.index, out.text, out.token_ids, logprobs, out.finish_reason, out.stop_reason, out.error)
        copy.num_draft_tokens, copy.num_accepted_tokens = out.num_draft_tokens, out.num_accepted_tokens
        copy.text_delta = out.text[self._drained_text :]
        copy.new_token_ids = out.token_ids[self._drained_tokens :]
        self._drained_text, self._drained_tokens = len(out.text), len(out.token_ids)
        return copy


def only_new(output: RequestOutput) -> RequestOutput:
    """The same output with only what it adds: text, tokens and logprobs since the one before, of the answers that have news."""
    outputs = []
    for answer in output.outputs:
        if answer.new_token_ids or answer.text_delta or answer.finished:
            logprobs = answer.logprobs[len(answer.logprobs) - len(answer.new_token_ids) :] if answer.logprobs is not None else None
            outputs.append(replace(answer, text=answer.text_delta, token_ids=answer.new_token_ids, logprobs=logprobs))
    return replace(output, outputs=outputs)


def _flat(places: list[Any] | None) -> Any:
    """Reads like the list that it is made of, so it stands in its place."""
    return None if places is None else FlatLogprobs(places)


def _token_logprobs(row: _LogprobRow, tokenizer: Tokenizer, top: int) -> TokenLogprobs:
    """Column 0 is the token itself with its rank; columns 1 to `top` are the most likely ones, in order, so their rank is the column;
    then come those that were asked for by id."""
    ids, values, rank = row
    entries = [
        Logprob(value, (column or rank) if column <= top else None, tokenizer.token_text(token), token, tokenizer.token_bytes(token))
        for column, (token, value) in enumerate(zip(ids, values, strict=True))
        if token >= 0
    ]
    return TokenLogprobs(entries[0], entries[1 : 1 + top], entries[1 + top :])
