"""The greedy reference: SmolLM2's answers by transformers in float32 on the dequantised weights, and how much likelier each token was than the next."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmx import LLM, SamplingParams

__all__ = ["ROWS", "check_greedy"]

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "greedy_reference.json").read_text())["rows"]


def check_greedy(llm: LLM, rows: Sequence[dict[str, Any]]) -> None:
    """Tokens equal the reference's, up to one that is as likely as another there."""
    outputs = llm.generate([row["prompt"] for row in rows], SamplingParams(temperature=0.0, max_tokens=48))
    for row, output in zip(rows, outputs, strict=True):
        tokens = output.outputs[0].token_ids
        wrong = next((at for at, (a, b) in enumerate(zip(tokens, row["answer"], strict=False)) if a != b), None)
        assert wrong is None or row["margins"][wrong] < 0.001, (row["text"], wrong)
        assert wrong is not None or len(tokens) == len(row["answer"])
