"""lower: a Program and its chosen kernels -> a tape. Each KernelChoice's target is the function that writes the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from llmx.errors import PlatformError, ProgramError
from llmx.executor import HIDDEN
from llmx.platform.plan import KernelChoice
from llmx.program.ops import Op, Program, State
from llmx_cpu.lower.basic import hidden_input
from llmx_cpu.lower.builder import BuiltTape, TapeBuilder, Weights, rows_symbol

__all__ = ["ABI", "lower"]

ABI = "llmx_cpu.tape/1"


def lower(
    program: Program,
    kernels: Sequence[KernelChoice],
    weights: Weights,
    states: Sequence[State],
    *,
    max_positions: int,
    max_tokens: int,
    max_requests: int,
    vocab: int,
) -> BuiltTape:
    """The tape of a Program. states: in the order of the native records.

    Raises ProgramError for an op without a kernel or a Program without logits or pooled rows, PlatformError for a kernel of another abi.
    """
    uses = Counter(v.id for op in program.ops for v in op.ins if v is not None)
    inputs = {v.id: name for name, v in program.inputs.items()}
    builder = TapeBuilder(weights, {s.name: i for i, s in enumerate(states)}, inputs, max_positions, uses, program.name != "main")
    if HIDDEN in program.inputs:
        hidden_input(builder, program.inputs[HIDDEN])
    token_rows: list[tuple[Any, tuple[Op, ...]]] = []
    head_rows: list[tuple[Any, tuple[Op, ...]]] = []
    covered = 0
    for choice in sorted((k for k in kernels if k.program == program.name), key=lambda k: k.first):
        if choice.first != covered:
            break
        ops = program.ops[choice.first : choice.first + len(choice.resolution.kinds)]
        (head_rows if _is_head(ops[-1]) else token_rows).append((_target(choice), ops))
        covered += len(ops)
    if covered != len(program.ops):
        op = program.ops[covered]
        raise ProgramError(f"op {covered} ({op.kind} in {op.region}) of program {program.name!r} has no kernel in the plan")
    for target, ops in token_rows + head_rows:  # token rows never depend on head rows
        target(builder, *ops)
    results = program.outputs()
    result = results.get("logits", results.get("pooled"))
    if result is None or rows_symbol(result) != "R":
        raise ProgramError(f"program {program.name!r} has no output 'logits' or 'pooled' over head rows: the native executor gives nothing else")
    return builder.finish(result, max_tokens, max_requests, vocab)


def _is_head(op: Op) -> bool:
    values = op.outs or tuple(v for v in op.ins if v is not None)
    return bool(values) and rows_symbol(values[0]) == "R"


def _target(choice: KernelChoice) -> Any:
    if choice.resolution.abi != ABI:
        raise PlatformError(f"kernel {choice.resolution.provider!r} has abi {choice.resolution.abi!r}; the native executor calls {ABI!r} only")
    module, _, name = choice.resolution.target.partition(":")
    return getattr(import_module(module), name)
