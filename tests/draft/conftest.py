"""Targets that every test of drafters on the device uses, and what they answer without one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.draft.engines import PROMPTS, facts, open_llm, params
from tests.draft.moody import write_fixed_target, write_moody_target
from tests.structured.tiny import write_tiny_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def moody(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter must read its rows to be right."""
    return write_moody_target(tmp_path_factory.mktemp("moody"))


@pytest.fixture(scope="session")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One token for each mood, again and again."""
    return write_fixed_target(tmp_path_factory.mktemp("fixed"))


@pytest.fixture(scope="session")
def plain() -> Callable[[Path], list[Any]]:
    """The facts of PROMPTS that a target gives without a drafter."""

    @cache
    def answered(target: Path) -> list[Any]:
        with open_llm(target) as llm:
            return facts(llm.generate(PROMPTS, params(), use_tqdm=False))

    return answered
