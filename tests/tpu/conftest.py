"""Tests of the JAX executor share one folder of compiled programs, and compile without much optimisation: compiling takes most of their time."""

from __future__ import annotations

import os

import pytest

FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
os.environ["XLA_FLAGS"] = " ".join(filter(None, (os.environ.get("XLA_FLAGS"), FLAGS)))  # read when JAX opens its backend


@pytest.fixture(scope="session")
def jax_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("compiled"))
