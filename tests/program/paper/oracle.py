"""Parameters of transformers models on the meta device: the truth that paper models are held against."""

from __future__ import annotations

from typing import Any

import torch
import transformers

__all__ = ["make_config", "parameters"]


def make_config(config_class: str, **fields: Any) -> Any:
    """A transformers configuration object."""
    return getattr(transformers, config_class)(**fields)


def parameters(model_class: str, config: Any) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """(parameters, buffers) of the model as name -> shape. A tied parameter comes once, under its first name."""
    with torch.device("meta"):
        model = getattr(transformers, model_class)(config)
    model.tie_weights()
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    return shapes, {name: tuple(t.shape) for name, t in model.named_buffers()}
