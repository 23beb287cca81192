"""How llmx samples: the specification, in numpy, one row at a time.

Every executor's sampler means this file; the native one is tested against it token by token. Read from top to bottom:

    raw logits, float32 [V]
      |-> `logprobs`        what is reported: log-softmax of the raw logits; no option below changes it
      v
    `process`               options that may change which token is the most likely one
      1. logit_bias         added
      2. bans               -inf for tokens outside allowed_token_ids, outside the grammar's mask, for stop ids while
                            fewer than min_tokens are generated, and for the last token of a bad word whose other
                            tokens the generated text ends with
      3. repetition         each token of prompt or generated text once: divided if positive, multiplied if negative
      4. frequency          minus penalty x times generated (the prompt does not count)
      5. presence           minus penalty, if generated at least once (the prompt does not count)
      v
    temperature 0           the largest logit; among equals the lowest id
    temperature > 0         `kept_weights`: exp((z - max z) / temperature), then
      6. top_k              the k largest; among equals at the edge the lowest ids: exactly k
      7. top_p              of these, renormalised, the fewest in descending order whose sum reaches p
      8. min_p              of these, those at least min_p times as likely as the most likely token
      v
    `draw`                  one uniform number from Philox (key seed, counter position); the first token in ascending id
                            whose cumulative weight exceeds it

Steps 1 to 5 and 6 to 8 stand in the order that users of vLLM and Hugging Face expect; min_p comes last, as in Hugging Face
(vLLM has it before top_k, which differs only when top_p is set too).

Arithmetic: logits and parameters are float32, and so are steps 1 to 5, each operation rounded once; so every executor ranks
the tokens alike. All ordering is by z, ties by ascending id. Weights and their sums are float64 here; an executor may have
float32 weights, and so may differ where the uniform number, or top_p, lies within rounding of an edge.

A row that cannot be sampled ends its own request only: Status.NAN when a logit is NaN or +inf, Status.MASK_DEAD when no
token is left. Logits of -inf are legal: such a token is never drawn.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from llmx.batch import Status
from llmx.record import record
from llmx.sample.params_rows import SamplingRow
from llmx.sample.philox import uniform

__all__ = ["GREEDY_BELOW", "RowLogprobs", "Sampled", "draw", "kept_weights", "log_softmax", "logprobs", "process", "ranking", "sample"]

GREEDY_BELOW = 1e-5  # temperatures under this are 0: z / temperature would overflow (vLLM has the same limit)

_F32 = NDArray[np.float32]


@record
class Sampled:
    """The token drawn from one row; -1 where status is not OK."""

    token: int
    status: Status


@record
class RowLogprobs:
    """Logprobs of one row: columns are the token itself, the `top` most likely ones, then the ids that were asked for."""

    ids: NDArray[np.int32]
    lp: _F32
    rank: int  # of the token itself; 1 = most likely


def sample(logits: _F32, row: SamplingRow, history: NDArray[np.int32], prompt_len: int, mask: NDArray[np.uint32] | None = None) -> Sampled:
    """The next token of one request.

    logits: float32 [V], raw. history: i32, the prompt (prompt_len tokens) and what was generated since; the new token's
    position is len(history). mask: uint32 [ceil(V / 32)], bit i of word w allows token 32 w + i; None allows all.
    """
    if _not_numbers(logits):
        return Sampled(-1, Status.NAN)
    z = process(logits, row, history, prompt_len, mask)
    if _not_numbers(z):
        return Sampled(-1, Status.NAN)
    if z.max() == -np.inf:
        return Sampled(-1, Status.MASK_DEAD)
    if row.temperature < GREEDY_BELOW:
        return Sampled(int(z.argmax()), Status.OK)
    return Sampled(draw(kept_weights(z, row), row.seed, len(history)), Status.OK)


def _not_numbers(logits: _F32) -> bool:
    """True when a row holds NaN or +inf: the model's arithmetic broke, and no softmax exists."""
    return bool(np.isnan(logits).any() or (logits == np.inf).any())


def process(logits: _F32, row: SamplingRow, history: NDArray[np.int32], prompt_len: int, mask: NDArray[np.uint32] | None = None) -> _F32:
    """Steps 1 to 5: a new float32 [V]. Arguments as in `sample`; ids outside the vocabulary are ignored."""
    z = logits.astype(np.float32, copy=True)
    vocab = z.shape[0]
    inside = row.bias_ids < vocab
    z[row.bias_ids[inside]] += row.bias[inside]
    z[_banned(row, vocab, history[prompt_len:], mask)] = -np.inf
    _penalize(z, row, history, prompt_len)
    return z


def _banned(row: SamplingRow, vocab: int, generated: NDArray[np.int32], mask: NDArray[np.uint32] | None) -> NDArray[np.bool_]:
    """bool [V]: True for tokens that may not be drawn."""
    banned = np.zeros(vocab, dtype=np.bool_)
    if row.allowed_ids is not None:
        banned[:] = True
        banned[row.allowed_ids[row.allowed_ids < vocab]] = False
    if mask is not None:
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        banned |= bits[:vocab] == 0
    if len(generated) < row.min_tokens:
        banned[row.stop_ids[row.stop_ids < vocab]] = True
    for *before, last in _words(row.bad_words):
        if last < vocab and len(before) <= len(generated) and generated[len(generated) - len(before) :].tolist() == before:
            banned[last] = True
    return banned


def _words(flat: NDArray[np.int32]) -> Iterator[list[int]]:
    """The sequences of SamplingRow.bad_words."""
    at = 0
    while at < len(flat):
        end = at + 1 + int(flat[at])
        yield flat[at + 1 : end].tolist()
        at = end


def _penalize(z: _F32, row: SamplingRow, history: NDArray[np.int32], prompt_len: int) -> None:
    """Steps 3 to 5, in place."""
    known = (history >= 0) & (history < z.shape[0])
    seen = np.unique(history[known])
    if row.repetition_penalty != 1.0:
        repetition = np.float32(row.repetition_penalty)
        with np.errstate(over="ignore"):
            z[seen] = np.where(z[seen] > 0, z[seen] / repetition, z[seen] * repetition)
    generated, times = np.unique(history[prompt_len:][known[prompt_len:]], return_counts=True)
    if row.frequency_penalty != 0.0:
        z[generated] -= np.float32(row.frequency_penalty) * times.astype(np.float32)
    if row.presence_penalty != 0.0:
        z[generated] -= np.float32(row.presence_penalty)


def ranking(logits: _F32) -> NDArray[np.int64]:
    """Token ids i64 [V] from the most likely to the least; among equals the lowest id first."""
    return np.argsort(-logits, kind="stable")


def kept_weights(z: _F32, row: SamplingRow) -> NDArray[np.float64]:
    """Steps 6 to 8: float64 [V], proportional to the probability of each token; 0 where it was dropped.

    z: float32 [V] from `process`, at least one value finite. row.temperature must not be 0.
    """
    distance = (z - z.max()) / np.float32(row.temperature)  # float32; 0 for the most likely token
    weight: NDArray[np.float64] = np.exp(distance.astype(np.float64))
    order = ranking(z)
    kept = z.shape[0]
    if 0 < row.top_k < kept:
        kept = row.top_k
    if row.top_p < 1.0:
        cumulative = np.cumsum(weight[order[:kept]])
        reached = cumulative >= np.float64(np.float32(row.top_p)) * cumulative[-1]
        kept = int(reached.argmax()) + 1
    weight[order[kept:]] = 0.0
    if row.min_p > 0.0:
        weight[distance < np.float32(np.log(np.float64(np.float32(row.min_p))))] = 0.0
    return weight


def draw(weight: NDArray[np.float64], seed: int, position: int) -> int:
    """The token whose interval of the cumulative weights, in ascending id, holds the uniform number of (seed, position)."""
    cumulative = np.cumsum(weight)
    target = float(uniform(seed, position)) * cumulative[-1]
    return int(np.searchsorted(cumulative, target, side="right"))


def log_softmax(logits: _F32) -> _F32:
    """Log-probabilities float32 [V] of raw logits without NaN or +inf, accumulated in float64; all -inf gives all -inf."""
    top = logits.max()
    if top == -np.inf:
        return logits.copy()
    exact = logits.astype(np.float64) - np.float64(top)
    result: _F32 = (exact - np.log(np.exp(exact).sum())).astype(np.float32)
    return result


def logprobs(logits: _F32, token: int, top: int, ids: NDArray[np.int32] | None = None) -> RowLogprobs:
    """Logprobs and rank of `token` (drawn, or known from the prompt), of the `top` most likely tokens, and of `ids`.

    The rank is 1 + the number of tokens with a larger logit, or an equal one and a lower id. top may exceed V: V columns.
    """
    lp = log_softmax(logits)
    larger = (logits > logits[token]).sum() + (logits[:token] == logits[token]).sum()
    columns = [np.array([token]), ranking(logits)[:top], np.empty(0) if ids is None else ids]
    chosen = np.concatenate(columns).astype(np.int32)
    return RowLogprobs(ids=chosen, lp=lp[chosen], rank=int(larger) + 1)
