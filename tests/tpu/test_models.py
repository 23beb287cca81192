"""Whole models on the JAX executor: logits of tiny random models equal those of transformers, in chunks, beside another request."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from llmx.executor import ModelBundle  # noqa: E402
from tests.program.test_meaning import DECODERS  # noqa: E402
from tests.torch_executor.decoder_logits import check_logits  # noqa: E402
from tests.tpu.jax_model import config_for, jax_executor  # noqa: E402

FAST = ("llama", "deepseek-v3", "falcon-h1")  # norm, attention and MLP; latent attention and experts; recurrent


@pytest.mark.parametrize("case", [pytest.param(case, marks=[] if case in FAST else pytest.mark.slow) for case in DECODERS])
def test_logits_equal_transformers(case: str, jax_cache: str) -> None:
    def make(bundle: ModelBundle) -> object:
        return jax_executor(bundle, config_for(32, 4, cache=jax_cache))

    check_logits(case, make)
