"""A loaded torch executor over a model in memory, and single Programs run through its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from llmx.config import CacheConfig, EngineConfig, LoraConfig, ModelConfig, SchedulerConfig
from llmx.executor import GroupPlan, KVPlan, Limits, ModelBundle
from llmx.executor.bound import BoundOps, BoundProgram
from llmx.executor.op_weights import weight_refs
from llmx.executor.page_shapes import group_needs
from llmx.executor.slots import RequestRows
from llmx.executor.torch.device import device_caps
from llmx.executor.torch.executor import TorchExecutor
from llmx.executor.torch.pages import Pages
from llmx.executor.torch.rows import Rows
from llmx.executor.torch.weights import Weights, WeightStore
from llmx.hooks.collectives import Communicator
from llmx.hooks.loader import load_target
from llmx.platform.kernels import KernelResolver, op_spec
from llmx.platform.plan import Plan
from llmx.platform.torch_runtime import reference_kernels
from llmx.program.ops import Model, Program
from llmx.testing import bundle_from, logits_of, memory

__all__ = ["bundle_from", "config_for", "logits_of", "memory", "run_program", "torch_executor"]

torch.set_num_threads(1)


def config_for(max_tokens: int = 256, seqs: int = 40, dtype: str = "float32", kv: str = "auto", lora: bool = False) -> EngineConfig:
    """An engine configuration for the platform `torch`."""
    return EngineConfig(
        model=ModelConfig(dtype=dtype), cache=CacheConfig(kv_dtype=kv), scheduler=SchedulerConfig(max_num_batched_tokens=max_tokens, max_num_seqs=seqs),
        lora=LoraConfig(enabled=lora),
    )  # fmt: skip


def torch_executor(bundle: ModelBundle, config: EngineConfig | None = None, blocks: int = 800, communicator: Communicator | None = None) -> TorchExecutor:
    """A loaded executor with pages, its kernels chosen by core's resolver. communicator: of one rank among several."""
    config = config or config_for()
    caps = device_caps("cpu", 1)
    executor = TorchExecutor(config, caps, bundle, "cpu")
    if communicator is not None:
        executor.connect(communicator)
    resolver = KernelResolver(reference_kernels(), caps, abis=executor.limits.abis)
    choices = [c for program in bundle.model.programs.values() for c in resolver.resolve(program, kv_dtype="f32", dtype="f32")]
    executor.load(Plan("torch", "test", (), {}, bundle.digest, (), tuple(choices)), lambda what, fraction: None)
    executor.kv_allocate(KVPlan(tuple(GroupPlan(need, blocks) for need in executor.kv_needs()), executor.limits.max_requests, bundle.max_model_len))
    return executor


def run_program(
    model: Model, tensors: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray], lengths: tuple[int, ...], chunks: int = 1, prompt_len: int = 1000
) -> dict[str, np.ndarray]:
    """The named results of "main", of requests of these lengths lying one after the other, computed in so many chunks each.

    Inputs with a leading T axis are cut like the rows; results are joined in the order of the requests' rows.
    """
    program = model.programs["main"]
    plan = KVPlan(tuple(GroupPlan(need, 64) for need in group_needs(model, "f32")), len(lengths), 256)
    pages, store = Pages(plan, torch.device("cpu")), WeightStore(memory(tensors), torch.device("cpu"), 256)
    bound = BoundProgram(program, [_bind(program, i, store, pages) for i in range(len(program.ops))])
    tables = [tuple(np.arange(1 + 20 * i, 21 + 20 * i, dtype=np.int32) for _ in plan.groups) for i in range(len(lengths))]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    parts: dict[str, dict[tuple[int, int], np.ndarray]] = {}
    for chunk in range(chunks):
        requests, picked = [], []
        for i, length in enumerate(lengths):
            begin, end = length * chunk // chunks, length * (chunk + 1) // chunks
            requests.append(RequestRows(i, sum(len(p) for p in picked), end - begin, begin, 0, prompt_len, tables[i]))
            picked.append(np.arange(starts[i] + begin, starts[i] + end))
        index = np.concatenate(picked)
        rows = Rows(tuple(requests), torch.device("cpu"), {"T": len(index), "N": len(lengths), "R": 0})
        given = {name: _tensor(np.take(inputs[name], index, axis=-1 if name == "positions" else 0)) for name in program.inputs}
        for name, value in bound.results(bound.body(rows, given)).items():
            for one in requests:
                own = value[one.span] if value.shape[0] == len(index) else value[one.slot : one.slot + 1]
                parts.setdefault(name, {})[one.slot, chunk] = own.numpy()
    return {name: np.concatenate([found[key] for key in sorted(found)]) for name, found in parts.items()}


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, np.int64 if np.issubdtype(values.dtype, np.integer) else np.float32))


def _bind(program: Program, index: int, store: WeightStore, pages: Pages) -> BoundOps:
    """One op with the kernel that the reference offers for its kind."""
    op = program.ops[index]
    target = next(impl.target for impl in reference_kernels() if impl.kinds == (op.kind,))
    kernel, spec = load_target(target), op_spec(op, kv_dtype="f32", dtype="f32")
    assert kernel.workspace(spec, Limits(1, 1)) == 0
    packed: Any = kernel.pack(Weights(store, weight_refs((op,))), spec, (op.kind,))
    call = kernel.bind(spec, packed, tuple(pages.states[name] for name in op.states))
    assert isinstance(call, partial)
    return BoundOps.of(program, index, 1, call, "test")
