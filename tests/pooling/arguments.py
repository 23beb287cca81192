"""Arguments of the methods of LLM for vectors and scores: each has a check of its effect, or is refused by name.

tests/pooling/test_arguments.py runs the checks on two tiny models; tests/engine/test_llm_table.py holds them against the real signatures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmx import LLM, LoRARequest, PoolingParams
from tests.engine.llm_table import Bar, Refused, bar_of

__all__ = ["POOLING_ARGUMENTS", "POOLING_ASKS"]

Check = Callable[[LLM, LLM], object]  # a model that gives vectors of 32 elements, a classifier with three labels
RAW = PoolingParams(use_activation=False)
CUT = {"truncate_prompt_tokens": 4}
TEXT = "paris is old"
ADAPTER = LoRARequest("there")  # loaded by the test's fixture


def _shared(ask: Callable[..., Any]) -> dict[str, Check | Refused]:
    """ask: (vectors, labels, **arguments) -> outputs for TEXT."""
    return {
        "pooling_params": lambda v, c: ask(v, c, pooling_params=RAW)[0].outputs != ask(v, c)[0].outputs,
        "use_tqdm": lambda v, c: bar_of(lambda: ask(v, c, use_tqdm=Bar)).total == 1,
        "lora_request": lambda v, c: ask(v, c, lora_request=ADAPTER)[0].outputs != ask(v, c)[0].outputs,
        "tokenization_kwargs": lambda v, c: [len(ask(v, c, **more)[0].prompt_token_ids) for more in ({}, {"tokenization_kwargs": CUT})] == [5, 4],
    }


def _encode(v: LLM, c: LLM, **given: Any) -> Any:
    outputs = v.encode([TEXT], **given)
    for one in outputs:
        one.outputs.data = one.outputs.data.tolist()  # comparable
    return outputs


POOLING_ARGUMENTS: dict[str, dict[str, Check | Refused]] = {
    "encode": {
        "prompts": lambda v, c: [one.outputs.data.shape for one in v.encode([TEXT, {"prompt": "a"}, [2, 11, 3]])] == [(32,)] * 3,
        **_shared(_encode),
        "pooling_task": lambda v, c: v.encode(TEXT, pooling_task="token_embed")[0].outputs.data.shape == (5, 32),
    },
    "embed": {"prompts": lambda v, c: len(v.embed([TEXT, "a"])[1].outputs.embedding) == 32, **_shared(lambda v, c, **given: v.embed(TEXT, **given))},
    "classify": {"prompts": lambda v, c: len(c.classify([TEXT, "a"])[1].outputs.probs) == 3, **_shared(lambda v, c, **given: c.classify(TEXT, **given))},
    "score": {
        "data_1": lambda v, c: v.score("a", TEXT)[0].outputs != v.score(TEXT, TEXT)[0].outputs,
        "data_2": lambda v, c: len(v.score("a", ["a", TEXT])) == 2,
        "use_tqdm": lambda v, c: bar_of(lambda: v.score("a", TEXT, use_tqdm=Bar)).total == 2,
        "pooling_params": lambda v, c: len(v.score("a", TEXT, pooling_params=PoolingParams(truncate_prompt_tokens=3))[0].prompt_token_ids) == 6,
        "lora_request": lambda v, c: v.score("a", TEXT, lora_request=ADAPTER)[0].outputs != v.score("a", TEXT)[0].outputs,
    },
}
POOLING_ASKS: dict[str, tuple[Any, ...]] = {"encode": (TEXT,), "embed": (TEXT,), "classify": (TEXT,), "score": (TEXT, TEXT)}
