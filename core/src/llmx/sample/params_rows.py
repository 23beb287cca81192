"""SamplingRow: what an executor needs of SamplingParams, one row per slot, set when the request joins.

The meaning of every field is `llmx.sample.reference`. Host-side matters (stop strings, max_tokens) are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

__all__ = ["SamplingRow", "row_from"]

from llmx.sampling_params import SamplingParams

_NO_IDS = np.empty(0, dtype=np.int32)
_NO_BIAS = np.empty(0, dtype=np.float32)


@dataclass(slots=True)
class SamplingRow:
    """Sampling of one slot. `seed` is the Philox key; the counter is (position of the new token, stream 0)."""

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0  # 0 <= seed < 2**64
    min_tokens: int = 0  # until this many tokens are generated `stop_ids` may not be drawn
    stop_ids: np.ndarray = field(default_factory=lambda: _NO_IDS)  # i32: EOS and stop ids, read only with min_tokens
    bias_ids: np.ndarray = field(default_factory=lambda: _NO_IDS)  # i32 [b], ascending, distinct
    bias: np.ndarray = field(default_factory=lambda: _NO_BIAS)  # f32 [b]
    allowed_ids: np.ndarray | None = None  # i32 ascending, distinct; None: all
    bad_words: np.ndarray = field(default_factory=lambda: _NO_IDS)  # i32: token sequences, each as its length and then its ids


def row_from(params: SamplingParams, seed: int, eos_ids: tuple[int, ...]) -> SamplingRow:
    """The row of one request (or one child of n). seed: the child's own, any int, taken modulo 2**64."""
    bias = sorted(params.logit_bias.items())
    stop = sorted({*params.stop_token_ids, *(() if params.ignore_eos else eos_ids)})
    allowed = params.allowed_token_ids
    return SamplingRow(
        temperature=params.temperature,
        top_k=max(params.top_k, 0),
        top_p=params.top_p,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        seed=seed % 2**64,
        min_tokens=params.min_tokens,
        stop_ids=np.array(stop, dtype=np.int32) if params.min_tokens else _NO_IDS,
        bias_ids=np.array([i for i, _ in bias], dtype=np.int32),
        bias=np.array([b for _, b in bias], dtype=np.float32),
        allowed_ids=None if allowed is None else np.array(sorted(set(allowed)), dtype=np.int32),
        bad_words=np.array([number for word in params.bad_word_ids for number in (len(word), *word)], dtype=np.int32),
    )
