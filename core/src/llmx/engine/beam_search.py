"""Beam search on top of an engine: every round each live beam asks for one token's logprobs; its prefix comes from the KV cache.

The rules are those of transformers with early_stopping="never": of all continuations of all live beams, best first, those of the
first `width` that end are done, and the first `width` that do not end live on. Done answers are ranked by
cumulative logprob / new tokens ** length_penalty, EOS counted as a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from llmx.engine.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from llmx.engine.progress import ProgressBar
from llmx.engine.request_input import ParsedPrompt, Prompt, parse_prompt
from llmx.errors import RequestError
from llmx.lora.request import LoRARequest
from llmx.record import record
from llmx.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from llmx.engine.llm_engine import LLMEngine

__all__ = ["BeamSearch", "BeamSearchOutput", "BeamSearchSequence", "BeamSearcher", "one_step", "row_of"]


@dataclass(slots=True)
class BeamSearchSequence:
    """One answer. tokens: prompt and answer; logprobs: of the new tokens, by token id; text: of all tokens."""

    tokens: list[int]
    logprobs: list[TokenLogprobs]
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The answers to one prompt, best first."""

    sequences: list[BeamSearchSequence]


@dataclass(slots=True)
class BeamSearch:
    """The search for one prompt. While `live` holds beams: get the next token's logprobs of each, then `advance`.

    max_new: new tokens at most, the context's limit included. eos_ids: tokens that end an answer; empty: none does. hits_stop: whether an
    answer of these new tokens ends at its last one because a stop string stands there; as many ends may leave fewer than `width` beams alive.
    """

    prompt: ParsedPrompt
    params: BeamSearchParams
    max_new: int
    eos_ids: frozenset[int]
    hits_stop: Callable[[list[int]], bool] | None = None
    live: list[BeamSearchSequence] = field(default_factory=list)
    _done: list[tuple[float, BeamSearchSequence]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.live = [BeamSearchSequence(list(self.prompt.ids), [])]

    @property
    def num_wanted(self) -> int:
        """So many candidates that `width` of them do not end, even if every other is an end."""
        return (1 + len(self.eos_ids)) * self.params.beam_width

    def advance(self, rows: Sequence[TokenLogprobs]) -> None:
        """The next token's logprobs of each live beam, at least the `num_wanted` most likely ones."""
        width, last = self.params.beam_width, len(self.live[0].logprobs) + 1 >= self.max_new
        pairs = zip(self.live, rows, strict=True)
        options = [(beam.cum_logprob + one.logprob, beam, row, one.token_id) for beam, row in pairs for one in row.top[: self.num_wanted]]
        options.sort(key=lambda option: -option[0])
        live: list[BeamSearchSequence] = []
        for place, (total, beam, row, token) in enumerate(options[: self.num_wanted]):
            if place >= width and len(live) >= width:
                break
            ends = token in self.eos_ids or self._stops(beam, token)
            if (ends or last) and place < width:
                self._finish(total, beam, row, token, "stop" if ends else "length")
            elif not ends and not last and len(live) < width:
                live.append(BeamSearchSequence([*beam.tokens, token], [*beam.logprobs, row], total))
        if width == 1 and self._done:  # the likeliest token ended it: one beam is greedy
            live = []
        self.live = live if live and not self._settled(live[0].cum_logprob) else []

    def _stops(self, beam: BeamSearchSequence, token: int) -> bool:
        return self.hits_stop is not None and self.hits_stop([*beam.tokens[len(self.prompt.ids) :], token])

    def _finish(self, total: float, beam: BeamSearchSequence, row: TokenLogprobs, token: int, reason: str) -> None:
        eos = token in self.eos_ids
        tokens = [*beam.tokens, token] if not eos or self.params.include_stop_str_in_output else list(beam.tokens)
        done = BeamSearchSequence(tokens, [*beam.logprobs, row], total, finish_reason=reason, stop_reason=token if eos else None)
        self._done.append((self._score(total, len(done.logprobs)), done))
        self._done.sort(key=lambda scored: -scored[0])
        del self._done[self.params.beam_width :]

    def _score(self, total: float, new_tokens: int) -> float:
        return float(total / new_tokens**self.params.length_penalty)

    def _settled(self, best: float) -> bool:
        """True when no live beam can still win: logprobs only fall, so its score is at most `best` over the kindest length."""
        kindest = self.max_new if self.params.length_penalty > 0 else len(self.live[0].logprobs) + 1
        return len(self._done) == self.params.beam_width and self._score(best, kindest) <= self._done[-1][0]

    @property
    def answers(self) -> list[BeamSearchSequence]:
        """Those that have ended, best first; without their text."""
        return [sequence for _, sequence in self._done]

    def result(self, decode: Callable[[list[int]], str]) -> BeamSearchOutput:
        """The answers, best first, with their text."""
        sequences = self.answers
        for sequence in sequences:
            sequence.text = decode(sequence.tokens)
        return BeamSearchOutput(sequences)


@record
class BeamSearcher:
    """Runs searches on an engine. step: one turn of it (`LLMEngine.step`, or what wraps it). next_id: a fresh request id. lora_request: the adapter of all."""

    engine: LLMEngine
    step: Callable[[], list[RequestOutput]]
    next_id: Callable[[], str]
    lora_request: LoRARequest | None = None

    def run(self, prompts: Sequence[Prompt], params: BeamSearchParams, concurrency_limit: int | None, bar: ProgressBar) -> list[BeamSearchOutput]:
        """The searches of all prompts, concurrency_limit at a time; None: all. Raises RequestError for a prompt that cannot be served."""
        if concurrency_limit is not None and (not isinstance(concurrency_limit, int) or concurrency_limit < 1):
            raise RequestError(f"concurrency_limit is {concurrency_limit!r}: it must be a whole number from 1", field="concurrency_limit")
        tokenizer, context = self.engine.tokenizer, self.engine.info.max_model_len
        eos_ids = frozenset() if params.ignore_eos else frozenset(tokenizer.eos_ids)
        parsed = [parse_prompt(prompt, tokenizer) for prompt in prompts]
        searches = [BeamSearch(one, params, min(params.max_tokens, max(context - len(one.ids), 1)), eos_ids) for one in parsed]
        at_once = concurrency_limit or max(len(searches), 1)
        with bar.over(len(searches)):
            for first in range(0, len(searches), at_once):
                while live := [one for one in searches[first : first + at_once] if one.live]:
                    self._round(live)
                    for _ in range(sum(not one.live for one in live)):
                        bar.count()
        outputs = [one.result(lambda ids: tokenizer.decode(ids, params.skip_special_tokens)) for one in searches]
        for sequence in (sequence for output in outputs for sequence in output.sequences):
            sequence.lora_request = self.lora_request
        return outputs

    def _round(self, searches: list[BeamSearch]) -> None:
        """One token for every live beam of these searches."""
        ask = one_step(min(searches[0].num_wanted, self.engine.info.vocab_size))
        rows: dict[str, TokenLogprobs | None] = {}
        try:
            for one in searches:
                for beam in one.live:
                    prompt = replace(one.prompt, ids=beam.tokens)
                    rows[self.engine.add_request(self.next_id(), prompt, ask, limited=False, lora_request=self.lora_request)] = None
            while None in rows.values():
                rows |= {output.request_id: row_of(output.outputs[0]) for output in self.step() if output.request_id in rows}
        except BaseException:
            self.engine.abort_request(rows)
            raise
        order = iter(rows.values())
        for one in searches:
            one.advance([row for row in islice(order, len(one.live)) if row is not None])


def one_step(top: int) -> SamplingParams:
    """What a beam asks the engine for: the `top` most likely next tokens."""
    return SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=top, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)


def row_of(answer: CompletionOutput) -> TokenLogprobs:
    """What the engine said to `one_step`. Raises RequestError when it could not."""
    if answer.error is not None or not answer.logprobs:
        raise RequestError(f"the beam search cannot go on: {answer.error}", field="prompt")
    return answer.logprobs[0]
