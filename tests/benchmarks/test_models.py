"""Model files that the comparison makes: the GGUF is the same model in another format, the checkpoint directory computes the same tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from benchmarks.make_models import requantise, write_checkpoint

from llmx.weights.gguf import GgufFile
from llmx.weights.quant import dequantize
from llmx.weights.sources import locate


def test_requantised_file_keeps_all_but_the_matrices(tmp_path: Path) -> None:
    source = Path(locate("smollm2-135m-instruct"))
    requantise(source, tmp_path / "q8.gguf", ("q4_1",), "q8_0")
    old, new = GgufFile(str(source)), GgufFile(str(tmp_path / "q8.gguf"))
    assert {t.dtype for t in new.tensors.values()} == {"q8_0", "f32"}
    assert list(old.tensors) == list(new.tensors) and old.metadata.keys() == new.metadata.keys()
    assert new.metadata["general.file_type"] == 7 and old.metadata["general.file_type"] == 3
    for name in ("blk.0.attn_q.weight", "blk.29.ffn_down.weight"):
        a, b = dequantize(old.tensor(name)), dequantize(new.tensor(name))
        blocks = a.reshape(-1, 32)
        assert np.all(np.abs(a - b).reshape(-1, 32) <= np.abs(blocks).max(1, keepdims=True) / 127)
    for name in ("token_embd.weight", "output_norm.weight"):
        assert np.array_equal(old.tensor(name).data, new.tensor(name).data)
    old.close(), new.close()


def test_checkpoint_directory_is_the_same_model(tmp_path: Path) -> None:
    from llmx import LLM, SamplingParams

    write_checkpoint(Path(locate("smollm2-135m-instruct")), tmp_path)
    chat, params = [{"role": "user", "content": "What is the capital of France?"}], SamplingParams(temperature=0.0, max_tokens=7)
    with LLM(str(tmp_path), max_model_len=256, threads=1) as llm:
        answer = llm.chat(chat, params, use_tqdm=False)[0].outputs[0].text
        assert llm.info.dtype == "bf16"
    assert answer == "The capital of France is Paris."
