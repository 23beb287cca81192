"""TorchArrays: values on a torch device, for code that must not know torch: what collectives are tested and measured with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = ["TorchArrays"]


class TorchArrays:
    """Tensors of one device. threads: of torch on the CPU."""

    def __init__(self, device: str, threads: int = 1) -> None:
        self.device = torch.device(device)
        torch.set_num_threads(threads)

    def put(self, values: np.ndarray, dtype: str) -> torch.Tensor:
        """Values as a tensor of a type by its name in torch, rounded to it."""
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device, getattr(torch, dtype), copy=True)

    def get(self, x: Any) -> np.ndarray:
        """The values: float32, or int64 for whole numbers."""
        values: np.ndarray = x.detach().cpu().to(torch.float32 if x.is_floating_point() else torch.int64).numpy()
        return values

    def name(self, x: Any) -> str:
        """The name of its type."""
        return str(x.dtype).removeprefix("torch.")

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self.device.type != "cpu":
            torch.get_device_module(self.device).synchronize(self.device)
