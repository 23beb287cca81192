"""Sampling against its specification, llmx.sample.reference, token by token."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from llmx.executor import Late, SamplingRow, Status
from llmx.sample.philox import uniform
from llmx.sample.reference import kept_weights, process, sample
from llmx.testing.conformance.common import PROMPT, VOCAB, last_logits, needs_late
from llmx.testing.driver import mask_of

if TYPE_CHECKING:
    from llmx.testing.conformance.subject import Subject

__all__ = ["CHECKS"]

_EDGE = 1e-3  # a uniform number so close to an edge (as a share of a token's interval or of all) may fall on either side
_TOKENS = 6


def ids(*values: int) -> np.ndarray:
    """int32."""
    return np.array(values, np.int32)


def words(*sequences: tuple[int, ...]) -> np.ndarray:
    """SamplingRow.bad_words."""
    return np.array([number for word in sequences for number in (len(word), *word)], np.int32)


_BIAS: dict[str, Any] = {"bias_ids": ids(3, 200, VOCAB - 1), "bias": np.array([4.0, 5.5, -3.0], np.float32)}
ROWS: dict[str, list[dict[str, Any]]] = {
    "greedy": [{}],
    "temperature": [{"temperature": t, "seed": seed} for t in (0.2, 0.7, 1.0, 1.9) for seed in (0, 1, 2**63 + 5)],
    "top_k": [{"temperature": 1.5, "top_k": k, "seed": k} for k in (1, 2, 7, 50, VOCAB, VOCAB + 9)],
    "top_p": [{"temperature": 1.5, "top_p": p, "seed": 9} for p in (0.01, 0.3, 0.8, 0.99)],
    "min_p": [{"temperature": 1.5, "min_p": p, "seed": 4} for p in (0.02, 0.3, 1.0)],
    "top_k, top_p and min_p together": [{"temperature": 1.2, "top_k": 30, "top_p": 0.9, "min_p": 0.05, "seed": s} for s in range(6)],
    "penalties": [{"presence_penalty": 1.5}, {"frequency_penalty": 1.2}, {"repetition_penalty": 1.7}, {"repetition_penalty": 0.6, "frequency_penalty": -0.5}],
    "penalties of a drawn row": [{"temperature": 1.0, "seed": 3, "presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.2}],
    "logit bias": [_BIAS, {**_BIAS, "temperature": 1.0, "seed": 8}],
    "allowed ids": [{"allowed_ids": ids(5, 31, 32, 400)}, {"allowed_ids": ids(5, 31, 32, 400), "temperature": 2.0, "seed": 1}, {"allowed_ids": ids(17)}],
    "min_tokens": [{"min_tokens": 4, "stop_ids": np.arange(0, VOCAB, 2, dtype=np.int32)}],
    "bad words": [
        {"bad_words": words(*((t,) for t in range(256)))},
        {"temperature": 0.5, "seed": 2, "bad_words": words((7,), (8, 9), *((t, t) for t in range(99)))},
    ],
}  # fmt: skip


def rows_draw_as_specified(name: str, subject: Subject) -> None:
    """Every row beside the others, the first tokens by the executor alone, the rest with the host looking on."""
    driver = subject.driver(blocks=900)
    needs_late(driver)
    rows = [SamplingRow(**fields) for fields in ROWS[name]]
    histories = {slot: list(PROMPT[:20]) for slot in range(len(rows))}
    for slot, row in enumerate(rows):
        driver.join({slot: histories[slot]}, row)
    for turn in range(_TOKENS):
        feed = dict(histories) if turn == 0 else {slot: [-1] for slot in histories}
        seen: list[np.ndarray] = []
        if turn < 2:
            raw = {slot: last_logits(driver, 40, history) for slot, history in histories.items()}
            out = driver.step(feed)
        else:

            def keep(logits: np.ndarray, seen: list[np.ndarray] = seen) -> np.ndarray:
                seen.append(logits.copy())
                return logits

            out = driver.late(feed, Late(host_logits=keep))
            raw = dict(enumerate(seen[0]))
        for slot, row in enumerate(rows):
            token = int(out.tokens[slot, 0])
            assert out.status[slot] == Status.OK and out.count[slot] == 1, f"row {slot} {ROWS[name][slot]}: status {out.status[slot]}"
            check_token(token, raw[slot], row, histories[slot], f"row {slot} {ROWS[name][slot]}, token {turn}")
            histories[slot].append(token)


def check_token(token: int, raw: np.ndarray, row: SamplingRow, history: list[int], what: str) -> None:
    """Raise AssertionError unless the specification draws this token, or its draw lies at the edge between both."""
    past, prompt_len = np.array(history, np.int32), 20
    wanted = sample(raw, row, past, prompt_len)
    if wanted.token == token:
        return
    z = process(raw, row, past, prompt_len)
    assert np.isfinite(z[token]), f"{what}: drew {token}, which this row forbids; the specification draws {wanted.token}"
    near_equal = row.temperature == 0 and abs(float(z[token]) - float(z[wanted.token])) <= 1e-5 * max(1.0, abs(float(z[token])))
    edge = False
    if row.temperature > 0:
        weights = kept_weights(z, row)
        sums = np.cumsum(weights) / weights.sum()
        edge = abs(float(uniform(row.seed, len(history))) - sums[min(token, wanted.token)]) < _EDGE * min(weights[token], weights[wanted.token]) / weights.sum()
    assert near_equal or edge, f"{what}: drew {token}, the specification draws {wanted.token}"


def masks_bind_every_option(subject: Subject) -> None:
    """A mask beside temperature, bias and penalties: what is drawn is allowed, and is what the specification draws."""
    driver = subject.driver()
    needs_late(driver)
    allowed = list(range(40, 90)) + [VOCAB - 1]
    rows = [SamplingRow(), SamplingRow(temperature=1.3, seed=5), SamplingRow(**_BIAS), SamplingRow(repetition_penalty=1.4, temperature=0.9, seed=6)]
    raw = last_logits(driver, 40, PROMPT[:20])
    for slot, row in enumerate(rows):
        driver.join({slot: PROMPT[:20]}, row)
    mask = mask_of(VOCAB, *[allowed] * len(rows))
    out = driver.late(dict.fromkeys(range(len(rows)), PROMPT[:20]), Late(mask=mask))
    for slot, row in enumerate(rows):
        wanted = sample(raw, row, np.array(PROMPT[:20], np.int32), 20, mask[slot]).token
        assert int(out.tokens[slot, 0]) == wanted, f"row {slot}: drew {int(out.tokens[slot, 0])} under a mask, the specification draws {wanted}"


def a_seed_does_not_know_its_place(subject: Subject) -> None:
    """The same seed draws the same tokens in any slot, beside any neighbours."""
    driver = subject.driver()
    row = SamplingRow(temperature=1.4, seed=123)
    driver.join({7: PROMPT}, row)
    wanted = [int(driver.step({7: tokens}).tokens[0, 0]) for tokens in (PROMPT, [-1], [-1])]
    driver.join({2: PROMPT, 4: PROMPT[:5]}, SamplingRow(temperature=1.4, seed=9))
    driver.join({3: PROMPT}, row)
    found = []
    for feed in ({4: PROMPT[:5], 3: PROMPT, 2: PROMPT}, *[{2: [-1], 3: [-1], 4: [-1]}] * 2):
        out = driver.step(feed)
        found.append(int(out.tokens[list(feed).index(3), 0]))
    assert found == wanted, f"seed 123 drew {wanted} alone and {found} beside others"


def _named(name: str) -> Callable[[Subject], None]:
    check = partial(rows_draw_as_specified, name)
    check.__name__ = f"{name} as specified"  # type: ignore[attr-defined]
    return check


CHECKS = (*(_named(name) for name in ROWS), masks_bind_every_option, a_seed_does_not_know_its_place)
