"""The JAX executor by itself: what is compiled and when, buffers that are given away, page operations, other kernels, other numbers of devices."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from llmx.errors import ConfigError, PlatformError, ProgramError  # noqa: E402
from llmx.executor import Control, KvOp, Late, SamplingRow, Step, Want  # noqa: E402
from llmx.sample.philox import uniform  # noqa: E402
from llmx.testing import Driver, EngineRunner, kv_plan, mask_of, tiny_llama  # noqa: E402
from llmx_tpu.backend import open_mesh  # noqa: E402
from llmx_tpu.programs import buckets  # noqa: E402
from llmx_tpu.rows import Bucket, step_arrays  # noqa: E402
from tests.tpu.jax_model import config_for, jax_executor  # noqa: E402

PROMPT = [int(t) for t in np.random.default_rng(11).integers(0, 512, 40)]
COMPILED, MISSED = "/jax/core/compile/backend_compile_duration", "/jax/compilation_cache/cache_misses"


@pytest.fixture
def events() -> Iterator[list[str]]:
    """Names of what JAX tells its monitors while the test runs."""
    seen: list[str] = []

    def timed(name: str, seconds: float, **more: Any) -> None:
        seen.append(name)

    def counted(name: str, **more: Any) -> None:
        seen.append(name)

    jax.monitoring.register_event_duration_secs_listener(timed)
    jax.monitoring.register_event_listener(counted)
    yield seen
    jax.monitoring.unregister_event_duration_listener(timed)
    jax.monitoring.unregister_event_listener(counted)


def every_kind_of_step(driver: Driver) -> None:
    """Chunks of many lengths, drawn and masked rows, drafts, scores, page operations, several requests."""
    rows = [SamplingRow(), SamplingRow(temperature=0.7, top_p=0.9, seed=3), SamplingRow(temperature=1.0, top_k=9, repetition_penalty=1.3)]
    for slot, row in enumerate(rows):
        driver.join({slot: PROMPT}, row)
    for slot in range(3):
        driver.step({slot: PROMPT[:30]}, [])
        driver.step({slot: PROMPT[30:]}, want=Want(top_logprobs=3))
    for _ in range(3):
        driver.step(dict.fromkeys(range(3), [-1]))
    driver.late(dict.fromkeys(range(2), [-1]), Late(mask=mask_of(512, [7, 8], [9])))
    driver.late({0: [-1]}, Late(host_logits=lambda logits: logits))
    driver.run(driver.step_of({0: [-1, 5, 6]}, samples=np.array([(0, 0, 3)], np.int32)))
    driver.run(Step(driver.seq, kv_ops=np.array([(KvOp.COPY, 0, 1, 90), (KvOp.ZERO, 0, 0, 91)], np.int32)))
    driver.join({3: PROMPT})
    driver.score(3, PROMPT[:20], 19)
    driver.leave(0, 1, 2, 3)


def test_every_bucket_is_compiled_before_ready_and_nothing_after(jax_cache: str, events: list[str]) -> None:
    config = config_for(32, 4, cache=jax_cache)
    executor = jax_executor(tiny_llama("f32", max_position_embeddings=128), config, warm=True)
    device, stats = executor._device, executor.control(Control("stats")).value
    assert executor.limits.buckets == (4, 16, 32)
    # a body for each bucket; the rows of a head, from each bucket's; a head and two ways to draw for each block of head rows; page operations
    assert stats["compiles"] == stats["programs"] == 3 + 5 + 2 * 3 + 1 and stats["jit_compiles"] == 0
    pages = device.pages[0][0]
    del events[:]
    every_kind_of_step(Driver(executor, room=16))
    assert COMPILED not in events and executor.control(Control("stats")).value["jit_compiles"] == 0
    assert pages.is_deleted() and not device.pages[0][0].is_deleted(), "pages are given to each step and taken back, not copied"
    executor.close()
    del events[:]
    again = jax_executor(tiny_llama("f32", max_position_embeddings=128), config, warm=True)
    assert MISSED not in events, "a second start finds the compiled programs in the folder"
    again.close()


def test_a_program_that_is_missing_is_counted(jax_cache: str) -> None:
    executor = jax_executor(tiny_llama("f32", max_position_embeddings=128), config_for(32, 4, cache=jax_cache))
    executor._device.compiled.ready = True
    driver = Driver(executor, room=8)
    driver.join({0: PROMPT[:3]})
    out = driver.step({0: PROMPT[:3]})
    assert executor.control(Control("stats")).value["jit_compiles"] == out.compiles == 4  # body, rows of the head, head, draw
    assert driver.step({0: [-1]}).compiles == 0
    executor.close()


def test_the_pallas_kernel_serves_an_engine(jax_cache: str) -> None:
    """Windows, soft caps and several requests; the interpreter runs the kernel inside the compiled step."""
    gemma = {
        "model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh", "head_dim": 16, "sliding_window": 20, "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0,
    }  # fmt: skip
    prompts = {"a": PROMPT[:35], "b": PROMPT[:3]}
    answers = []
    for kernels in ({}, {"attention": "jax.pallas"}):
        bundle = replace(tiny_llama("f32", **gemma), max_model_len=64)
        config = config_for(16, 4, cache=jax_cache, kernels=kernels)
        executor = jax_executor(bundle, config, 40)
        chosen = {piece.provider for piece in executor._pieces if bundle.model.programs["main"].ops[piece.first].kind == "attention"}
        assert chosen == {kernels.get("attention", "jax.xla")}
        runner = EngineRunner(executor, kv_plan(executor, 40, bundle.max_model_len), config, bundle.vocab_size)
        answers.append(runner.run(prompts, max_tokens=12))
        executor.close()
    assert answers[0] == answers[1] and len(answers[0]["a", 0][0]) == 12


def test_buckets_grow_by_four() -> None:
    assert buckets(4, 256) == (4, 16, 64, 256) and buckets(4, 100) == (4, 16, 64, 100) and buckets(16, 8) == (8,)


def test_padding_belongs_to_nobody() -> None:
    arrays = step_arrays([], Bucket(16, 4), [np.full((4, 3), -1, np.int32)])
    assert (arrays["owner"] == 4).all() and not arrays["q"].any() and not arrays["total"].any() and not arrays["tables"][0].any()


def test_random_numbers_are_those_of_the_specification() -> None:
    from llmx_tpu.sampler import _uniform

    seeds, positions = [0, 1, 2**63 + 5], [3, 70000, 5]
    words = [np.array([(n & 0xFFFFFFFF, n >> 32) for n in numbers], np.uint32) for numbers in (seeds, positions)]
    with jax.enable_x64(True):
        found = np.asarray(_uniform(*words))
    np.testing.assert_array_equal(found, [float(uniform(s, p)) for s, p in zip(seeds, positions, strict=True)])


def test_mistakes_are_named(jax_cache: str) -> None:
    with pytest.raises(ConfigError, match="--tpu-devices 99 from cpu:0 on, but JAX has"):
        open_mesh(config_for(devices=99))
    executor = jax_executor(tiny_llama("f32", max_position_embeddings=128), config_for(32, 4, cache=jax_cache))
    driver = Driver(executor, room=0)
    driver.join({0: PROMPT[:16]})
    driver.done[0] = 20  # no block was given that far
    with pytest.raises(PlatformError, match="slot 0 reads or writes a block that it was not given"):
        driver.step({0: [5]})
    assert not executor.control(Control("sleep")).ok
    executor.close()
    with pytest.raises(PlatformError, match="must not be closed"):
        executor.submit(Step(0))
    assert issubclass(ProgramError, Exception)


MESH = """
import numpy as np
from llmx.testing import Driver, logits_of, tiny_llama
from tests.tpu.jax_model import config_for, jax_executor
found = []
for devices in (1, 2, 8):
    bundle = tiny_llama("f32", max_position_embeddings=64, num_attention_heads=8, num_key_value_heads=8, head_dim=16)
    executor = jax_executor(bundle, config_for(32, 4, cache={cache!r}, devices=devices))
    pages, weights = executor._device.pages[0][0], executor._device._packed
    cut = pages.sharding.shard_shape(pages.shape)[2] * devices == pages.shape[2]
    assert cut and len(pages.sharding.device_set) == devices
    driver = Driver(executor, room=0)
    driver.join({{0: list(range(3, 23))}})
    found.append(logits_of(executor, driver.seq, {{0: list(range(3, 23))}}, {{0: 0}})[0])
    text = executor._device.compiled.table["body", 32, 4].as_text()
    assert ("all-reduce" in text or "all-gather" in text) == (devices > 1), devices
    executor.close()
for other in found[1:]:
    np.testing.assert_allclose(other, found[0], atol=1e-4 * np.abs(found[0]).max())
print("equal", found[0].std() > 0.1)
"""


def test_weights_and_pages_are_cut_over_a_mesh(jax_cache: str) -> None:
    """1, 2 and 8 devices give the same logits, with collectives between them; in a process of its own, which has eight of JAX's CPU devices."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    script = MESH.format(cache=jax_cache)
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "XLA_FLAGS": flags}, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("equal True")
