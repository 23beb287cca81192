"""What the areas share: sizes, a prompt, logits of one row."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmx.executor import Late
from llmx.testing.conformance.outcome import NotRun
from llmx.testing.driver import Driver

__all__ = ["PROMPT", "SEQS", "TOKENS", "VOCAB", "last_logits", "needs_late", "raises"]

VOCAB, SEQS, TOKENS = 512, 48, 256  # of the models and executors of this suite
PROMPT = [int(t) for t in np.random.default_rng(11).integers(3, VOCAB, 40)]


def needs_late(driver: Driver) -> None:
    """Raise NotRun where the executor has no late masks."""
    if not {"late_mask", "host_logits"} <= driver.executor.limits.features:
        raise NotRun("no late masks")


def last_logits(driver: Driver, slot: int, tokens: list[int], lora: int = -1) -> np.ndarray:
    """f32 [V]: raw logits after these tokens, computed in a slot that is free before and after. lora: slot of its adapter."""
    seen: list[np.ndarray] = []

    def keep(rows: np.ndarray) -> np.ndarray:
        seen.append(rows.copy())
        return rows

    driver.join({slot: tokens}, lora={slot: lora})
    driver.late({slot: tokens}, Late(host_logits=keep))
    driver.leave(slot)
    logits: np.ndarray = seen[0][0]
    return logits


def raises(run: Any, *words: str) -> None:
    """Raise AssertionError unless run() raises an exception whose text has each of `words`."""
    try:
        run()
    except Exception as error:  # noqa: BLE001 - whatever an executor raises; its text is checked
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"the error does not name {', '.join(missing)}: {error}"
    else:
        raise AssertionError(f"nothing was raised; wanted an error with {', '.join(words) or 'a reason'}")
