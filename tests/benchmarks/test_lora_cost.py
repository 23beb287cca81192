"""The adapters of benchmarks/lora.py are whole: every matrix of SmolLM2-135M, bf16."""

from __future__ import annotations

from pathlib import Path

from benchmarks.lora import write_adapter

from llmx.lora.peft import read_peft


def test_adapters_are_whole(tmp_path: Path) -> None:
    adapter = read_peft(str(write_adapter(tmp_path / "a", 1, 2)))
    assert (len(adapter.modules), adapter.rank) == (210, 2)
    assert {(module.a.dtype, module.b.dtype, module.scale) for module in adapter.modules.values()} == {("bf16", "bf16", 2.0)}
