"""SmolLM2 135M Q4_1 on the native executor: the answer, and the bits of logits under every batching (docs/invariance.md)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tests.cpu.native_model import Driver, config_for, native_executor

from llmx.config import ModelConfig
from llmx.errors import LlmxError
from llmx.models.load import LoadedModel, load_model
from llmx.tokens.tokenizer import Tokenizer
from llmx_cpu.native import ISA_NAMES, best_isa

LENGTHS = (1, 5, 33, 129, 300, 700, 1500)
LOWER = ISA_NAMES[: ISA_NAMES.index(best_isa())]  # levels below the machine's own: the same tests, minutes each
Result = dict[int, list[tuple[int, tuple[float, ...]]]]


def smollm2() -> LoadedModel:
    try:
        return load_model(ModelConfig())
    except LlmxError as error:
        pytest.skip(f"the embedded model is not installed: {error}")


@pytest.fixture(scope="module")
def prompts() -> dict[int, list[int]]:
    """Seven prompts of real text tokens in no order."""
    rng = np.random.default_rng(0)
    return {slot: [int(t) for t in rng.integers(300, 40000, n)] for slot, n in enumerate(LENGTHS)}


def longest(isa: str, batch: int) -> int:
    """Longest prompt of a run: all seven, but at the slow portable level only in the run with batches of 5 (2 threads, chunks of 100)."""
    return 300 if isa == "portable" and batch != 5 else max(LENGTHS)


def run(prompts: dict[int, list[int]], *, threads: int, chunk: int, batch: int, fuse: bool = True, isa: str = "auto") -> Result:
    executor = native_executor(smollm2().bundle, config_for(threads=threads, max_tokens=1600, fuse=fuse, isa=isa), blocks=2200)
    driver, seen, slots = Driver(executor), dict[int, list[tuple[int, tuple[float, ...]]]](), list(prompts)
    for at in range(0, len(slots), batch):
        seen |= driver.generate({s: prompts[s] for s in slots[at : at + batch]}, 3, chunk)
    executor.close()
    return seen


@pytest.fixture(scope="module", params=["auto", *(pytest.param(isa, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]) for isa in LOWER)])
def isa(request: pytest.FixtureRequest) -> str:
    """The instruction-set level: the machine's own, and in the long run each below it."""
    return str(request.param)


@pytest.fixture(scope="module")
def alone(prompts: dict[int, list[int]], isa: str) -> Iterator[Result]:
    """Each request alone, its prompt whole, one thread."""
    yield run(prompts, threads=1, chunk=2000, batch=1, isa=isa)


@pytest.mark.parametrize(
    ("threads", "chunk", "batch", "fuse"),
    [(2, 2000, 1, True), (1, 100, 2, True), (2, 100, 5, True), (2, 7, 8, True), (1, 2000, 8, False), (2, 2000, 8, True)],
)
def test_bits_of_logits_do_not_depend_on_batch_chunks_threads_or_fusion(
    prompts: dict[int, list[int]], alone: Result, isa: str, threads: int, chunk: int, batch: int, fuse: bool
) -> None:
    some = {s: p for s, p in prompts.items() if len(p) <= longest(isa, batch)}
    assert run(some, threads=threads, chunk=chunk, batch=batch, fuse=fuse, isa=isa) == {s: alone[s] for s in some}


def test_one_token_at_a_time_equals_the_whole_prompt(prompts: dict[int, list[int]], alone: Result, isa: str) -> None:
    short = {s: p for s, p in prompts.items() if len(p) <= 129}
    assert run(short, threads=1, chunk=1, batch=8, isa=isa) == {s: alone[s] for s in short}


def test_thirty_three_requests_at_once(prompts: dict[int, list[int]], alone: Result, isa: str) -> None:
    """Head rows, sampling and attention over a batch that fills two row tiles and one row more."""
    executor = native_executor(smollm2().bundle, config_for(threads=2, max_tokens=400, isa=isa), blocks=2200)
    rng = np.random.default_rng(1)
    others = {s: [int(t) for t in rng.integers(300, 40000, 3 + s % 9)] for s in range(5, 37)}
    seen = Driver(executor).generate({**others, 2: prompts[2]}, 3)
    executor.close()
    assert len(seen) == 33 and seen[2] == alone[2]


def test_greedy_answer_is_paris() -> None:
    model = smollm2()
    tokenizer = Tokenizer.load(model.summary.tokenizer)
    text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    executor = native_executor(model.bundle, config_for())
    tokens = Driver(executor).generate({0: tokenizer.encode(text)}, 8)[0]
    executor.close()
    assert "Paris" in tokenizer.decode([token for token, _ in tokens])
