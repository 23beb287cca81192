"""Whole models on the torch executor: logits of tiny random models equal those of transformers, in chunks, beside another request."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from llmx.program.ops import QuantKey  # noqa: E402
from llmx.program.verify import verify  # noqa: E402
from llmx.testing import Driver  # noqa: E402
from tests.program.paper.oracle import make_config  # noqa: E402
from tests.program.test_meaning import DECODERS, IDS, random_model, tensors  # noqa: E402
from tests.torch_executor.torch_model import bundle_from, logits_of, torch_executor  # noqa: E402

F32 = QuantKey("dense", (("data", "f32", 1),))
LONG = np.random.default_rng(2).integers(0, 512, 29)
SEVERAL_GROUPS = {"falcon-h1", "falcon-h1 normed after the gate", "qwen3-next", "gemma-3n", "qwen2"}


@pytest.mark.parametrize("case", DECODERS)
def test_logits_equal_transformers(case: str) -> None:
    build, config_class, model_class, fields = DECODERS[case]
    config = make_config(config_class, **fields)
    oracle = random_model(model_class, config)
    model = build(config.to_dict(), lambda name: F32)  # type: ignore[call-arg]
    verify(model)
    executor = torch_executor(bundle_from(model, tensors(oracle), max_model_len=64))
    assert (len(executor.kv_needs()) > 1) == (case in SEVERAL_GROUPS)
    driver = Driver(executor, room=0)
    driver.join({3: LONG.tolist(), 0: IDS.tolist()})
    got: dict[int, list[np.ndarray]] = {3: [], 0: []}
    for long, short in ((slice(0, 17), slice(0, 5)), (slice(17, 18), slice(5, 12)), (slice(18, 29), slice(12, 12))):
        rows = {slot: ids for slot, ids in ((3, LONG[long].tolist()), (0, IDS[short].tolist())) if ids}
        for slot, logits in logits_of(executor, driver.seq, rows, {3: long.start, 0: short.start}).items():
            got[slot].append(logits)
    for slot, ids in ((3, LONG), (0, IDS)):
        with torch.no_grad():
            want = oracle(torch.tensor(ids)[None]).logits[0].double().numpy()
        assert want.std() > 0.1
        np.testing.assert_allclose(np.concatenate(got[slot]), want, atol=2e-4 * np.abs(want).max(), rtol=0)
    executor.close()
