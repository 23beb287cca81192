"""A tiny random model of transformers on an executor: logits of every row, in chunks and beside another request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from llmx.executor import ModelBundle
from llmx.program.ops import QuantKey
from llmx.program.verify import verify
from llmx.testing import Driver, bundle_from, logits_of
from tests.program.paper.oracle import make_config
from tests.program.test_meaning import DECODERS, IDS, random_model, tensors

__all__ = ["F32", "SEVERAL_GROUPS", "check_logits"]

F32 = QuantKey("dense", (("data", "f32", 1),))
LONG = np.random.default_rng(2).integers(0, 512, 29)
SEVERAL_GROUPS = {"falcon-h1", "falcon-h1 normed after the gate", "qwen3-next", "gemma-3n", "qwen2"}
CHUNKS = ((slice(0, 17), slice(0, 5)), (slice(17, 18), slice(5, 12)), (slice(18, 29), slice(12, 12)))


def check_logits(case: str, make: Callable[[ModelBundle], Any]) -> None:
    """The logits of one of DECODERS equal those of transformers in float32. make: a loaded executor."""
    build, config_class, model_class, fields = DECODERS[case]
    config = make_config(config_class, **fields)
    oracle = random_model(model_class, config)
    model = build(config.to_dict(), lambda name: F32)  # type: ignore[call-arg]
    verify(model)
    executor = make(bundle_from(model, tensors(oracle), max_model_len=64))
    assert (len(executor.kv_needs()) > 1) == (case in SEVERAL_GROUPS)
    driver = Driver(executor, room=0)
    driver.join({3: LONG.tolist(), 0: IDS.tolist()})
    got: dict[int, list[np.ndarray]] = {3: [], 0: []}
    for long, short in CHUNKS:
        rows = {slot: ids for slot, ids in ((3, LONG[long].tolist()), (0, IDS[short].tolist())) if ids}
        for slot, logits in logits_of(executor, driver.seq, rows, {3: long.start, 0: short.start}).items():
            got[slot].append(logits)
    for slot, ids in ((3, LONG), (0, IDS)):
        with torch.no_grad():
            want = oracle(torch.tensor(ids)[None]).logits[0].double().numpy()
        assert want.std() > 0.1
        np.testing.assert_allclose(np.concatenate(got[slot]), want, atol=2e-4 * np.abs(want).max(), rtol=0)
    executor.close()
