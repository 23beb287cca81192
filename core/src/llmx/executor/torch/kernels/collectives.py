"""Collectives: what one rank's rows become with those of the others."""

from __future__ import annotations

from typing import Any

import torch

from llmx.errors import PlatformError
from llmx.executor.torch.kernel import Bound, reference
from llmx.executor.torch.rows import Rows

__all__ = ["collective"]


@reference()
def collective(op: Bound, rows: Rows, x: torch.Tensor) -> Any:
    """all_reduce and all_gather by the executor's communicator."""
    if rows.communicator is None or rows.communicator.size != op.attrs.size:
        raise PlatformError(f"the Program is one of {op.attrs.size} ranks' share; the executor is not connected to as many")
    if op.attrs.op not in ("all_reduce", "all_gather"):
        raise PlatformError(f"collective {op.attrs.op!r} is not there; all_reduce and all_gather are")
    return getattr(rows.communicator, op.attrs.op)(x.contiguous())
