"""Logits of a loaded model after every token of a prompt, from an executor driven as the scheduler drives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from llmx.executor import Control, Executor, HostTensor, Late, LoraPart, ModelBundle, Step, Want
from llmx.program.ops import Model
from llmx_cpu.native import ISA_NAMES, best_isa
from tests.cpu.native_model import Driver, MemorySource, config_for, native_executor
from tests.torch_executor.torch_model import config_for as torch_config
from tests.torch_executor.torch_model import torch_executor

__all__ = ["EXECUTORS", "in_memory", "logits_at", "logits_of"]

Make = Callable[[ModelBundle, int, int], Executor]  # (model, tokens of a step, requests)


def _native(level: str) -> Make:
    def make(bundle: ModelBundle, tokens: int, seqs: int) -> Executor:
        return native_executor(bundle, config_for(dtype="float32", isa=level, max_tokens=tokens, seqs=seqs), blocks=400)

    return make


def _levels() -> dict[str, Make]:
    """The native executor at every instruction-set level of this machine, the best first."""
    levels = ISA_NAMES[: ISA_NAMES.index(best_isa()) + 1]
    return {f"cpu {level}": _native(level) for level in reversed(levels)}


def _torch(bundle: ModelBundle, tokens: int, seqs: int) -> Executor:
    return torch_executor(bundle, torch_config(tokens, seqs, lora=True), blocks=400)


EXECUTORS: Mapping[str, Make] = {**_levels(), "torch": _torch}


def in_memory(bundle: ModelBundle) -> ModelBundle:
    """The bundle with its tensors copied: executors close the files that they have loaded from."""
    source: Any = bundle.weights
    stored = {name: source.raw(name) for name in source.names()}
    return replace(bundle, weights=MemorySource({name: HostTensor(t.dtype, t.shape, t.data.copy()) for name, t in stored.items()}))


def logits_of(
    bundle: ModelBundle, prompt: Sequence[int], executor: str = "", model: Model | None = None, adapter: Mapping[str, LoraPart] | None = None
) -> np.ndarray:
    """f32 [len(prompt), V]. executor: a key of EXECUTORS, the first by default. model: runs in place of the bundle's own.
    adapter: used by all rows.

    Odd rows end a prompt that is prefilled beside others of every even length; even rows are decoded one at a time, as many together.
    """
    ends = range(2, len(prompt) + 1, 2)
    make = EXECUTORS[executor or next(iter(EXECUTORS))]
    run = make(bundle if model is None else replace(bundle, model=model), sum(ends), len(ends))
    try:
        driver = Driver(run, room=0)
        lora = {}
        if adapter is not None:
            lora = dict.fromkeys(range(len(ends)), 3)
            assert run.control(Control("lora_add", {"slot": 3, "parts": adapter})).ok
        driver.join(dict.fromkeys(range(len(ends)), prompt), lora=lora)
        rows = np.empty((len(prompt), bundle.vocab_size), np.float32)
        rows[1::2] = _late_step(driver, {slot: prompt[:end] for slot, end in enumerate(ends)})
        more = {slot: prompt[end : end + 1] for slot, end in enumerate(ends) if end < len(prompt)}
        rows[2::2] = _late_step(driver, more)
        driver.leave(0)
        driver.join({0: prompt}, lora=lora)
        rows[0:1] = _late_step(driver, {0: prompt[:1]})
        return rows
    finally:
        run.close()


def logits_at(bundle: ModelBundle, prompt: Sequence[int], positions: Sequence[int], chunk: int = 256) -> np.ndarray:
    """f32 [len(positions), V]: logits after the tokens at these ascending positions, the prompt taken in chunks."""
    run = next(iter(EXECUTORS.values()))(bundle, chunk, 1)
    try:
        driver, rows = Driver(run, room=0), []
        driver.join({0: prompt})
        for position in positions:
            while (start := driver.done[0]) <= position:
                last = _late_step(driver, {0: prompt[start : min(start + chunk, position + 1)]})
            rows.append(last[0])
        return np.stack(rows)
    finally:
        run.close()


def _late_step(driver: Driver, rows: Mapping[int, Sequence[int]]) -> np.ndarray:
    """f32 [slots, V]: raw logits of each slot's last row, in a step of these rows."""
    seen: list[np.ndarray] = []

    def keep(logits: np.ndarray) -> np.ndarray:
        seen.append(logits.copy())
        return logits

    q = np.array([len(tokens) for tokens in rows.values()], np.int32)
    step = Step(
        driver.seq,
        slot=np.array(list(rows), np.int32),
        q=q,
        start=np.array([driver.done[slot] for slot in rows], np.int32),
        tokens=np.array([t for tokens in rows.values() for t in tokens], np.int32),
        head=(np.cumsum(q) - 1).astype(np.int32),
        samples=np.array([(slot, i, 1) for i, slot in enumerate(rows)], np.int32),
        want=[Want()] * len(rows),
        new_blocks=tuple(np.empty((0, 3), np.int32) for _ in driver.executor.kv_needs()),
        late=True,
    )
    driver.seq += 1
    for slot, tokens in rows.items():
        driver.done[slot] += len(tokens)
    ticket = driver.executor.submit(step)
    driver.executor.release(ticket, Late(host_logits=keep))
    driver.executor.collect(ticket)
    return seen[0]
