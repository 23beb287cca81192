"""What `llmx bench kernels` measures: every product of the tape at every row count, on the real library, beside limits that make sense."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cpu.native_model import Driver, config_for, native_executor, tiny_llama

from llmx.executor import Control
from llmx_cpu.native import best_isa
from llmx_cpu.roofline import Roofline, measure_roofline


def test_limits_are_measured() -> None:
    one = measure_roofline(best_isa(), 1)
    assert min(one.read, one.f32, one.bf16, one.int8) > 1e8
    if best_isa() != "portable":
        assert one.int8 > one.f32 > measure_roofline("portable", 1).f32


def test_least_time_is_reading_or_arithmetic_whichever_is_longer() -> None:
    limits = Roofline("x", 1, read=10.0, f32=1.0, bf16=2.0, int8=4.0)
    assert limits.seconds(nbytes=20, int8_ops=4) == 2.0
    assert limits.seconds(nbytes=20, int8_ops=4, bf16_ops=4, f32_ops=1) == 4.0


def test_profile_times_every_kernel_and_leaves_the_executor_usable() -> None:
    executor = native_executor(tiny_llama("q4_0", head="q8_0"), config_for())
    driver = Driver(executor)
    prompt = {0: [5, 6, 7, 8]}
    before = driver.generate(prompt, 3)
    reply = executor.control(Control("profile", {"rows": [1, 7], "contexts": [64, 1 << 20], "repeats": 2}))
    assert reply.ok, reply.error
    found = reply.value["kernels"]
    products = {(one["shape"], one["rows"]) for one in found if one["kernel"] == "linear"}
    shapes = ("q4_0 64 -> 128", "q4_0 64 -> 64", "q4_0 64 -> 192", "q4_0 96 -> 64", "q8_0 64 -> 512")
    assert products == {(shape, rows) for shape in shapes for rows in (1, 7)}
    assert {one["kernel"] for one in found} == {"linear", "norm", "act_mul", "attention"}
    assert [one["shape"] for one in found if one["kernel"] == "attention"] == ["context 64"]  # the other is longer than the model's context
    assert all(one["us"] > 0 and one["least_us"] > 0 and np.isclose(one["share"], one["least_us"] / one["us"]) for one in found)
    by_rows = {one["rows"]: one["least_us"] for one in found if one["shape"] == "q8_0 64 -> 512"}
    assert by_rows[7] >= by_rows[1]
    assert driver.generate(prompt, 3) == before
    executor.close()


def test_profile_is_refused_while_a_request_runs() -> None:
    executor = native_executor(tiny_llama(), config_for())
    Driver(executor).join({0: [1, 2, 3]})
    reply = executor.control(Control("profile", {"rows": [1], "contexts": [], "repeats": 1}))
    assert not reply.ok and "no request runs" in reply.error
    executor.close()


@pytest.mark.parametrize("kind", ["sleep", "kv_export"])
def test_other_controls_are_refused_by_name(kind: str) -> None:
    executor = native_executor(tiny_llama(), config_for())
    reply = executor.control(Control(kind))
    assert not reply.ok and repr(kind) in reply.error
    executor.close()
