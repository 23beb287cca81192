"""llmx-platform-cpu as a provider for core's torch executor: native products and attention, and oneDNN's products, only when asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch  # noqa: E402

from llmx.errors import PlatformError  # noqa: E402
from llmx.executor import Control, ModelBundle  # noqa: E402
from llmx.hooks import DeviceCaps  # noqa: E402
from llmx.platform import OpSpec  # noqa: E402
from llmx.program.attrs import AttentionAttrs, AttnSpec  # noqa: E402
from llmx.resolve import resolve  # noqa: E402
from llmx.testing import Driver, logits_of, tiny_llama  # noqa: E402
from llmx.testing.conformance import ops  # noqa: E402
from llmx.testing.conformance.outcome import Refused  # noqa: E402
from llmx_cpu import providers  # noqa: E402
from llmx_cpu.native import ISA_NAMES, best_isa  # noqa: E402
from tests.platforms.cpu_providers import Asked  # noqa: E402
from tests.program.test_meaning import DECODERS  # noqa: E402
from tests.torch_executor.decoder_logits import check_logits  # noqa: E402

NATIVE = ("linear=native,torch.reference", "attention=native,torch.reference")
ONEDNN = ("linear=onednn,torch.reference",)


@pytest.mark.parametrize("case", DECODERS)
@pytest.mark.parametrize("kernels", [NATIVE, ONEDNN], ids=["native", "onednn"])
def test_logits_equal_transformers(kernels: tuple[str, ...], case: str) -> None:
    subject = Asked(*kernels)

    def make(bundle: ModelBundle) -> Any:
        chosen = {(choice.resolution.kinds[0], choice.resolution.provider) for choice in subject.choices(bundle)}
        assert ("linear", kernels[0].split("=")[1].split(",")[0]) in chosen
        return subject.executor(bundle)

    check_logits(case, make)
    subject.close()


OPS = [check for check in ops.checks() if check.name.split()[0] in ("linear", "attention")]


@pytest.mark.parametrize("isa", ISA_NAMES[: ISA_NAMES.index(best_isa()) + 1])
@pytest.mark.parametrize("kv", ["float32", "bfloat16"])
def test_ops_of_odd_shapes_mean_what_the_reference_says(isa: str, kv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case of the conformance suite with a product or attention in it; what is refused is refused with a reason, and is not a product."""
    monkeypatch.setenv("LLMX_CPU_ISA", isa)
    subject, refused = Asked("linear=native", "attention=native", kv_cache_dtype=kv), []
    subject.tolerance = 1e-4 if kv == "float32" else 3e-2
    for check in OPS:
        try:
            check.run(subject)
        except Refused as error:
            assert "not implemented" in str(error)
            refused.append(check.name)
        subject.close()
    assert len(refused) < len(OPS) / 4 and not [name for name in refused if name.startswith("linear")]


def test_ops_of_odd_shapes_on_onednn() -> None:
    """Dense products; weights of 4 and 8 bits are refused by name."""
    subject, refused = Asked("linear=onednn"), []
    for check in (check for check in OPS if check.name.startswith("linear")):
        try:
            check.run(subject)
        except Refused as error:
            assert "(f32, bf16, f16 are multiplied, in float32)" in str(error)
            refused.append(check.name.rsplit(" ", 1)[1])
        subject.close()
    assert set(refused) == {"q4_0", "q4_1", "q8_0"}


def test_quantised_weights_are_multiplied_as_they_are_stored() -> None:
    """Within what 16-bit inputs round off, and not the same as float32 weights."""
    found = {}
    for name, asked in (("native", NATIVE), ("reference", ())):
        subject = Asked(*asked)
        config, _ = subject.configured(dtype="auto", kv_cache_dtype="float32")
        executor = subject.executor(tiny_llama("q4_1", "q8_0", max_position_embeddings=256), config=config)
        driver = Driver(executor)
        driver.join({0: list(range(3, 40))})
        found[name] = logits_of(executor, driver.seq, {0: list(range(3, 40))}, {0: 0})[0]
        subject.close()
    assert 0 < np.abs(found["native"] - found["reference"]).max() < 2e-3 * np.abs(found["reference"]).max()


# -- how they are chosen -----------------------------------------------------------------------------------------------


def test_nothing_is_taken_unless_asked_for() -> None:
    subject = Asked()
    choices = subject.choices(tiny_llama())
    assert {choice.resolution.provider for choice in choices} == {"torch.reference"}
    linear = next(choice.resolution for choice in choices if choice.resolution.kinds == ("linear",))
    assert ("native", "priority", "-10: torch.reference (0) comes first") in linear.rejected and "onednn" in {name for name, _, _ in linear.rejected}


def test_a_level_that_this_cpu_lacks_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks = "avx2" if best_isa() == "neon" else "neon"
    monkeypatch.setenv("LLMX_CPU_ISA", lacks)
    with pytest.raises(PlatformError, match=f"LLMX_CPU_ISA is '{lacks}', but this CPU runs"):
        Asked("linear=native").executor(tiny_llama())


def test_weights_that_onednn_packed_stay_while_the_rest_sleeps() -> None:
    subject = Asked(*ONEDNN, platform="cuda", device="cpu")
    executor = subject.executor(tiny_llama(max_position_embeddings=256))
    driver = Driver(executor)
    prompt = list(range(3, 30))
    driver.join({0: prompt})
    before = logits_of(executor, driver.seq, {0: prompt}, {0: 0})[0]
    driver.leave(0)
    driver.seq += 1
    assert executor.control(Control("sleep", {"level": 1})).ok and executor.control(Control("wake")).ok
    driver.join({0: prompt})
    assert np.array_equal(logits_of(executor, driver.seq, {0: prompt}, {0: 0})[0], before)
    subject.close()


def test_what_is_not_taken_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = AttnSpec(4, 2, 64, 64, 0.1)
    for check, asked, why in (
        (providers.attention, OpSpec("attention", AttentionAttrs(spec), kv_dtype="i8"), "pages of i8; f32 and bf16 are read"),
        (providers.attention, OpSpec("attention", AttentionAttrs(spec, lse=True), kv_dtype="f32"), "not implemented: log-sum-exp output"),
        (providers.linear, OpSpec("linear", None, ("fp8",), 8, 32), "no kernel for weights stored as fp8"),
        (providers.onednn, OpSpec("linear", None, ("q4_1",), 8, 32), "weights of q4_1 (f32, bf16, f16 are multiplied, in float32)"),
    ):
        assert (check(asked) or "").startswith(why)
    assert providers.onednn(OpSpec("linear", None, ("f32",), 8, 32)) is None
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert providers.onednn(OpSpec("linear", None, ("f32",), 8, 32)) == f"torch {torch.__version__} was built without oneDNN"


def test_a_device_that_is_no_cpu_is_offered_nothing() -> None:
    config, _ = resolve({})
    caps = DeviceCaps("x", frozenset(), frozenset({"streams"}), 1, 0)
    assert not providers.llmx_gemm_kernels(config, caps) and not providers.llmx_attention_backends(config, caps)


# -- what really runs --------------------------------------------------------------------------------------------------

_CHILD = """
import sys, torch
from llmx.testing import Driver, logits_of, tiny_llama
from tests.platforms.cpu_providers import Asked
subject = Asked("linear=onednn")
driver = Driver(subject.executor(tiny_llama(max_position_embeddings=256)))
driver.join({0: list(range(3, 40))})
print("loaded", flush=True)
for start, count in ((0, 20), (20, 1), (21, 3)):
    logits_of(driver.executor, driver.seq, {0: list(range(3 + start, 3 + start + count))}, {0: start})
    driver.seq += 1
print("modules", sum(choice.resolution.provider == "onednn" for choice in subject.choices(tiny_llama(max_position_embeddings=256))), flush=True)
"""


def test_onednn_multiplies_and_reorders_no_weight_after_loading() -> None:
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "ONEDNN_VERBOSE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{root}"}
    done = subprocess.run([sys.executable, "-c", _CHILD], env=environment, capture_output=True, text=True, timeout=300, cwd=root)
    assert done.returncode == 0, done.stderr
    before, _, after = done.stdout.partition("loaded\n")
    ran = [line.split(",") for line in after.splitlines() if line.startswith("onednn_verbose") and ",exec," in line]
    [linears] = [int(line.split()[1]) for line in after.splitlines() if line.startswith("modules")]
    kinds = [line[line.index("exec") + 2] for line in ran]
    assert linears == 2 * 4 + 1 and "reorder" in before
    assert set(kinds) == {"inner_product"}
    assert len(ran) >= 3 * linears  # a step of one row, of few and of many rows; the head for each block of logits that is asked for


def test_hooks_import_no_torch() -> None:
    code = "import sys, llmx_cpu.providers, llmx_cpu.plugin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_pool_is_parked_between_calls() -> None:
    """Workers that wait for the next product take tens of microseconds of a processor after each; parked ones sleep at once."""
    from llmx_cpu.for_torch.native import _Engine

    def own(of: set[str]) -> int:
        return sum(int(Path(f"/proc/self/task/{task}/schedstat").read_text().split()[0]) for task in of)

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    before = set(os.listdir("/proc/self/task"))
    try:
        engine = _Engine("auto")
        workers = set(os.listdir("/proc/self/task")) - before
    finally:
        torch.set_num_threads(threads)
    assert workers
    from llmx_cpu.native import PartRecord, kernel_library

    lib, x, y = kernel_library(), np.ones((2, 64), np.float32), np.empty((2, 512), np.float32)
    weight = np.ones((512, 64), np.float32)
    handle = lib.llmx_engine_weight(engine.pointer, 0, 0, 0, 512, 64, weight.ctypes.data, 256)
    records = (PartRecord * 1)(PartRecord(handle, -1, 0, 0))
    engine.widen(2, 64)
    time.sleep(0.01)

    def kernel() -> None:
        lib.llmx_kernel_linear(engine.pointer, records, 1, x.ctypes.data, 2, 64, y.ctypes.data, 512)

    def unparked() -> None:
        lib.llmx_test_linear(engine.pointer, records, 1, x.ctypes.data, 2, 64, y.ctypes.data, 512, None, 0, None)

    def spent(call: Callable[[], None]) -> int:
        began = own(workers)
        for _ in range(100):
            call()
            time.sleep(0.001)
        return own(workers) - began

    rounds = [(spent(kernel), spent(unparked)) for _ in range(3)]
    assert (y == 64).all()
    assert min(parked for parked, _ in rounds) < 0.8 * min(spinning for _, spinning in rounds), rounds
