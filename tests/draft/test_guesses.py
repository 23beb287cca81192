"""What drafters with weights of their own guess: as the published code does, and right as often as their weights were made to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from llmx import SamplingParams
from tests.draft.cases import GUESSES, make_built, make_random
from tests.draft.engines import PROMPTS, K, guesses_of, open_llm, run_with_lengths
from tests.draft.head_files import HEADS, WIDTH, write_pard
from tests.draft.oracle import save_head
from tests.structured.tiny import TINY_VOCAB

GREEDY = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)


@pytest.mark.parametrize("case", GUESSES)
@pytest.mark.parametrize("platform", ["cpu", "torch"])
def test_guesses_are_those_of_the_published_code(tiny: Path, tmp_path: Path, case: str, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks, out of the prefix cache, side by side and after steps without guesses."""
    (spec, oracle), asked = make_random(case, tiny, tmp_path), SamplingParams(seed=9, max_tokens=20, ignore_eos=True)
    with open_llm(tiny, platform, spec, max_num_batched_tokens=32) as llm:
        drafting = llm._engine.scheduler.drafting
        assert drafting is not None
        seen = guesses_of(llm, PROMPTS[:3], asked, monkeypatch)
        seen += guesses_of(llm, PROMPTS[:3], asked, monkeypatch)
        llm.llm_engine.add_request("late", "+abc" * 12, asked)
        drafting.enabled = False
        for _ in range(8):
            llm.llm_engine.step()
        drafting.enabled = True
        seen += guesses_of(llm, ["zy" * 20], asked, monkeypatch)
    seen = [(tokens, guess) for tokens, guess in seen if guess]
    assert len(seen) > 100 and sum(len(guess) for _, guess in seen) > 2.5 * len(seen)
    equal = sum(oracle(tokens, len(guess)) == guess for tokens, guess in seen)
    assert equal >= 0.97 * len(seen), f"{equal} of {len(seen)}"  # two sums in another order may tie


@pytest.mark.parametrize("platform", ["cpu", "torch"])
@pytest.mark.parametrize(("right", "low", "high"), [("all", 0.99, 1.0), ("half", 0.2, 0.8), ("none", 0.0, 0.01)])
@pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3"])
def test_as_many_are_accepted_as_are_right(tiny: Path, moody: Path, tmp_path: Path, method: str, platform: str, right: str, low: float, high: float) -> None:
    target = tiny if method == "draft_model" else moody
    with open_llm(target, platform) as llm:
        wanted = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    with open_llm(target, platform, make_built(f"{method}-{right}", target, tmp_path)) as llm:
        lengths = run_with_lengths(llm, PROMPTS, GREEDY)
        got = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        stats = llm._engine.stats()
    assert [output.outputs[0].token_ids for output in got] == [output.outputs[0].token_ids for output in wanted]
    assert low <= stats.accepted_per_position[0] / stats.drafts <= high, stats
    assert lengths - {K - 1} == {"all": {0, K}, "half": set(range(K + 1)) - {K - 1}, "none": {0}}[right]


def _rates(target: Path, method: str, path: Path) -> list[float]:
    """Shares of the steps in which the first, second, ... guess was right."""
    greedy = SamplingParams(temperature=0.0, max_tokens=41, ignore_eos=True)
    with open_llm(target, "cpu", {"method": method, "model": str(path)}) as llm:
        llm.generate(PROMPTS, greedy, use_tqdm=False)
        stats = llm._engine.stats()
    return [count / stats.drafts for count in stats.accepted_per_position]


@pytest.mark.parametrize("right", [4, 2, 0])
def test_as_many_are_accepted_as_medusa_heads_are_right(fixed: Path, tmp_path: Path, right: int) -> None:
    head = load_file(fixed / "model.safetensors")["lm_head.weight"]
    tensors = {f"{index}.1.weight": head.clone() if index < right else -head for index in range(HEADS)}
    tensors |= {f"{index}.0.linear.weight": torch.zeros(WIDTH, WIDTH) for index in range(HEADS)}
    assert _rates(fixed, "medusa", save_head(tmp_path / "head", {"medusa_num_heads": HEADS}, tensors)) == [1.0] * right + [0.0] * (HEADS - right)


@pytest.mark.parametrize("right", [4, 2, 0])
def test_as_many_are_accepted_as_an_mlp_speculator_is_right(fixed: Path, tmp_path: Path, right: int) -> None:
    """A state has the mood, and its opposite: an activation lets one of the two pass."""
    tensors: dict[str, torch.Tensor] = {}
    for step in range(HEADS):
        proj, head = torch.zeros(2, 2 if step else WIDTH), torch.zeros(TINY_VOCAB, 2)
        proj[:, -1 if not step else slice(None)] = torch.eye(2) if step else torch.tensor([1.0, -1.0])
        head[[97, 98] if step < right else [98, 97]] = torch.eye(2)
        tensors |= {f"emb.{step}.weight": torch.zeros(TINY_VOCAB, 2), f"proj.{step}.weight": proj, f"head.{step}.weight": head}
        tensors |= {f"ln.{step}.weight": torch.ones(2), f"ln.{step}.bias": torch.zeros(2)}
    config = {"n_predict": HEADS, "vocab_size": TINY_VOCAB, "emb_dim": WIDTH, "inner_dim": 2}
    assert _rates(fixed, "mlp_speculator", save_head(tmp_path / "head", config, tensors)) == [1.0] * right + [0.0] * (HEADS - right)


@pytest.mark.parametrize("right", ["all", "half", "none"])
def test_as_many_are_accepted_as_a_parallel_draft_is_right(fixed: Path, tmp_path: Path, right: str) -> None:
    head = load_file(fixed / "model.safetensors")["lm_head.weight"]
    if right == "half":  # of the prompts: only one mood is known
        head[[98, 99]] = head[[99, 98]]
    path = write_pard(fixed, tmp_path / "head")
    head = -head if right == "none" else head
    save_file({**load_file(path / "model.safetensors"), "lm_head.weight": head.contiguous()}, path / "model.safetensors", metadata={"format": "pt"})
    rates = _rates(fixed, "pard", path)
    wanted = {"all": 1.0, "half": 8 / (8 + 40), "none": 0.0}[right]  # where guesses are wrong a prompt takes a step for each of 40 tokens
    assert all(abs(rate - wanted) < 0.05 for rate in rates[:4]), rates


def test_all_guesses_are_made_in_one_run(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from llmx.executor.torch.draft import TorchDraft

    runs, run = [], TorchDraft._run

    def counted(self: TorchDraft, rows: Any) -> Any:
        runs.append(len(rows.tokens))
        return run(self, rows)

    monkeypatch.setattr(TorchDraft, "_run", counted)
    asked = SamplingParams(seed=9, max_tokens=20, ignore_eos=True)
    for case in ("pard", "medusa"):
        with open_llm(tiny, "torch", make_random(case, tiny, tmp_path)[0]) as llm:
            before = llm._engine.stats().steps
            runs.clear()
            llm.generate("+abc", asked, use_tqdm=False)
            assert 0 < len(runs) <= llm._engine.stats().steps - before
