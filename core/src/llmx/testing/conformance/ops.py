"""Ops against the numpy reading of Programs, each as a model of its own on the executor that serves, over odd shapes.

A case that the platform refuses with a reason is counted as refused; what a llama needs must be accepted. What is accepted must run.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from llmx.kv.spec import KVSpec
from llmx.program.attrs import AttnSpec
from llmx.program.builder import ProgramBuilder, part
from llmx.program.ops import Value
from llmx.testing.conformance.common import VOCAB, needs_late
from llmx.testing.conformance.op_programs import expected, op_model
from llmx.testing.conformance.outcome import Check, NotRun
from llmx.testing.driver import logits_of
from llmx.testing.op_cases import ATTENTION, PLAIN, QKV, WIDTH, Write, attention_width, attention_write, qkv_width, qkv_write

if TYPE_CHECKING:
    from llmx.testing.conformance.subject import Subject

__all__ = ["checks"]

_LENGTHS = {2: 37, 0: 1, 5: 16}  # slot -> rows of its request
_REQUIRED = {"norm rms", "linear 33x64 f32", "linear 64x32 f32", "act_mul", "add and mul", "qkv plain", "attention causal", "attention three heads to one"}
_SCHEMES = ("f32", "bf16", "f16", "q4_0", "q4_1", "q8_0")
_SHAPES = ((1, 32), (33, 64), (64, 32), (97, 96), (257, 160))  # rows x columns
_WIDTHS = (1, 7, 33, 64, 131)


def run_case(write: Write, width: int, quants: dict[str, str], subject: Subject) -> None:
    """Three requests in two steps, then one of them alone in chunks: all equal the reference."""
    if not subject.computes:
        raise NotRun("no model")
    bundle = op_model(write, width, quants)
    driver = subject.driver(bundle, blocks=200)
    needs_late(driver)
    rng = np.random.default_rng(1)
    prompts = {slot: rng.integers(0, VOCAB, rows).tolist() for slot, rows in _LENGTHS.items()}
    driver.join(prompts)
    found: dict[int, list[np.ndarray]] = {slot: [] for slot in prompts}
    for cut in (lambda rows: slice(0, (rows + 1) // 2), lambda rows: slice((rows + 1) // 2, rows)):
        feed = {slot: tokens[cut(len(tokens))] for slot, tokens in prompts.items() if tokens[cut(len(tokens))]}
        _run(driver, feed, found)
    driver.leave(5)
    driver.join({5: prompts[5]})
    alone: dict[int, list[np.ndarray]] = {5: []}
    for first in (0, 1, 8):
        _run(driver, {5: prompts[5][first : {0: 1, 1: 8, 8: 16}[first]]}, alone)
    for slot, tokens in prompts.items():
        subject.near(np.concatenate(found[slot]), expected(bundle, tokens), f"request of {len(tokens)} rows")
    subject.same(np.concatenate(alone[5]), np.concatenate(found[5]), "a request alone and beside others")


def _run(driver: Any, feed: dict[int, list[int]], found: dict[int, list[np.ndarray]]) -> None:
    for slot, logits in logits_of(driver.executor, driver.seq, feed, {slot: driver.done[slot] for slot in feed}).items():
        found[slot].append(logits)
        driver.done[slot] += len(feed[slot])
    driver.seq += 1


def _linear(rows: int) -> Write:
    def write(b: ProgramBuilder, x: Value, p: Value) -> Value:
        return b.linear(x, part("a", rows))

    return write


def _norm(b: ProgramBuilder, x: Value, p: Value) -> Value:
    return b.norm(x, "n", 1e-5)


_HEADS = (AttnSpec(8, 1, 64, 64, 0.125), AttnSpec(2, 2, 128, 128, 0.09), AttnSpec(4, 2, 80, 80, 0.1), AttnSpec(3, 3, 16, 16, 0.25))


def _cases() -> list[tuple[str, Write, int, dict[str, str]]]:
    found: list[tuple[str, Write, int, dict[str, str]]] = [(name, write, WIDTH, {}) for name, write in PLAIN.items()]
    found += [(f"norm rms of {width}", _norm, width, {}) for width in _WIDTHS]
    found += [(f"linear {n}x{k} {scheme}", _linear(n), k, {"a.weight": scheme}) for n, k in _SHAPES for scheme in _SCHEMES]
    found += [(f"qkv {name}", qkv_write(spec), qkv_width(spec), {}) for name, spec in QKV.items()]
    found += [(f"attention {name}", attention_write(*case), attention_width(case[0]), {}) for name, case in ATTENTION.items() if case[1] is not None]
    for s in _HEADS:
        kv = KVSpec("full", s.kv_heads, s.head_dim, s.v_head_dim)
        if s.q_heads * s.v_head_dim <= VOCAB:
            found.append((f"attention {s.q_heads}/{s.kv_heads} heads of {s.head_dim}", attention_write(s, kv), attention_width(s), {}))
    return found


def checks() -> list[Check]:
    """A check per case."""
    return [Check("ops", name, partial(run_case, write, width, quants), name in _REQUIRED) for name, write, width, quants in _cases()]
