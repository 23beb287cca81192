"""The script that trains an EAGLE head, in short: it learns, and what it saves is a head that changes no answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from benchmarks import eagle_train  # noqa: E402
from benchmarks.eagle_head import Head  # noqa: E402
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


def test_guesses_along_a_text_are_those_of_one_token_after_the_other() -> None:
    """Against transformers' own layer, to which each guess is given behind the rows that are known at its place."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=32, rms_norm_eps=1e-5
    )
    embedded, rows = torch.randn(1, 9, 16), torch.randn(1, 9, 16)
    head = Head(config, [embedded[0]], [rows[0]])
    for tensor in head.parameters():
        torch.nn.init.normal_(tensor, std=0.3)
    plain = transformers.LlamaModel(config)
    plain.load_state_dict(head.state_dict(), strict=False)
    plain.layers[0].input_layernorm, plain.norm = torch.nn.Identity(), torch.nn.Identity()
    with torch.no_grad():
        found = list(head.guesses(embedded, rows, 3))
        for start in range(5):
            given = rows[:, : start + 1]
            for run in range(3):
                at = start + run
                inputs = head.fc(torch.cat([embedded[:, 1 : at + 2], given], -1))
                row = plain(inputs_embeds=inputs, use_cache=False).last_hidden_state[:, -1:]
                assert torch.allclose(found[run][:, at : at + 1], row, atol=1e-5), (start, run)
                given = torch.cat([given, row], 1)


def test_a_head_begins_with_the_best_straight_line() -> None:
    torch.manual_seed(4)
    config = transformers.LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, vocab_size=32)
    embedded, rows, line = torch.randn(400, 8) / 50, torch.randn(400, 8), torch.randn(16, 8)
    for index in range(1, 400):
        rows[index] = torch.cat([embedded[index] * 50, rows[index - 1]]) @ line / 4 + 0.5
    head = Head(config, [embedded], [rows])
    with torch.no_grad():
        found = next(iter(head.guesses(embedded[None], rows[None], 1)))[0]
    assert (found - rows[1:]).norm() < 0.1 * (rows[1:] - rows[1:].mean(0)).norm()


@pytest.mark.slow
def test_a_head_is_trained(tmp_path: Path) -> None:
    from benchmarks.make_models import make_model
    from safetensors.torch import load_file

    torch.set_num_threads(1)
    found = answers(96, 48, 1)
    assert len(found) == 96 and all(answer for _, answer in found)
    source = make_model("bf16", tmp_path)
    base = transformers.AutoConfig.from_pretrained(source)
    table = load_file(source / "model.safetensors")["model.embed_tokens.weight"].float()
    trainer = Trainer(transformers.LlamaConfig(**{**base.to_dict(), "num_hidden_layers": 1}), table, read(found, 1), 2048)
    trainer.train(60, 4, 2)
    per_step, rest = measure(save(trainer.head, base, 1, tmp_path / "eagle"), 2, 32, 1)  # ends the run where answers differ
    print(f"{per_step:.3f} tokens per step; {rest}")
    assert 1.05 <= per_step <= 3.0 and "accepted by position" in rest
