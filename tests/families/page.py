"""docs/verification.md, made of the cases and of what became of each mutation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.families.cases import CASES, PROMPT_LENGTH
from tests.families.mutations import MUTATIONS

__all__ = ["LIMIT", "PAGE", "page"]

LIMIT = 1e-4  # of the standard deviation of the reference's logits
PAGE = Path(__file__).parents[2] / "docs" / "verification.md"

_HEAD = f"""# Verification of the model families

Written by `tests/families`; after a deliberate change: `python -m pytest tests/families --write-docs`.

**What is compared.** For each row transformers makes a tiny random model (2 or 3 layers, vocabulary 512, three query heads per kv head
where the family allows it; weights of norms and biases random too, eps 1e-3) and writes it as `config.json` and safetensors. llmx loads
the directory as it loads any checkpoint and runs it in float32 (`--dtype float32`) on the native CPU executor, at every instruction-set
level of the machine, and on the torch executor. The {PROMPT_LENGTH} tokens reach past the sliding window (12) and past the context that
rope scaling extends (16 to 24; row "short" of longrope: just up to it). Rows are prefilled beside others, and decoded one by one.
Where frequencies depend on a length (dynamic, longrope), it is the prompt's for transformers and the engine's maximum model length for
llmx, so that a row never depends on its neighbours; both are equal here. Rope scalings are compared at positions 0, 100 and 1,000 too,
within twice the limit (`test_positions.py`). Models that come as GGUF are written as such a file too, with the names, orders and
settings of the format's converters (`test_gguf.py`).

**When it passes.** The largest difference of any logit of any row is at most {LIMIT:g} of the standard deviation of the logits, which
is at least 1.

**What the comparison would notice.** Each mutation below is a fault that a builder could have. It is put into the finished Program,
which then has to fail the same comparison on the native executor. `x`: it did. Empty: the model has no such part. A mutation that survives fails the test.

No real checkpoint is part of this page.
"""


def _scaling(fields: Mapping[str, object]) -> str:
    rope = fields.get("rope_parameters")
    if not isinstance(rope, Mapping):
        return "default, in pairs" if "rotary_dim" in fields else "learned positions"
    layers = [rope] if "rope_type" in rope else list(rope.values())
    kinds = ", ".join(str(entry["rope_type"]) for entry in layers)
    return f"{kinds}; every third layer without" if "no_rope_layer_interval" in fields else kinds


def page(killed: Mapping[str, Mapping[str, bool]]) -> str:
    """The text. killed: case -> mutation -> whether it showed; a mutation that does not apply is absent."""
    lines = [_HEAD, "## Models", "", "| | model | transformers class | rope | window |", "|---|---|---|---|---|"]
    for number, case in enumerate(CASES, 1):
        window = case.fields.get("sliding_window", "")
        lines.append(f"| {number} | {case.name} | {case.model} | {_scaling(case.fields)} | {window} |")
    numbers = range(1, len(CASES) + 1)
    lines += ["", "## Mutations", "", f"| mutation | {' | '.join(map(str, numbers))} |", "|---|" + "---|" * len(CASES)]
    for name in MUTATIONS:
        marks = [{True: "x", False: "**survives**", None: ""}[killed[case.name].get(name)] for case in CASES]
        lines.append(f"| {name} | {' | '.join(marks)} |")
    total = sum(len(row) for row in killed.values())
    lines += ["", f"{total} mutants of {len(CASES)} models, {sum(not shown for row in killed.values() for shown in row.values())} survivors."]
    return "\n".join(lines) + "\n"
