"""docs/program.md: names every op kind, and its model file builds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from llmx.models.builtin import builtin_models
from llmx.program.kinds import core_registry
from llmx.program.verify import verify
from tests.program.tiny import LLAMA

PAGE = (Path(__file__).parents[2] / "docs" / "program.md").read_text()


def test_every_kind_has_a_row() -> None:
    rows = "\n".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `"))
    documented = set(re.findall(r"`(\w+)`", rows))
    assert set(core_registry().kinds()) <= documented


def test_the_model_file_builds_verifies_and_registers() -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    module: dict[str, Any] = {}
    exec(compile(source, "twin.py", "exec"), module)  # the page's own text
    models = builtin_models()
    models.merge([module["TWIN"]])
    definition = models.find({"architectures": ["TwinForCausalLM"]})
    model = definition.build(LLAMA, None, None)  # type: ignore[arg-type]
    verify(model)
    assert len(model.states) == LLAMA["num_hidden_layers"] and definition.facts(LLAMA).vocab_size == 512
