"""Every method with a model of its own, by a short name: its checkpoint, and what it should guess."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.draft.draft_models import write_draft
from tests.draft.head_files import medusa_guess, pard_guess, speculator_guess, write_medusa, write_pard, write_speculator
from tests.draft.oracle import Guess, eagle_guess, write_eagle, write_random_eagle
from tests.draft.oracle3 import eagle3_guess, write_eagle3, write_random_eagle3

__all__ = ["GUESSES", "make_built", "make_random"]

GUESSES = ("eagle", "eagle3", "eagle3-norm", "medusa", "medusa-vllm", "mlp_speculator", "mlp_speculator-tied", "pard")


def make_random(case: str, tiny: Path, folder: Path) -> tuple[dict[str, Any], Guess]:
    """(speculative_config, the guesses) of a drafter with random weights for the tiny target. case: one of GUESSES."""
    method, path = case.partition("-")[0], folder / case
    if method == "eagle":
        guess = eagle_guess(tiny, write_random_eagle(tiny, path))
    elif method == "eagle3":
        guess = eagle3_guess(tiny, write_random_eagle3(tiny, path, 201 if case.endswith("norm") else 200))
    elif method == "medusa":
        guess = medusa_guess(tiny, write_medusa(path, case.partition("-")[2] or "medusa"))
    elif method == "mlp_speculator":
        guess = speculator_guess(tiny, write_speculator(path, tied=case.endswith("tied")))
    else:
        guess = pard_guess(write_pard(tiny, path, seed=4))
    return {"method": method, "model": str(path)}, guess


def make_built(case: str, target: Path, folder: Path) -> dict[str, Any]:
    """The speculative_config of a drafter that is right always, for about half of the tokens or never: "eagle-all" and so on."""
    method, right = case.split("-")
    write = {"draft_model": write_draft, "eagle": write_eagle, "eagle3": write_eagle3}[method]
    return {"method": method, "model": str(write(target, folder / case, right))}
