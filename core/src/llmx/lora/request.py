"""LoRARequest: the adapter that a call of LLM or AsyncLLMEngine uses; loaded when it is first named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llmx.errors import RequestError
from llmx.record import record

__all__ = ["LoRARequest", "adapter_name", "adapters_per_prompt"]


@record
class LoRARequest:
    """lora_path: a folder as peft saves it. lora_int_id: 1 or more; kept for scripts that bring it, adapters are known by their names.

    load_inplace: read the folder again although an adapter of this name is loaded.
    """

    lora_name: str
    lora_int_id: int = 1
    lora_path: str = ""
    base_model_name: str | None = None
    load_inplace: bool = False

    def __post_init__(self) -> None:
        if self.lora_int_id < 1:
            raise RequestError(f"lora_int_id is {self.lora_int_id}: it must be 1 or more", field="lora_request")
        if not self.lora_name:
            raise RequestError("lora_name is empty: give the adapter a name", field="lora_request")


def adapter_name(request: object, load: Callable[..., Any]) -> str:
    """The name that a request's adapter is known by, once `load` has it; "" for None. Raises RequestError."""
    if request is None:
        return ""
    if not isinstance(request, LoRARequest):
        raise RequestError(f"lora_request is a {type(request).__name__}: give a LoRARequest, or leave it out", field="lora_request")
    if request.lora_path:
        load(request.lora_name, request.lora_path, in_place=request.load_inplace)
    return request.lora_name


def adapters_per_prompt(given: LoRARequest | Sequence[LoRARequest | None] | None, count: int) -> list[LoRARequest | None]:
    """One for each of `count` prompts, from one for all or a list of as many. Raises RequestError."""
    if given is None or not isinstance(given, list | tuple):
        return [given] * count  # type: ignore[list-item]
    if len(given) != count:
        raise RequestError(f"{count} prompts but {len(given)} lora_request: give one, or one (or None) per prompt", field="lora_request")
    return list(given)
