"""Graph backends: torch's graphs on a device that has them, and a recorder that stands in for them on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from llmx.errors import PlatformError
from llmx.hooks.devices import GraphBackend, GraphLimits

__all__ = ["DeviceGraphs", "PlainCalls", "RecordedGraphs", "graphs_for"]


def graphs_for(device: str, *, piecewise: bool = False) -> GraphBackend:
    """The backend for a device by its torch name; the recorder for "cpu"."""
    limits = GraphLimits(piecewise=piecewise)
    return RecordedGraphs(limits) if torch.device(device).type == "cpu" else DeviceGraphs(torch.device(device), limits)


class DeviceGraphs:
    """torch.accelerator.Graph: one memory pool and one stream for all graphs."""

    def __init__(self, device: torch.device, limits: GraphLimits) -> None:
        if not hasattr(torch.accelerator, "Graph"):
            raise PlatformError(f"torch {torch.__version__} has no torch.accelerator.Graph: take torch 2.13 or newer, or switch graph capture off")
        self.limits = limits
        self._stream = torch.Stream(device)
        self._graphs: list[Any] = []

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Run once, so that libraries and kernels make what they need, then record on a stream of its own."""
        torch.accelerator.synchronize()
        with self._stream:
            run()
        torch.accelerator.synchronize()
        graph = torch.accelerator.Graph(pool=self._graphs[0].pool() if self._graphs else None)
        with self._stream, graph:
            run()
        self._graphs.append(graph)
        replay: Callable[[], None] = graph.replay
        return replay

    def close(self) -> None:
        """Give the graphs' memory back."""
        for graph in self._graphs:
            graph.reset()
        self._graphs = []


class RecordedGraphs:
    """Records torch's operations with the tensors that they were called with, and calls them again on the same tensors.

    As on a device, nothing of Python runs again: shapes, indices and numbers from the host stay what they were, results land where they
    landed, and only what lies in memory is new.
    """

    def __init__(self, limits: GraphLimits) -> None:
        self.limits = limits

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record one call of `run`."""
        recorder = _Recorder()
        with recorder:
            run()
        return recorder.replay

    def close(self) -> None:
        """A graph is kept alive by its replay alone."""


class PlainCalls:
    """No graphs: the work is called again. For platforms that compile and do not capture."""

    limits = GraphLimits()

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """The same work."""
        return run

    def close(self) -> None:
        """Nothing is kept."""


class _Recorder(TorchDispatchMode):
    """calls: (operation, arguments, keywords, where its new results are)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[tuple[int, torch.Tensor]]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = {_address(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        leaves = [(at, leaf) for at, leaf in enumerate(tree_leaves(result)) if isinstance(leaf, torch.Tensor)]
        fresh = [(at, leaf) for at, leaf in leaves if _address(leaf) not in given]
        if fresh or not leaves or func._schema.is_mutable:  # a view needs no second call: it looks at the same memory
            self.calls.append((func, args, kwargs, fresh))
        return result

    @torch.inference_mode()
    def replay(self) -> None:
        """Every recorded operation again, in order."""
        for func, args, kwargs, fresh in self.calls:
            again = tree_leaves(func(*args, **kwargs))
            for at, kept in fresh:
                kept.copy_(again[at])


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.numel() else -id(tensor)
