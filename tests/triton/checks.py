"""Runs in a process of its own, which Triton's interpreter wants to know before Triton is imported: checks by name, a JSON object on each line.

Each op goes through the executor that serves, on the emulated platform cuda, and is compared with the numpy reading of Programs.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from llmx.executor import Control
from llmx.kv.spec import KVSpec
from llmx.program.attrs import AttnSpec
from llmx.testing import Driver, logits_of, tiny_llama
from llmx.testing.conformance.graphs import _compare
from llmx.testing.conformance.op_programs import op_model
from llmx.testing.conformance.ops import _cases, run_case
from llmx.testing.conformance.subject import Subject
from llmx.testing.op_cases import attention_width, attention_write

KINDS = {"norm", "act_mul", "linear", "qkv_prep", "kv_write", "attention"}
SINKS = AttnSpec(4, 2, 16, 16, 0.3, sinks=True)
CHUNKS = AttnSpec(4, 4, 16, 16, 0.3, chunk=11)
WIDE = AttnSpec(6, 2, 24, 40, 0.2)


def _providers(subject: Subject) -> None:
    """The kernels are taken for a quantised llama; what they do not take goes to the reference, with the reason."""
    chosen = {choice.resolution.kinds[0]: choice.resolution for choice in subject.choices(tiny_llama("q4_1", "q8_0"))}
    assert {kind for kind, one in chosen.items() if one.provider == "triton"} == KINDS
    plain = {choice.resolution.kinds[0]: choice.resolution for choice in subject.choices(tiny_llama())}
    assert plain["linear"].provider == "torch.reference"
    assert ("triton", "supports", "not implemented: weights of f32 (there are q8_0, q4_0, q4_1)") in plain["linear"].rejected


def _one_graph(subject: Subject) -> None:
    """With these kernels a step is one graph per size, and replays of it compute what the ops compute, padded or not."""
    config, _ = subject.configured(dtype="float32", max_num_seqs=2, max_num_batched_tokens=32)
    driver = Driver(subject.executor(tiny_llama(), blocks=200, config=config))
    assert driver.executor.control(Control("stats")).value["graphs"] == 2  # sizes 1 and 2
    rng = np.random.default_rng(5)
    prompts = {slot: [int(x) for x in rng.integers(3, 512, 12)] for slot in range(2)}
    steps = [{0: 5, 1: 3}, {1: 1, 0: 1}, {1: 2}, {0: 1}, {0: 1, 1: 1}]
    _compare(subject, driver, prompts, steps)
    stats = driver.executor.control(Control("stats")).value
    assert stats["replays"] == 4 and stats["graphs"] == 2


def _against_reference(spec: AttnSpec, weights: dict[str, None], subject: Subject) -> None:
    """What the numpy reading has not: an attention by this kernel and by core's reference, which tests of its own compare with numpy."""
    kv = KVSpec("full", spec.kv_heads, spec.head_dim, spec.v_head_dim)
    bundle = op_model(attention_write(spec, kv, **weights), attention_width(spec))  # type: ignore[arg-type]
    found = []
    for kernels in ([], ["attention=torch.reference"]):
        config, _ = subject.configured(dtype="float32", kernel=kernels)
        driver = Driver(subject.executor(bundle, blocks=200, config=config))
        prompts = {slot: [int(x) for x in np.random.default_rng(slot).integers(3, 512, rows)] for slot, rows in ((0, 29), (3, 7))}
        driver.join(prompts)
        first = logits_of(driver.executor, driver.seq, {0: prompts[0][:20], 3: prompts[3]}, {0: 0, 3: 0})
        second = logits_of(driver.executor, driver.seq + 1, {0: prompts[0][20:]}, {0: 20})
        found.append(np.concatenate([first[0], first[3], second[0]]))
    subject.near(found[0], found[1], "rows")


def _refused_on_a_cpu(subject: Subject) -> None:
    """Without the interpreter the error names the variable."""
    import triton

    from llmx.errors import PlatformError
    from llmx_triton.rowwise import rms_norm

    triton.knobs.runtime.interpret = False
    try:
        rms_norm(torch.ones(2, 4), None, 1e-5, 0.0, False)
    except PlatformError as error:
        assert "TRITON_INTERPRET=1" in str(error)
    else:
        raise AssertionError("a CPU tensor was taken without the interpreter")
    finally:
        triton.knobs.runtime.interpret = True


def checks() -> dict[str, Callable[[Subject], None]]:
    """By name: every case of the suite's ops that one of these kernels takes, and what the suite has no case for."""
    found: dict[str, Callable[[Subject], None]] = {"providers": _providers, "one graph": _one_graph, "no interpreter": _refused_on_a_cpu}
    found |= {name: partial(run_case, write, width, quants) for name, write, width, quants in _cases()}
    for name, spec, weights in (("sinks", SINKS, {"sinks": None}), ("chunks", CHUNKS, {}), ("wide v", WIDE, {})):
        found[f"attention {name}"] = partial(_against_reference, spec, weights)
    return found


def main(names: list[str]) -> None:
    """Run the checks whose names are given."""
    torch.set_num_threads(1)
    subject = Subject("cuda", emulate=True)
    for name in names:
        try:
            checks()[name](subject)
            print(json.dumps({name: ""}), flush=True)
        except Exception:  # noqa: BLE001 - the other side raises it
            print(json.dumps({name: traceback.format_exc(limit=-3)}), flush=True)
        subject.close()


if __name__ == "__main__":
    main(sys.argv[1:])
