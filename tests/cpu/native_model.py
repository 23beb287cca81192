"""Small models in memory, and a native executor with a driver that plays the scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llmx.config import CacheConfig, EngineConfig, ModelConfig, PlatformConfig, SchedulerConfig
from llmx.errors import ModelError
from llmx.executor import GroupPlan, HostTensor, Joined, KVPlan, ModelBundle, SamplingRow, Step, StepOutput, Want
from llmx.models.builtin import builtin_models
from llmx.models.registry import TensorLayout
from llmx.platform.kernels import KernelResolver
from llmx.platform.plan import Plan
from llmx.program.ops import Model, QuantKey, WeightRef
from llmx.program.verify import verify
from llmx.weights.quant import quant_key, quantize
from llmx.weights.transforms import fit
from llmx_cpu import plugin
from llmx_cpu.executor import NativeExecutor

__all__ = ["TINY", "Driver", "MemorySource", "bundle_of", "config_for", "native_executor", "tiny_llama"]

TINY: Mapping[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
    "intermediate_size": 96, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True, "max_position_embeddings": 2048,
}  # fmt: skip


class MemorySource:
    """A WeightSource over tensors in memory."""

    def __init__(self, tensors: Mapping[str, HostTensor]) -> None:
        self.tensors = dict(tensors)

    def names(self) -> Iterable[str]:
        return self.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def quant(self, name: str) -> QuantKey:
        return quant_key(self.tensors[name].dtype)

    def get(self, ref: WeightRef) -> HostTensor:
        if ref.name not in self.tensors:
            raise ModelError(f"tensor {ref.name!r} is missing", path="memory")
        return fit(self.tensors[ref.name], ref, "memory")

    def close(self) -> None:
        """Nothing is mapped."""


def bundle_of(model: Model, seed: int = 0, vocab: int = 512, max_model_len: int = 2048) -> ModelBundle:
    """Random weights for every tensor that a model names, stored as its quant keys say."""
    verify(model)
    rng = np.random.default_rng(seed)
    tensors = {}
    for ref in model.weights().values():
        assert not ref.transforms
        spread = 0.2 if len(ref.shape) > 1 else 0.1
        values = (rng.standard_normal(ref.shape) * spread + (1.0 if len(ref.shape) == 1 else 0.0)).astype(np.float32)
        tensors[ref.name] = quantize(values, str(ref.quant))
    return ModelBundle("tiny", "tiny", model, MemorySource(tensors), vocab, max_model_len)


def tiny_llama(scheme: str = "f32", head: str | None = None, seed: int = 0, **changes: Any) -> ModelBundle:
    """A two-layer llama; matrices stored as `scheme`, the embedding as `head`, vectors as f32."""

    def quant(name: str) -> QuantKey:
        if "norm" in name or name.endswith("bias"):
            return quant_key("f32")
        return quant_key((head or scheme) if "embed" in name else scheme)

    config = {**TINY, **changes}
    return bundle_of(builtin_models().find(config).build(config, quant, TensorLayout()), seed, config["vocab_size"])


def config_for(
    dtype: str = "auto",
    threads: int = 1,
    isa: str = "auto",
    fuse: bool = True,
    act: str = "auto",
    kv: str = "auto",
    max_tokens: int = 256,
    seqs: int = 40,
) -> EngineConfig:
    """An engine configuration for the CPU platform."""
    options = (("LLMX_CPU_ISA", isa), ("LLMX_CPU_FUSE", str(int(fuse))), ("LLMX_CPU_ACT", act))
    return EngineConfig(
        model=ModelConfig(dtype=dtype),
        cache=CacheConfig(kv_dtype=kv),
        scheduler=SchedulerConfig(max_num_batched_tokens=max_tokens, max_num_seqs=seqs),
        platform=PlatformConfig(threads=threads, options=options),
    )


def native_executor(bundle: ModelBundle, config: EngineConfig, blocks: int = 800) -> NativeExecutor:
    """A loaded executor with pages. The plan is resolved by core's resolver from the plugin's own offers."""
    caps = plugin.llmx_device_caps(config)
    executor = NativeExecutor(config, caps, bundle)
    offers = [*plugin.llmx_attention_backends(config, caps), *plugin.llmx_gemm_kernels(config, caps), *plugin.llmx_op_kernels(config, caps)]
    resolver = KernelResolver(offers, caps, abis=executor.limits.abis)
    kv_dtype = executor.kv_needs()[0].dtype if bundle.model.states else "f32"
    choices = resolver.resolve(bundle.model.programs["main"], kv_dtype=kv_dtype, dtype="f32")
    plan = Plan("cpu", "test", (), {}, bundle.digest, (), tuple(choices))
    executor.load(plan, lambda what, fraction: None)
    executor.kv_allocate(KVPlan(tuple(GroupPlan(need, blocks) for need in executor.kv_needs()), executor.limits.max_requests, bundle.max_model_len))
    return executor


@dataclass
class Driver:
    """Plays the scheduler: slots, blocks, chunks. Every request gets blocks for `room` tokens past its prompt."""

    executor: NativeExecutor
    room: int = 64
    seq: int = 0
    next_block: int = 1
    done: dict[int, int] = field(default_factory=dict)  # slot -> tokens whose KV is valid

    def join(self, requests: Mapping[int, Sequence[int]], row: SamplingRow | None = None) -> None:
        """Requests take slots in a step of their own."""
        joined, blocks = [], []
        for slot, tokens in requests.items():
            count = -(-(len(tokens) + self.room) // 16)
            blocks += [(slot, i, self.next_block + i) for i in range(count)]
            self.next_block += count
            joined.append(Joined(slot, np.array(tokens, np.int32), len(tokens), row or SamplingRow()))
            self.done[slot] = 0
        self._run(Step(self.seq, joined=joined), np.array(blocks, np.int32).reshape(-1, 3))

    def leave(self, *slots: int) -> None:
        """Slots are given up."""
        self._run(Step(self.seq, left=np.array(slots, np.int32)))

    def step(self, rows: Mapping[int, Sequence[int]], sample: Iterable[int] | None = None, want: Want | None = None) -> StepOutput:
        """Rows per slot at its next positions; slots in `sample` (all by default) draw a token from their last row."""
        slots = list(rows)
        q = np.array([len(rows[s]) for s in slots], np.int32)
        ends = np.cumsum(q) - 1
        drawn = [i for i, s in enumerate(slots) if sample is None or s in set(sample)]
        step = Step(
            self.seq,
            slot=np.array(slots, np.int32),
            q=q,
            start=np.array([self.done[s] for s in slots], np.int32),
            tokens=np.array([t for s in slots for t in rows[s]], np.int32),
            head=ends[drawn].astype(np.int32),
            samples=np.array([(slots[i], k, 1) for k, i in enumerate(drawn)], np.int32).reshape(-1, 3),
            want=[want] * len(drawn) if want else [],
        )
        for s in slots:
            self.done[s] += len(rows[s])
        return self._run(step)

    def generate(self, prompts: Mapping[int, Sequence[int]], n: int, chunk: int = 1000, logprobs: int = 20) -> dict[int, list[tuple[int, tuple[float, ...]]]]:
        """Join, prefill in chunks, decode: per slot n tokens with the logprobs of the most likely ones (their bits count)."""
        self.join(prompts)
        result: dict[int, list[tuple[int, tuple[float, ...]]]] = {slot: [] for slot in prompts}
        want = Want(top_logprobs=logprobs)
        while any(len(r) < n for r in result.values()):
            rows: dict[int, Sequence[int]] = {}
            budget = self.executor.limits.max_tokens
            for slot, prompt in prompts.items():
                left = prompt[self.done[slot] :]
                rows[slot] = left[: min(chunk, max(budget - len(prompts), 1))] if left else [-1]
                budget -= len(rows[slot])
            finishing = [s for s in rows if self.done[s] + len(rows[s]) >= len(prompts[s])]
            out = self.step(rows, finishing, want)
            for i, slot in enumerate(finishing):
                assert out.count[i] == 1 and out.lp is not None
                result[slot].append((int(out.tokens[i, 0]), tuple(out.lp[i, 0].tolist())))
        self.leave(*prompts)
        return {slot: r[:n] for slot, r in result.items()}

    def _run(self, step: Step, blocks: np.ndarray | None = None) -> StepOutput:
        groups = len(self.executor.kv_needs())
        step.new_blocks = tuple(np.empty((0, 3), np.int32) if blocks is None else blocks for _ in range(groups))
        self.seq += 1
        return self.executor.collect(self.executor.submit(step))
