"""Random checkpoints written by transformers, and its logits of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.families.cases import PROMPT_LENGTH, Case

__all__ = ["PROMPT", "write_checkpoint"]

PROMPT: Sequence[int] = [int(t) for t in np.random.default_rng(5).integers(3, 512, PROMPT_LENGTH)]


def write_checkpoint(case: Case, folder: Path, prompt: Sequence[int] = PROMPT) -> np.ndarray:
    """Writes config.json and safetensors; gives back f32 [len(prompt), vocabulary], the logits.

    Every parameter is random, biases and weights of norms too, so that none can stand for another.
    """
    torch.manual_seed(11)
    torch.set_num_threads(1)
    config = getattr(transformers, case.config)(**case.fields)
    config._attn_implementation = "eager"
    model = getattr(transformers, case.model)(config).eval().float()
    with torch.no_grad():
        for name, p in model.named_parameters():
            is_norm = p.ndim == 1 and name.endswith("weight")
            p.normal_(0.0, 0.3 if is_norm else 0.2)
            if is_norm and not case.offset:
                p.add_(1.0)
        model.save_pretrained(folder)
        logits: Any = model(torch.tensor([prompt]), use_cache=False).logits[0]
    return np.asarray(logits.numpy(), np.float32)
