"""The suite bites: faults planted into the torch executor, its kernels and a vendor's package, each found by the area that should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from llmx.batch import KvOp, StepOutput  # noqa: E402
from llmx.executor import drawing  # noqa: E402
from llmx.executor.slots import Slots  # noqa: E402
from llmx.executor.torch.adapted import AdaptedEmbedding, AdaptedLinear  # noqa: E402
from llmx.executor.torch.executor import TorchExecutor  # noqa: E402
from llmx.executor.torch.kernels import attention, basic  # noqa: E402
from llmx.executor.torch.pages import Pages  # noqa: E402
from llmx.executor.torch.rows import Rows  # noqa: E402
from llmx.testing.conformance import Suite  # noqa: E402
from tests.hooks.vendor import PROBE, install  # noqa: E402

Patch = pytest.MonkeyPatch


class Changed:
    """A kernel whose inputs and results pass through functions."""

    def __init__(
        self,
        kernel: Any,
        result: Callable[..., Any] = lambda spec, y: y,
        given: Callable[..., Any] = lambda spec, ins: ins,
        spec: Callable[[Any], Any] = lambda spec: spec,
    ) -> None:
        self.kernel, self.result, self.given, self.spec = kernel, result, given, spec

    def pack(self, *args: Any) -> Any:
        return self.kernel.pack(*args)

    def workspace(self, *args: Any) -> int:
        return int(self.kernel.workspace(*args))

    def bind(self, spec: Any, packed: Any, states: Any) -> Callable[..., Any]:
        call = self.kernel.bind(self.spec(spec), packed, states)
        return lambda rows, *ins: self.result(spec, call(rows, *self.given(spec, ins)))


def kernel(module: Any, name: str, **changes: Callable[..., Any]) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(module, name, Changed(getattr(module, name), **changes))


def output(change: Callable[[StepOutput], None]) -> Callable[[Patch], None]:
    real = TorchExecutor.collect

    def collect(self: Any, ticket: Any) -> StepOutput:
        out = real(self, ticket)
        change(out)
        return out

    return lambda patch: patch.setattr(TorchExecutor, "collect", collect)


def late(change: Callable[[Any], Any]) -> Callable[[Patch], None]:
    real = TorchExecutor.release
    return lambda patch: patch.setattr(TorchExecutor, "release", lambda self, ticket, given: real(self, ticket, change(given)))


def sampler(change: Callable[..., Any]) -> Callable[[Patch], None]:
    real = drawing.sample

    def drawn(raw: Any, row: Any, history: Any, prompt_len: int, mask: Any = None) -> Any:
        return real(*change(raw, row, history, prompt_len, mask))

    return lambda patch: patch.setattr(drawing, "sample", drawn)


def page_ops(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Patch], None]:
    real = Pages.run
    return lambda patch: patch.setattr(Pages, "run", lambda self, ops, tables: real(self, change(ops.copy()), tables))


def _lost_row(out: StepOutput) -> None:
    if len(out.tokens) > 1:
        out.tokens[-1] = out.tokens[0]
        if out.lp is not None:
            out.lp[-1] = out.lp[0]


_kept = np.zeros((4, 1), np.int32)


def _aliased(out: StepOutput) -> None:
    if out.tokens.shape[1] == 1 and len(out.tokens) <= 4:
        _kept[: len(out.tokens)] = out.tokens
        out.tokens = _kept[: len(out.tokens)]


def _shift(mask: Any) -> Any:
    return None if mask is None else np.roll(mask, 1, axis=1)


def _next_source(ops: np.ndarray) -> np.ndarray:
    ops[ops[:, 0] == KvOp.COPY, 2] += 1
    return ops


def _next_too(ops: np.ndarray) -> np.ndarray:
    zeros = ops[ops[:, 0] == KvOp.ZERO]
    return np.concatenate([ops, zeros + [0, 0, 0, 1]])


def _stale(patch: Patch) -> None:
    real = Slots.tokens

    def tokens(self: Any, step: Any, vocab: int) -> np.ndarray:
        given = real(self, step, vocab)
        owners = np.repeat(step.slot, step.q)
        for row in np.flatnonzero(step.tokens == -1).tolist():
            given[row] = self.at(int(owners[row])).history[-2]
        return given

    patch.setattr(Slots, "tokens", tokens)


def _old_table(patch: Patch) -> None:
    """Once a request has tokens, its first two blocks change places."""
    real = Slots.requests

    def swapped(table: np.ndarray) -> np.ndarray:
        return np.concatenate([table[1::-1], table[2:]])

    patch.setattr(Slots, "requests", lambda self, step: tuple(replace(r, tables=tuple(map(swapped, r.tables))) if r.start else r for r in real(self, step)))


def _parents_seed(patch: Patch) -> None:
    real = Slots._join

    def join(self: Any, joined: Any, history: list[int]) -> None:
        real(self, replace(joined, row=self.at(joined.fork_of).row) if joined.fork_of >= 0 else joined, history)

    patch.setattr(Slots, "_join", join)


def _narrow(spec: Any) -> Any:
    s = spec.attrs.spec
    return replace(spec, attrs=replace(spec.attrs, spec=replace(s, window=s.window - 1)))


def _by_seat(raw: Any, row: Any, history: Any, prompt_len: int, mask: Any) -> Any:
    return raw, replace(row, seed=row.seed + 1), history, prompt_len, mask


def _everybody(patch: Patch) -> None:
    real = Rows.adapted

    def adapted(self: Rows, *, at_head: bool) -> Any:
        found = real(self, at_head=at_head)
        every = torch.arange(self.sizes["R" if at_head else "T"])
        return [(slot, every if index.numel() > 1 else index) for slot, index in found]

    patch.setattr(Rows, "adapted", adapted)


def _unscaled(patch: Patch) -> None:
    real = AdaptedLinear._place
    patch.setattr(AdaptedLinear, "_place", lambda self, part, span: real(self, replace(part, scale=1.0), span))


def _keeping(self: AdaptedLinear, slot: int, parts: Any) -> None:
    self._slots[slot] = {
        **getattr(self, "_before", {}), **{target: self._place(parts[target], span) for target, span in self._spans.items() if target in parts}
    }  # fmt: skip
    self._before = self._slots[slot]  # type: ignore[attr-defined]


def _nothing(self: AdaptedEmbedding, slot: int, parts: Any) -> None:
    pass


# fault -> (area, check that finds it, what plants it)
FAULTS: dict[str, tuple[str, str, Callable[[Patch], None]]] = {
    "the last row of a batch is lost": ("protocol", "alone in a batch and in chunks", output(_lost_row)),
    "the status has the wrong type": ("protocol", "shapes and types", output(lambda out: setattr(out, "status", out.status.astype(np.int32)))),
    "an output array is used again": ("protocol", "outputs belong to the caller", output(_aliased)),
    "a stale input token": ("protocol", "an unknown token is the last one drawn", _stale),
    "the mask is one word off": ("protocol", "a mask across words", late(lambda given: replace(given, mask=_shift(given.mask)))),
    "open rows are masked": ("protocol", "late masks open and drop", late(lambda given: replace(given, open=None))),
    "logprobs of the wrong sign": ("protocol", "logprobs are of the raw logits", output(lambda out: None if out.lp is None else setattr(out, "lp", -out.lp))),
    "accepted drafts are counted one too few": (
        "protocol", "verified drafts give the tokens of single steps", output(lambda out: setattr(out, "count", np.maximum(out.count - (out.count > 1), 0))),
    ),
    "COPY reads the next block": ("kv pages", "copied blocks", page_ops(_next_source)),
    "ZERO takes the next block too": ("kv pages", "neighbours stay", page_ops(_next_too)),
    "two blocks of a table change places": ("kv pages", "lengths around a block", _old_table),
    "top_k keeps one too many": (
        "sampling", "top k as specified", sampler(lambda raw, row, *rest: (raw, replace(row, top_k=row.top_k + 1 if row.top_k else 0), *rest)),
    ),
    "the seed depends on something else": ("sampling", "temperature as specified", sampler(_by_seat)),
    "penalties count the prompt": ("sampling", "penalties as specified", sampler(lambda raw, row, history, prompt_len, mask: (raw, row, history, 0, mask))),
    "min_tokens is ignored": ("sampling", "min tokens as specified", sampler(lambda raw, row, *rest: (raw, replace(row, min_tokens=0), *rest))),
    "products in reduced precision": (
        "ops", "linear 97x96 f32", kernel(basic, "linear", given=lambda spec, ins: tuple(x.bfloat16().float() for x in ins)),
    ),
    "a norm that forgets its weight's offset": ("ops", "norm rms", kernel(basic, "norm", result=lambda spec, y: y * 0.999)),
    "gelu for gelu_tanh": ("ops", "act gelu_tanh", kernel(basic, "act", result=lambda spec, y: y + 3e-3 * (spec.attrs.kind == "gelu_tanh"))),
    "k and v change places": ("ops", "attention causal", kernel(attention, "kv_write", given=lambda spec, ins: ins[::-1])),
    "a window that is one too narrow": ("ops", "attention window", kernel(attention, "attention", spec=_narrow)),
    "positions are one off": (
        "models", "logits of llama, f32", kernel(attention, "qkv_prep", given=lambda spec, ins: (ins[0], *(p + 1 + p % 2 for p in ins[1:]))),
    ),
    "an adapter reaches the rows of others": ("adapters", "adapters mix in one step", _everybody),
    "an adapter without its scale": ("adapters", "an adapter equals merged weights", _unscaled),
    "rows that keep the model's own lengths": ("adapters", "lengths of rows equal merged weights", _unscaled),
    "an adapter that stays in its slot": ("adapters", "a slot is filled again", lambda patch: patch.setattr(AdaptedLinear, "put", _keeping)),
    "an embedding without its adapter": (
        "adapters", "an adapted embedding equals merged weights", lambda patch: patch.setattr(AdaptedEmbedding, "put", _nothing)
    ),
    "a child draws with its parent's seed": ("schedule", "parallel samples", _parents_seed),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: Patch) -> None:
    area, name, plant = FAULTS[fault]
    suite = Suite("torch", areas=[area])
    (check,) = [check for check in suite.checks if check.name == name]
    plant(monkeypatch)
    result = suite.run_one(check)
    assert result.outcome == "failed" and result.why, f"{check} did not notice"


VENDOR = """
from llmx.hooks import ConfigPatch, DeviceCaps, ImplDef, PlatformInfo, hookimpl

@hookimpl
def llmx_platform_info():
    return PlatformInfo("bad", "bad", (1, 1), "llmx-platform-bad")

@hookimpl
def llmx_device_caps(config):
    return DeviceCaps("bad1", frozenset({"f32"}), frozenset(), 1, 1 << 30)

@hookimpl
def llmx_device_runtime(config):
    return "cpu"
"""
KERNEL = """
@hookimpl
def llmx_op_kernels(config, caps):
    return [ImplDef(("act_mul",), "bad.act", "torch/1", "bad_llmx.kernels:Act", 60, supports=lambda spec: {answer})]
"""
DEFAULT = '\n@hookimpl\ndef llmx_config_defaults(config, caps):\n    return [ConfigPatch("cache.kv_dtype", "float32", "")]\n'
GOOD_PROBE = PROBE.format(present=True, score=1, why="1 bad")
# fault -> (area, check, probe, plugin)
PACKAGES = {
    "a probe that imports numpy": ("package", "the probe imports the standard library alone", "import numpy\n" + GOOD_PROBE, VENDOR),
    "a plugin that imports a framework": ("package", "importing the platform changes nothing", GOOD_PROBE, "import tensorflow\n" + VENDOR),
    "a plugin that changes the environment": ("package", "importing the platform changes nothing", GOOD_PROBE, 'import os\nos.environ["BAD"] = "1"\n' + VENDOR),
    "a private import": ("package", "only public modules are imported", GOOD_PROBE, "from llmx.engine import start\n" + VENDOR),
    "a probe without a reason": ("package", "the probe says why", PROBE.format(present=True, score=1, why=""), VENDOR),
    "a default without a reason": ("hooks", "defaults have reasons and yield to the user", GOOD_PROBE, VENDOR + DEFAULT),
    "a kernel that is not there": ("hooks", "kernels are well defined", GOOD_PROBE, VENDOR + KERNEL.format(answer="None")),
    "supports that gives no reason": ("hooks", "supports answers with a reason", GOOD_PROBE, VENDOR + KERNEL.format(answer="''")),
    "supports that raises": ("hooks", "supports answers with a reason", GOOD_PROBE, VENDOR + KERNEL.format(answer="1 / 0")),
}


@pytest.mark.parametrize("fault", PACKAGES)
def test_a_fault_of_a_package_is_found(fault: str, tmp_path: Path, monkeypatch: Patch) -> None:
    area, name, probe, plugin = PACKAGES[fault]
    entry = "[llmx.probes]\nbad = bad_llmx.probe:detect\n[llmx.platforms]\nbad = bad_llmx.plugin\n"
    files = {"bad_llmx/__init__.py": "", "bad_llmx/probe.py": probe, "bad_llmx/plugin.py": plugin, "tensorflow.py": ""}
    install(tmp_path, monkeypatch, "llmx-platform-bad", files, entry)
    monkeypatch.setenv("BAD", "0")
    suite = Suite("bad", areas=[area])
    (check,) = [check for check in suite.checks if check.name == name]
    result = suite.run_one(check)
    assert result.outcome == "failed" and result.why, f"{check} did not notice"
