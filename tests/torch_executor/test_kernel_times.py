"""What `llmx bench kernels` measures on platforms whose devices torch runs: every op of the model, by storage and provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from llmx.executor import Control, ModelBundle  # noqa: E402
from llmx.testing import Driver, tiny_llama  # noqa: E402
from llmx.testing.conformance import adapters  # noqa: E402
from llmx.testing.conformance.subject import Subject  # noqa: E402
from tests.torch_executor.decoder_logits import check_logits  # noqa: E402


@pytest.mark.parametrize("platform", ["torch", "cuda", "rocm", "xpu"])
def test_every_kernel_has_its_time_and_the_executor_stays_usable(platform: str) -> None:
    subject = Subject(platform, emulate=platform != "torch")
    executor = subject.executor(tiny_llama("q4_0", head="q8_0", max_position_embeddings=256))
    driver = Driver(executor)
    before = driver.generate({0: [5, 6, 7, 8]}, 3)
    reply = executor.control(Control("profile", {"rows": [1, 7, 1 << 20], "contexts": [64, 1 << 20], "repeats": 1}))
    assert reply.ok, reply.error
    found = reply.value["kernels"]
    assert reply.value["emulated"] == (platform != "torch") and min(reply.value["limits"][name] for name in ("read", "f32")) > 0
    products = {(one["shape"].split(",")[0], one["rows"]) for one in found if one["kernel"] == "linear"}
    shapes = ("q4_0 64 -> 128", "q4_0 64 -> 64", "q4_0 64 -> 192", "q4_0 96 -> 64", "q8_0 64 -> 512")
    assert products == {(shape, rows) for shape in shapes for rows in (1, 7)}
    assert [(one["rows"], "context 64" in one["shape"]) for one in found if one["kernel"] == "attention"] == [(1, False), (7, False), (1, True)]
    assert all(one["us"] > 0 and one["least_us"] > 0 and np.isclose(one["share"], one["least_us"] / one["us"]) for one in found)
    assert driver.generate({0: [5, 6, 7, 8]}, 3) == before
    driver.join({0: [1, 2, 3]})
    assert "no request runs" in executor.control(Control("profile", {"rows": [1], "contexts": [], "repeats": 1})).error
    subject.close()


def test_products_of_experts_are_timed_as_one() -> None:
    """qwen3-moe: every expert of a layer in one product, of whose weights a row reads the share that it chooses."""
    subject, found = Subject("torch"), []

    def profiled(bundle: ModelBundle) -> Any:
        executor = subject.executor(bundle)
        found.append(executor.control(Control("profile", {"rows": [1, 16], "contexts": [], "repeats": 1})))
        return executor

    check_logits("qwen3-moe", profiled)  # and it answers rightly afterwards
    [reply] = found
    experts = [one for one in reply.value["kernels"] if one["kernel"] == "moe_experts"]
    assert [one["rows"] for one in experts] == [1, 16] and 0 < experts[0]["least_us"] < experts[1]["least_us"]
    subject.close()


def test_with_an_adapter_products_are_timed_with_it_too() -> None:
    subject = Subject("torch")
    bundle = tiny_llama(max_position_embeddings=256)
    config, _ = subject.configured(dtype="float32", enable_lora=True)
    executor = subject.executor(bundle, config=config)
    assert executor.control(Control("lora_add", {"slot": 1, "parts": adapters._adapter(bundle, 8, 4)})).ok
    reply = executor.control(Control("profile", {"rows": [1, 5], "contexts": [], "repeats": 1}))
    named = {(one["kernel"], one["rows"]) for one in reply.value["kernels"] if one["shape"].endswith(", with an adapter")}
    assert named == {("linear", 1), ("linear", 5)}
    subject.close()
