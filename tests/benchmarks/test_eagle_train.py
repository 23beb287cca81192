"""The script that trains an EAGLE head, in short: it learns, and what it saves is a head that changes no answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from benchmarks import eagle_train  # noqa: E402
from benchmarks.eagle_train import Text, Trainer, answers, measure, read, save  # noqa: E402


def test_fewer_texts_than_a_batch_are_enough() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, vocab_size=32)
    texts = [Text(torch.arange(1, 9), torch.randn(8, 16)) for _ in range(2)]
    trainer = Trainer(config, torch.randn(32, 16), texts, 32)
    before = trainer.head.fc.weight.detach().clone()
    trainer.train(3, 4, 1)
    assert not torch.equal(before, trainer.head.fc.weight)


def test_answers_of_another_form_are_refused_by_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "answers-8-24.json").write_text(json.dumps([[1, 2, 3], [4, 5, 6]]))
    monkeypatch.setattr(sys, "argv", ["eagle_train", str(tmp_path), "--answers", "8", "--new", "24", "--threads", "1"])
    with pytest.raises(SystemExit, match="answers-8-24.json does not hold pairs of token ids"):
        eagle_train.main()


@pytest.mark.slow
def test_a_head_is_trained(tmp_path: Path) -> None:
    from benchmarks.make_models import make_model
    from safetensors.torch import load_file

    torch.set_num_threads(1)
    found = answers(8, 24, 1)
    assert len(found) == 8 and all(answer for _, answer in found)
    source = make_model("bf16", tmp_path)
    base = transformers.AutoConfig.from_pretrained(source)
    table = load_file(source / "model.safetensors")["model.embed_tokens.weight"].float()
    trainer = Trainer(transformers.LlamaConfig(**{**base.to_dict(), "num_hidden_layers": 1}), table, read(found, 1), 512)
    trainer.train(8, 4, 1)
    per_step, rest = measure(save(trainer.head, base, 1, tmp_path / "eagle"), 2, 16, 1)  # ends the run where answers differ
    assert 1.0 <= per_step <= 3.0 and "accepted by position" in rest
