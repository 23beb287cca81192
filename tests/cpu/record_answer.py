"""Records 16 greedy tokens of the embedded model for csrc/replay: `python -m tests.cpu.record_answer FILE` prints the tokens."""

from __future__ import annotations

import ctypes as C
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tests.cpu.native_model import Driver, config_for, native_executor
from tests.cpu.recording import Recorder

from llmx.config import ModelConfig
from llmx.models.load import load_model
from llmx.tokens.tokenizer import Tokenizer
from llmx_cpu import executor as executor_module
from llmx_cpu import native

__all__ = ["record_answer"]

TEXT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


class _Printing:
    """An executor whose replay prints each step's token."""

    def __init__(self, inner: Any, recorder: Recorder) -> None:
        self._inner, self._recorder = inner, recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def submit(self, step: Any) -> Any:
        ticket = self._inner.submit(step)
        if len(step.samples):
            self._recorder.print_ints(C.c_void_p.from_buffer(ticket.payload.result, native.StepResult.tokens.offset).value or 0, 256, 1)
        return ticket


def record_answer(path: Path, count: int = 16) -> list[int]:
    """Greedy tokens after TEXT, end tokens among them like any other. Patches the package's way to the library: for a process of its own."""
    recorder = Recorder(path)
    native.library = executor_module.library = lambda: recorder  # type: ignore[assignment]
    native.best_isa = lambda: "portable"  # type: ignore[assignment]
    model = load_model(ModelConfig())
    prompt = Tokenizer.load(model.summary.tokenizer).encode(TEXT)
    inner = native_executor(model.bundle, config_for(isa="portable", max_tokens=64, seqs=2), blocks=40)
    driver = Driver(_Printing(inner, recorder))
    driver.join({0: prompt})
    tokens = [int(driver.step({0: prompt}).tokens[0, 0])]
    while len(tokens) < count:
        tokens.append(int(driver.step({0: [-1]}).tokens[0, 0]))
    inner.close()
    recorder.close()
    return tokens


if __name__ == "__main__":
    print(*np.array(record_answer(Path(sys.argv[1]))))
