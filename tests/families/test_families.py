"""Every family equals transformers in float32, and the comparison notices every mutation. Writes docs/verification.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from llmx.config import ModelConfig  # noqa: E402
from llmx.executor import ModelBundle  # noqa: E402
from llmx.models.builtin import builtin_models  # noqa: E402
from llmx.models.load import load_model  # noqa: E402
from llmx.program.ops import Model  # noqa: E402
from tests.families.cases import CASES, Case  # noqa: E402
from tests.families.checkpoint import PROMPT, write_checkpoint  # noqa: E402
from tests.families.mutations import MUTATIONS  # noqa: E402
from tests.families.page import LIMIT, PAGE, page  # noqa: E402
from tests.families.run import EXECUTORS, in_memory, logits_of  # noqa: E402

NAMES = [case.name for case in CASES]


@dataclass
class Written:
    """A loaded case and the logits that it should give."""

    bundle: ModelBundle
    want: np.ndarray
    killed: dict[str, bool] = field(default_factory=dict)

    def difference(self, executor: str = "", model: Model | None = None) -> float:
        """Largest difference of a logit, in standard deviations of the reference's."""
        got = logits_of(self.bundle, PROMPT, executor, model)
        return float(np.abs(got - self.want).max() / self.want.std())

    def mutants(self) -> dict[str, bool]:
        """Mutation -> whether the comparison noticed it; computed once."""
        if not self.killed:
            changed = {name: mutate(self.bundle.model) for name, mutate in MUTATIONS.items()}
            self.killed = {name: not self.difference(model=model) <= LIMIT for name, model in changed.items() if model is not None}
        return self.killed


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Written]:
    """The case of a name, written and loaded once."""
    made: dict[str, Written] = {}

    def get(name: str) -> Written:
        if name not in made:
            case: Case = next(c for c in CASES if c.name == name)
            folder = tmp_path_factory.mktemp("model")
            want = write_checkpoint(case, folder)
            loaded = load_model(ModelConfig(str(folder), dtype="float32", max_model_len=len(PROMPT)))
            assert loaded.warnings == () and loaded.bundle.architecture == case.model
            made[name] = Written(in_memory(loaded.bundle), want)
        return made[name]

    return get


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_transformers(written: Callable[[str], Written], name: str, executor: str) -> None:
    case = written(name)
    assert case.want.std() >= 1.0, "logits so small would hide a difference"
    assert case.difference(executor) <= LIMIT


@pytest.mark.parametrize("name", NAMES)
def test_no_mutation_survives(written: Callable[[str], Written], name: str) -> None:
    mutants = written(name).mutants()
    assert [mutation for mutation, noticed in mutants.items() if not noticed] == []


def test_gpt2_as_its_first_files_are_written(tmp_path: Path) -> None:
    """Names without "transformer.", and causal masks among the tensors."""
    safetensors = pytest.importorskip("safetensors.numpy")
    want = write_checkpoint(next(case for case in CASES if case.name == "gpt-2"), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {name.removeprefix("transformer."): values for name, values in safetensors.load_file(file).items()}
    safetensors.save_file({**tensors, "h.0.attn.bias": np.tri(64, dtype=np.float32)[None, None]}, file)
    loaded = load_model(ModelConfig(str(tmp_path), dtype="float32", max_model_len=len(PROMPT)))
    got = logits_of(in_memory(loaded.bundle), PROMPT)
    assert np.abs(got - want).max() <= LIMIT * want.std()


def test_every_mutation_is_of_use(written: Callable[[str], Written]) -> None:
    used = {mutation for name in NAMES for mutation in written(name).mutants()}
    assert used == set(MUTATIONS)


def test_every_architecture_has_a_case() -> None:
    registry = builtin_models()
    decoders = {name for name in registry.architectures() if not registry.find({"architectures": [name]}).whole_prompt_only}
    assert {case.model for case in CASES} == decoders  # encoders: tests/pooling


def test_the_page_is_what_was_found(written: Callable[[str], Written], request: pytest.FixtureRequest) -> None:
    """After a deliberate change: python -m pytest tests/families --write-docs."""
    text = page({name: written(name).mutants() for name in NAMES})
    if request.config.getoption("--write-docs"):
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == text
