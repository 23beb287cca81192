"""Every argument of encode, embed, classify and score has its effect or is refused by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llmx import LLM, RequestError
from tests.engine.llm_table import Refused
from tests.pooling.arguments import POOLING_ARGUMENTS, POOLING_ASKS
from tests.pooling.checkpoints import write

CALLS = [(method, argument) for method, arguments in POOLING_ARGUMENTS.items() for argument in arguments]


@pytest.fixture(scope="module")
def llms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, LLM]]:
    folders = [tmp_path_factory.mktemp(name) for name in ("bert", "bert_labels")]
    write(folders[0], "bert", "mean_tokens")
    write(folders[1], "bert_labels")
    with LLM(str(folders[0]), platform="cpu", threads=1, num_blocks=100) as vectors, LLM(str(folders[1]), platform="cpu", threads=1, num_blocks=100) as labels:
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
