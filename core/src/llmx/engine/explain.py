"""Explanation: what was chosen for a model and why each other candidate was not. Reads headers only; starts nothing."""

from __future__ import annotations

from math import prod
from typing import Any

from llmx.config import EngineConfig
from llmx.engine.chosen_platform import value_dtypes
from llmx.engine.kv_size import MemoryEstimate, estimate_memory
from llmx.engine.memory import available_bytes
from llmx.engine.start import Prepared, prepare
from llmx.lora.slots import slot_bytes
from llmx.program.text import op_text
from llmx.record import record
from llmx.weights.host_tensor import BLOCK_BYTES

__all__ = ["ExplainRow", "Explanation", "explain"]


@record
class ExplainRow:
    """One op, or one run of ops that a fusion covers. rejected: (provider, stage, reason)."""

    program: str
    index: int
    op: str  # printable form
    spec: str  # kind, size, storage, page type
    region: str
    provider: str
    target: str
    abi: str
    forced: bool
    rejected: tuple[tuple[str, str, str], ...]


@record
class Explanation:
    """A model's platform, Programs and kernels."""

    model: str
    architecture: str
    platform: str
    why: str
    others: tuple[str, ...]
    device: str
    features: tuple[str, ...]
    rows: tuple[ExplainRow, ...]
    warnings: tuple[str, ...]
    plan: dict[str, Any]
    changes: tuple[str, ...]
    programs: dict[str, str]  # name -> printable text
    memory: MemoryEstimate
    drafting: str  # the drafter and its settings; empty: none


def explain(config: EngineConfig, user_set: list[str] | None = None, device_bytes: int | None = None) -> Explanation:
    """The explanation for a configuration. device_bytes: memory to plan for; None: what is free here. Raises what a start would raise, but for memory."""
    from llmx.program.text import program_text

    ready: Prepared = prepare(config, user_set or ())
    programs = ready.loaded.bundle.model.programs
    rows = []
    for choice in ready.plan.kernels:
        ops = programs[choice.program].ops[choice.first : choice.first + len(choice.resolution.kinds)]
        rows.append(
            ExplainRow(
                program=choice.program,
                index=choice.first,
                op="; ".join(op_text(op) for op in ops),
                spec=choice.resolution.spec,
                region=str(ops[0].region),
                provider=choice.resolution.provider,
                target=choice.resolution.target,
                abi=choice.resolution.abi,
                forced=choice.resolution.forced,
                rejected=choice.resolution.rejected,
            )
        )
    memory = _memory(ready, device_bytes)
    ready.executor.close()
    return Explanation(
        model=ready.loaded.summary.name,
        architecture=ready.loaded.summary.architecture,
        platform=ready.selection.name,
        why=ready.selection.why,
        others=ready.selection.others,
        device=ready.caps.arch,
        features=tuple(sorted(ready.caps.features)),
        rows=tuple(rows),
        warnings=tuple(ready.warnings),
        plan=ready.plan.as_dict(),
        changes=tuple(f"{change.path} = {change.value} ({change.why})" for change in ready.changes),
        programs={name: program_text(program) for name, program in programs.items()},
        memory=memory,
        drafting=str(ready.drafter or ""),
    )


def _memory(ready: Prepared, device_bytes: int | None) -> MemoryEstimate:
    """Weights as they are stored, or in float32 where the user wants that; with them the adapters of full slots."""
    bundle, full = ready.loaded.bundle, value_dtypes(ready.config)[0] == "f32"
    refs = {ref.name: ref for ref in bundle.model.weights().values()}
    sizes = {ref.name: BLOCK_BYTES[str(ref.quant)] for ref in refs.values()}  # elements and bytes of a block
    weights = sum(prod(ref.shape) * 4 if full else prod(ref.shape) // sizes[ref.name][0] * sizes[ref.name][1] for ref in refs.values())
    weights += slot_bytes(ready.config.lora, bundle.model)
    total = available_bytes() if device_bytes is None else device_bytes
    return estimate_memory(ready.config.cache, ready.executor, bundle.max_model_len, device_bytes=total, weight_bytes=weights)
