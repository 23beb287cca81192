"""Whole models on the torch executor: logits of tiny random models equal those of transformers, in chunks, beside another request."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.program.test_meaning import DECODERS  # noqa: E402
from tests.torch_executor.decoder_logits import check_logits  # noqa: E402
from tests.torch_executor.torch_model import torch_executor  # noqa: E402


@pytest.mark.parametrize("case", DECODERS)
def test_logits_equal_transformers(case: str) -> None:
    check_logits(case, torch_executor)
