"""DraftShape: what the Programs of a drafter are to an executor. Told from the Model, so that all executors run them alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from llmx.kv.spec import BLOCK_TOKENS, KVSpec
from llmx.program.ops import Model
from llmx.record import record

__all__ = ["DRAFT", "HIDDEN", "KEPT", "DraftRows", "DraftShape", "Forward", "draft_shape", "hidden_bytes", "hidden_group"]

DRAFT = "draft"  # name of the Program of the first run, and of all further ones unless there is "draft.1"; names of States begin with it and a dot
HIDDEN = "hidden"  # input of such a Program: hidden rows, of the model or of the drafter's run before; result: [R, ..] what the next run reads
KEPT = "draft.hidden"  # result of the main Program, [T, width]: rows that an executor keeps for that input

_PAGED = ("full", "sliding", "chunked", "latent")  # kinds whose blocks have a place for every token


@record
class DraftShape:
    """programs: one per run, the last for all further ones; states: that they write; hidden: floats of a kept row, 0: they read none;

    guesses: tokens that one run gives for a head row; mask: token of rows whose guesses are made in the same run (-1: one run per guess).
    """

    programs: tuple[str, ...]
    states: tuple[str, ...]
    hidden: int
    guesses: int
    mask: int = -1


@record
class DraftRows:
    """Rows of one run of a Program. slot, q, start: i32 [N]; tokens: i32 [T]; head: i32 [R], token rows whose next token is wanted.

    behind: i32 [T], for Programs that read hidden rows: which head row of the run before; -1: the model's row at this position.
    run: 0, 1, ...: which of several Programs.
    """

    slot: np.ndarray
    q: np.ndarray
    start: np.ndarray
    tokens: np.ndarray
    head: np.ndarray
    behind: np.ndarray
    run: int = 0


Forward = Callable[[DraftRows], np.ndarray]  # -> i32 [R, guesses] (or [R]): the most likely next tokens of each head row


def draft_shape(model: Model, mask: int = -1) -> DraftShape | None:
    """None: the model has no drafter. mask: ModelBundle.draft_mask."""
    if DRAFT not in model.programs:
        return None
    names = [DRAFT]
    while f"{DRAFT}.{len(names)}" in model.programs:
        names.append(f"{DRAFT}.{len(names)}")
    guesses = sum(name.startswith("logits") for name in model.programs[DRAFT].outputs())
    states = tuple(state.name for state in model.states.values() if state.owner in names)
    return DraftShape(tuple(names), states, hidden_width(model), guesses, mask)


def hidden_width(model: Model) -> int:
    """Floats that an executor keeps of each token; 0: nothing."""
    kept = model.programs["main"].outputs().get(KEPT) if "main" in model.programs else None
    width = 0 if kept is None else kept.shape[-1]
    assert isinstance(width, int)
    return width


def hidden_bytes(model: Model) -> int:
    """Bytes of kept rows in one block of the group `hidden_group`."""
    return 4 * BLOCK_TOKENS * hidden_width(model)


def hidden_group(specs: Iterable[KVSpec]) -> int:
    """Index of the group in whose blocks the rows are kept: the first that keeps all of a request's tokens, else the first with a place per token. -1: none."""
    found = [(spec.kind != "full", index) for index, spec in enumerate(specs) if spec.kind in _PAGED]
    return min(found)[1] if found else -1
