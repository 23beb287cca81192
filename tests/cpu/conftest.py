"""Fixtures of the native tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cpu.native_slots import SlotTable


@pytest.fixture
def open_slots() -> Iterator[Callable[..., SlotTable]]:
    """Makes slot tables; they are closed after the test."""
    from tests.cpu.native_slots import SlotTable  # here: other tests of this folder are collected without the native library

    tables: list[SlotTable] = []

    def make(max_requests: int = 4, max_blocks: tuple[int, ...] = (8,)) -> SlotTable:
        tables.append(SlotTable(max_requests, max_blocks))
        return tables[-1]

    yield make
    for table in tables:
        table.close()
