"""Medusa heads and parallel draft models, which make all guesses in one run, and a drafter by its class. None changes an answer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from llmx import SamplingParams
from llmx.errors import ConfigError, ModelError
from llmx.executor.torch.draft import TorchDraft
from tests.draft.engines import PROMPTS, facts, guesses_of, open_llm, params
from tests.draft.moody import write_moody_target
from tests.draft.oracle import Guess
from tests.structured.tiny import TINY_VOCAB, write_tiny_model

WIDTH, HEADS = 64, 4
ASKED = SamplingParams(seed=9, max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


def _save(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.float().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape) * 0.2


def write_medusa(folder: Path, style: str, heads: int = HEADS) -> Path:
    """Random heads under the names of Medusa's own files, or of vLLM's."""
    torch.manual_seed(1)
    tensors: dict[str, torch.Tensor] = {}
    for head in range(heads):
        block, last = (f"medusa_head.{head}.0.linear", f"medusa_head.{head}.1") if style == "medusa" else (f"blocks.{head}.layers.0", f"lm_heads.{head}")
        tensors |= {f"{block}.weight": _random(WIDTH, WIDTH), f"{block}.bias": _random(WIDTH), f"{last}.weight": _random(TINY_VOCAB, WIDTH)}
    return _save(folder, {"model_type": "medusa", "num_heads": heads, "hidden_size": WIDTH, "vocab_size": TINY_VOCAB}, tensors)


def _target(path: Path) -> transformers.LlamaForCausalLM:
    return transformers.LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def medusa_guess(target: Path, folder: Path) -> Guess:
    model, weights = _target(target), {name.removeprefix("medusa_head."): tensor for name, tensor in load_file(folder / "model.safetensors").items()}

    @torch.inference_mode()
    def guess(tokens: list[int], count: int) -> list[int]:
        row = model.model(torch.tensor([tokens[:-1]])).last_hidden_state[0, -1]
        found = []
        for head in range(count):
            block, last = (f"{head}.0.linear", f"{head}.1") if "0.0.linear.weight" in weights else (f"blocks.{head}.layers.0", f"lm_heads.{head}")
            x = row + torch.nn.functional.silu(weights[f"{block}.weight"] @ row + weights[f"{block}.bias"])
            found.append(int((weights[f"{last}.weight"] @ x).argmax()))
        return found

    return guess


def pard_guess(folder: Path) -> Guess:
    model, mask = _target(folder), json.loads((folder / "config.json").read_text())["pard_token"]

    @torch.inference_mode()
    def guess(tokens: list[int], count: int) -> list[int]:
        logits = model(torch.tensor([[*tokens, *[mask] * (count - 1)]])).logits[0]
        return [int(row.argmax()) for row in logits[len(tokens) - 1 :]]

    return guess


def write_pard(target: Path, folder: Path, seed: int | None = None) -> Path:
    """A copy of the target that has a mask token; with a seed its head is another one."""
    shutil.copytree(target, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "pard_token": 380}))
    if seed is not None:
        torch.manual_seed(seed)
        weights = load_file(folder / "model.safetensors")
        weights["lm_head.weight"] = _random(TINY_VOCAB, WIDTH)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _made(tiny: Path, folder: Path, case: str) -> tuple[dict[str, Any], Guess]:
    if case.startswith("medusa"):
        path = write_medusa(folder / case, case.removeprefix("medusa-"))
        return {"method": "medusa", "model": str(path)}, medusa_guess(tiny, path)
    path = write_pard(tiny, folder / case, seed=4)
    return {"method": "pard", "model": str(path)}, pard_guess(path)


@pytest.mark.parametrize("case", ["medusa-medusa", "medusa-vllm", "pard"])
@pytest.mark.parametrize("platform", ["cpu", "torch"])
def test_guesses_are_those_of_the_published_code(tiny: Path, tmp_path: Path, case: str, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, oracle = _made(tiny, tmp_path, case)
    with open_llm(tiny, platform, spec, max_num_batched_tokens=32) as llm:
        seen = guesses_of(llm, PROMPTS[:3], ASKED, monkeypatch)
        seen += guesses_of(llm, PROMPTS[:3], ASKED, monkeypatch)  # out of the prefix cache
    seen = [(tokens, guess) for tokens, guess in seen if guess]
    assert len(seen) > 80 and sum(len(guess) for _, guess in seen) > 2.5 * len(seen)
    equal = sum(oracle(tokens, len(guess)) == guess for tokens, guess in seen)
    assert equal >= 0.97 * len(seen), f"{equal} of {len(seen)}"


@pytest.mark.parametrize("case", ["medusa-medusa", "pard"])
def test_answers_are_the_same(tiny: Path, tmp_path: Path, case: str) -> None:
    with open_llm(tiny) as llm:
        plain = facts(llm.generate(PROMPTS, params(), use_tqdm=False))
    spec, _ = _made(tiny, tmp_path, case)
    for options in ({}, {"max_num_batched_tokens": 16, "num_blocks": 30, "max_model_len": 160}):
        with open_llm(tiny, "cpu", spec, **options) as llm:
            for _ in range(2):
                assert facts(llm.generate(PROMPTS, params(), use_tqdm=False)) == plain
            assert llm._engine.stats().draft_tokens > 200
            llm._engine.kv.check_integrity([])


def _fixed_target(folder: Path) -> Path:
    """One token for each mood, again and again."""
    write_moody_target(folder)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"].zero_()
    weights["lm_head.weight"][[97, 98], 63] = torch.tensor([6.0, -6.0])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _asked(target: Path, method: str, path: Path) -> list[float]:
    """Shares of the steps in which the first, second, ... guess was right."""
    greedy = SamplingParams(temperature=0.0, max_tokens=41, ignore_eos=True)
    with open_llm(target, "cpu", {"method": method, "model": str(path)}) as llm:
        llm.generate(PROMPTS, greedy, use_tqdm=False)
        stats = llm._engine.stats()
    return [count / stats.drafts for count in stats.accepted_per_position]


@pytest.mark.parametrize("right", [4, 2, 0])
def test_as_many_are_accepted_as_medusa_heads_are_right(tmp_path: Path, right: int) -> None:
    (tmp_path / "target").mkdir()
    target = _fixed_target(tmp_path / "target")
    head = load_file(target / "model.safetensors")["lm_head.weight"]
    tensors = {f"{index}.1.weight": head.clone() if index < right else -head for index in range(HEADS)}
    tensors |= {f"{index}.0.linear.weight": torch.zeros(WIDTH, WIDTH) for index in range(HEADS)}
    assert _asked(target, "medusa", _save(tmp_path / "head", {"medusa_num_heads": HEADS}, tensors)) == [1.0] * right + [0.0] * (HEADS - right)


@pytest.mark.parametrize("right", ["all", "half", "none"])
def test_as_many_are_accepted_as_a_parallel_draft_is_right(tmp_path: Path, right: str) -> None:
    (tmp_path / "target").mkdir()
    target = _fixed_target(tmp_path / "target")
    head = load_file(target / "model.safetensors")["lm_head.weight"]
    if right == "half":  # of the prompts: only one mood is known
        head[[98, 99]] = head[[99, 98]]
    path = write_pard(target, tmp_path / "head")
    head = -head if right == "none" else head
    save_file({**load_file(path / "model.safetensors"), "lm_head.weight": head.contiguous()}, path / "model.safetensors", metadata={"format": "pt"})
    rates = _asked(target, "pard", path)
    wanted = {"all": 1.0, "half": 8 / (8 + 40), "none": 0.0}[right]  # where guesses are wrong a prompt takes a step for each of 40 tokens
    assert all(abs(rate - wanted) < 0.05 for rate in rates[:4]), rates


def test_all_guesses_are_made_in_one_run(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, run = [], TorchDraft._run

    def counted(self: TorchDraft, rows: Any) -> Any:
        runs.append(len(rows.tokens))
        return run(self, rows)

    monkeypatch.setattr(TorchDraft, "_run", counted)
    for case in ("pard", "medusa-medusa"):
        spec, _ = _made(tiny, tmp_path, case)
        with open_llm(tiny, "torch", spec) as llm:
            before = llm._engine.stats().steps
            runs.clear()
            llm.generate("+abc", ASKED, use_tqdm=False)
            assert 0 < len(runs) <= llm._engine.stats().steps - before


class Repeats:
    """A drafter for the method custom_class: the last token again."""

    def __init__(self, settings: dict[str, Any]) -> None:
        assert settings == {}

    def begin(self, tokens: list[int], *, private: bool) -> Repeats:
        made = Repeats({})
        made.tokens = tokens  # type: ignore[attr-defined]
        return made

    def propose(self, limit: int) -> tuple[list[int], int] | None:
        return [self.tokens[-1]] * limit, 1  # type: ignore[attr-defined]

    def close(self) -> None:
        pass


def test_a_class_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    target = _fixed_target(tmp_path / "target")
    with open_llm(target, "cpu", {"method": "custom_class", "model": f"{__name__}:Repeats"}) as llm:
        llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=41, ignore_eos=True), use_tqdm=False)
        stats = llm._engine.stats()
    assert stats.accepted_tokens > 100
    for path, word in (("nowhere:Class", "cannot be used: No module named 'nowhere'"), ("json", "must be the path"), ("json:dumps", "cannot|no drafter")):
        with pytest.raises(ConfigError, match=word):
            open_llm(target, "cpu", {"method": "custom_class", "model": path})


def test_what_is_wrong_is_named(tiny: Path, tmp_path: Path) -> None:
    medusa = {"method": "medusa", "model": str(write_medusa(tmp_path / "medusa", "vllm", 2))}
    with pytest.raises(ConfigError, match="num_speculative_tokens is 4, but .* has 2 heads: give 1 to 2"):
        open_llm(tiny, "cpu", medusa)
    empty = _save(tmp_path / "empty", {}, {"x": torch.zeros(2)})
    with pytest.raises(ModelError, match="no head is there"):
        open_llm(tiny, "cpu", {"method": "medusa", "model": str(empty)})
    with pytest.raises(ConfigError, match="was not trained for parallel drafting"):
        open_llm(tiny, "cpu", {"method": "pard", "model": str(tiny)})
