"""TorchCompiler: torch.compile for runs of ops without pages. Runs that differ in weights alone are one compilation; what was compiled is kept on disk.

A run is traced with its real shapes, its weights become inputs, and the text of the trace is the key: thirty equal layers compile once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

__all__ = ["TorchCompiler"]

Run = Callable[..., tuple[torch.Tensor, ...]]


class TorchCompiler:
    """Of one executor. folder: where compiled code is kept between starts; None: only where torch keeps it. name: tells one use from another."""

    def __init__(self, folder: str | None, name: str) -> None:
        digest = hashlib.sha256(f"{torch.__version__} {name}".encode()).hexdigest()[:16]
        self._file = None if folder is None else Path(folder) / "compiled" / f"{digest}.torch"
        self._compiled: dict[str, Callable[..., Any]] = {}
        self._misses = self._all_misses()
        if self._file is not None and self._file.exists():
            torch.compiler.load_cache_artifacts(self._file.read_bytes())

    def compile(self, run: Run, example: tuple[torch.Tensor, ...]) -> Run:
        """`run` compiled for tensors of the shapes of `example`. It is called here, so that nothing is left to compile."""
        module = make_fx(run)(*example)
        weights = _weights_to_inputs(module)
        tensors = (*example, *weights)
        key = f"{module.code}{[(tuple(t.shape), t.stride(), t.dtype, t.device) for t in tensors]}"
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = torch.compile(module, fullgraph=True, dynamic=False)
            compiled(*tensors)
        return lambda *given: compiled(*given, *weights)

    def finish(self) -> Mapping[str, int]:
        """Everything is compiled: write it to disk. How many different runs there are, and for how many code had to be made."""
        made = self._all_misses() - self._misses
        saved = torch.compiler.save_cache_artifacts() if self._file is not None and made else None
        if saved is not None and self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part = self._file.with_suffix(".part")
            part.write_bytes(saved[0])
            part.replace(self._file)
        return {"compiled_runs": len(self._compiled), "compiled_now": made}

    @staticmethod
    def _all_misses() -> int:
        from torch._dynamo.utils import counters

        return int(counters["inductor"]["fxgraph_cache_miss"]) + int(counters["inductor"]["fxgraph_cache_bypass"])


def _weights_to_inputs(module: Any) -> list[torch.Tensor]:
    """Make every tensor that the trace holds an input, after the others; the tensors, in order."""
    last = [node for node in module.graph.nodes if node.op == "placeholder"][-1]
    held: dict[str, Any] = {}
    tensors: list[torch.Tensor] = []
    for node in list(module.graph.nodes):
        if node.op != "get_attr":
            continue
        if node.target not in held:
            with module.graph.inserting_after(last):
                last = held[node.target] = module.graph.placeholder(f"weight_{len(tensors)}")
            tensors.append(getattr(module, node.target))
        node.replace_all_uses_with(held[node.target])
        module.graph.erase_node(node)
    module.recompile()
    return tensors
