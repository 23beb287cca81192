"""The tests of ops bite: of 100 random changes of reference kernels they notice at least 90. The report is docs/conformance/mutations.md."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.conformance.mutants import MODULES, Mutant, killed, mutants, passes  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs/conformance/mutations.md"
COUNT, SEED = 100, 7
HEAD = f"""# Mutations of reference kernels

{COUNT} changes of one operator, comparison or number each, drawn at random (seed {SEED}) from `llmx.executor.torch.kernels`, without those functions
that only whole models test (`mla`, `moe_experts`). Killed: a test of `tests/torch_executor/test_ops.py` fails with it.
Written by `pytest tests/conformance/test_mutants.py --write-docs`.

"""


def page(found: list[tuple[Mutant, bool]]) -> str:
    lines = ["| module | mutants | killed |", "|---|---|---|"]
    for module in MODULES:
        own = [was for mutant, was in found if mutant.module == module]
        lines.append(f"| `{module}` | {len(own)} | {sum(own)} |")
    lines += [f"| all | {len(found)} | {sum(was for _, was in found)} |", "", "Survivors:", ""]
    lines += [f"- `{mutant.module}.py` line {mutant.line}: `{mutant.was}` became `{mutant.now}`" for mutant, was in found if not was]
    return HEAD + "\n".join(lines) + "\n"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nine_of_ten_mutants_are_noticed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    assert passes(), "the kernels as they are fail the tests of ops"
    found = [(mutant, killed(mutant, monkeypatch)) for mutant in mutants(COUNT, SEED)]
    if request.config.getoption("--write-docs"):
        PAGE.write_text(page(found), encoding="utf-8")
    survivors = [f"{mutant.module}:{mutant.line}: {mutant.was} -> {mutant.now}" for mutant, was in found if not was]
    assert len(survivors) <= COUNT // 10, "\n".join(survivors)
    assert PAGE.read_text(encoding="utf-8") == page(found), "run it with --write-docs"


def test_a_change_is_noticed_and_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first mutant of the draw that adds instead of subtracting, or the other way; and kernels are whole again behind it."""
    from llmx.executor.torch.kernels import basic

    before = basic.norm
    one = next(mutant for mutant in mutants(COUNT, SEED) if mutant.module == "basic" and ("+" in mutant.was or "-" in mutant.was))
    assert passes() and killed(one, monkeypatch) and basic.norm is before
