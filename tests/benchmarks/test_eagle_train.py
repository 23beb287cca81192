"""The script that trains an EAGLE head, in short: it learns, and what it saves is a head that changes no answer."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")


@pytest.mark.slow
def test_a_head_is_trained(tmp_path: Path) -> None:
    import torch
    import transformers
    from benchmarks.eagle_train import answers, measure, save, train
    from benchmarks.make_models import make_model

    torch.set_num_threads(1)
    texts = answers(8, 24, 1)
    assert len(texts) == 8 and all(len(text) > 24 for text in texts)
    model = transformers.AutoModelForCausalLM.from_pretrained(make_model("bf16", tmp_path), dtype=torch.float32)
    head, losses = train(model, texts, layers=1, epochs=4)
    assert losses[-1] < 0.9 * losses[0]
    per_step, rest = measure(save(head, model.config, 1, tmp_path / "eagle"), 2, 16, 1)  # ends the run where answers differ
    assert 1.0 <= per_step <= 3.0 and "accepted by position" in rest
