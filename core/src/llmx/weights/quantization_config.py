"""quantization_config of config.json: what of it is needed to read GPTQ and AWQ weights, and what cannot be read.

Fields as AutoGPTQ 0.7 (quantize_config.json), GPTQModel and AutoAWQ 0.2 write them, the last also by its older names w_bit and q_group_size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmx.errors import ModelError
from llmx.record import record

__all__ = ["GroupFormat", "group_format"]

_BITS = {"gptq": (4, 8), "awq": (4,)}
_REMEDY = "take a checkpoint in another format (GPTQ or AWQ with 4 bits, GGUF), or dense weights with --quantization int8 or int4"


@record
class GroupFormat:
    """method: gptq or awq. group_size: -1 for one group per row. plus_one: stored zero points are one too small (GPTQ's first format)."""

    method: str
    bits: int
    group_size: int
    plus_one: bool


def group_format(config: Mapping[str, Any], path: str) -> GroupFormat | None:
    """How the checkpoint's matrices are stored; None where config.json names no method. Raises ModelError for what cannot be read."""
    table = config.get("quantization_config")
    if table is None:
        return None
    if not isinstance(table, Mapping):
        raise _refused("", table, "an object", path)
    method = str(table.get("quant_method", "")).lower()
    if method not in _BITS:
        raise _refused("quant_method", table.get("quant_method"), " or ".join(_BITS), path)
    bits = table.get("bits", table.get("w_bit"))
    if isinstance(bits, bool) or bits not in _BITS[method]:
        raise _refused("bits", bits, f"{' or '.join(map(str, _BITS[method]))} with {method}", path)
    size = table.get("group_size", table.get("q_group_size"))
    if isinstance(size, bool) or not isinstance(size, int) or not (size == -1 or (size > 0 and size % 32 == 0)):
        raise _refused("group_size", size, "-1 or a multiple of 32", path)
    form = _gptq_form(table, path) if method == "gptq" else _awq_form(table, path)
    return GroupFormat(method, bits, size, form == "gptq")


def _gptq_form(table: Mapping[str, Any], path: str) -> str:
    form = str(table.get("checkpoint_format", table.get("format", "gptq"))).lower()
    if form not in ("gptq", "gptq_v2"):
        raise _refused("checkpoint_format", form, "gptq or gptq_v2", path)
    for name, why in (("is_marlin_format", "false"), ("dynamic", "empty: one setting for all matrices")):
        if table.get(name):
            raise _refused(name, table[name], why, path)
    if str(table.get("pack_dtype", "int32")) not in ("int32", "torch.int32"):
        raise _refused("pack_dtype", table["pack_dtype"], "int32", path)
    return form


def _awq_form(table: Mapping[str, Any], path: str) -> str:
    version = str(table.get("version", "gemm")).lower()
    if version != "gemm":
        raise _refused("version", version, "gemm", path)
    if table.get("zero_point", True) is not True:
        raise _refused("zero_point", table["zero_point"], "true", path)
    if str(table.get("backend", "autoawq")).lower() != "autoawq":
        raise _refused("backend", table["backend"], "autoawq", path)
    return version


def _refused(field: str, value: Any, wanted: str, path: str) -> ModelError:
    name = f"quantization_config{'.' if field else ''}{field}"
    return ModelError(f"{name} is {str(value)[:80]!r}, but only {wanted} can be read: {_REMEDY}", path=path)
