"""Every argument of encode, embed, classify and score has its effect or is refused by name."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from llmx import LLM, RequestError
from tests.engine.llm_table import Refused
from tests.lora.adapters import write_adapter
from tests.pooling.arguments import POOLING_ARGUMENTS, POOLING_ASKS
from tests.pooling.checkpoints import write

CALLS = [(method, argument) for method, arguments in POOLING_ARGUMENTS.items() for argument in arguments]


@pytest.fixture(scope="module")
def llms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, LLM]]:
    folders = [tmp_path_factory.mktemp(name) for name in ("bert", "bert_labels")]
    write(folders[0], "bert", "mean_tokens")
    write(folders[1], "bert_labels")
    rng, options = np.random.default_rng(3), []
    for folder, name in zip(folders, ("encoder", "bert.encoder"), strict=True):
        pair = rng.normal(0, 1, (4, 32)).astype(np.float32), rng.normal(0, 1, (32, 4)).astype(np.float32)
        adapter = write_adapter(folder / "adapter", {f"{name}.layer.0.attention.self.value": pair})
        options.append({"platform": "cpu", "threads": 1, "num_blocks": 100, "lora_modules": [f"there={adapter}"]})
    with LLM(str(folders[0]), **options[0]) as vectors, LLM(str(folders[1]), **options[1]) as labels:
        yield vectors, labels


@pytest.mark.parametrize(("method", "argument"), CALLS, ids=[".".join(call) for call in CALLS])
def test_an_argument_has_its_effect_or_is_refused(method: str, argument: str, llms: tuple[LLM, LLM]) -> None:
    check = POOLING_ARGUMENTS[method][argument]
    if isinstance(check, Refused):
        with pytest.raises(RequestError) as caught:
            getattr(llms[0], method)(*POOLING_ASKS[method], **{argument: check.value})
        assert caught.value.field == argument
        return
    assert check(*llms)
    assert all(not llm.llm_engine.has_unfinished_requests() and llm.llm_engine.engine.kv.blocks_held == 0 for llm in llms)
