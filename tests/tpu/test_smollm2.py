"""The embedded model on JAX's CPU backend: its tokens, and served to curl's like and the openai package. Compiling takes a minute."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

pytest.importorskip("jax")

from openai import OpenAI  # noqa: E402

from llmx import LLM  # noqa: E402
from tests.e2e.greedy import ROWS, check_greedy  # noqa: E402
from tests.server.processes import children, gauges, serve  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
OPTIONS = {"platform": "tpu", "tpu_backend": "cpu", "max_num_seqs": 8, "max_model_len": 1024, "kv_cache_memory_bytes": "512M"}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def test_greedy_tokens_equal_transformers() -> None:
    with LLM(dtype="float32", **OPTIONS) as llm:
        assert (llm.info.platform, llm.info.kv_dtype) == ("tpu", "f32") and "not verified on hardware" in llm.info.device
        check_greedy(llm, [ROWS[i] for i in (0, 2, 11, 17)])


def test_it_serves() -> None:
    arguments = [word for name, value in OPTIONS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    with serve(*arguments) as server:
        health = httpx.get(f"{server.url}/health").json()
        assert health["status"] == "ok" and "not verified on hardware" in " ".join(health["detail"])
        client = OpenAI(base_url=f"{server.url}/v1", api_key="unused", timeout=300)
        answer = client.chat.completions.create(model="smollm2-135m-instruct", messages=QUESTION, temperature=0, max_tokens=12)  # type: ignore[arg-type]
        assert answer.choices[0].message.content == "The capital of France is Paris." and str(answer.system_fingerprint).endswith("tpu")
        drawn = {"prompt": "Once upon a time", "temperature": 0.8, "top_p": 0.9, "seed": 3, "max_tokens": 8, "ignore_eos": True}
        texts = {httpx.post(f"{server.url}/v1/completions", json=drawn, timeout=300).json()["choices"][0]["text"] for _ in range(2)}
        assert len(texts) == 1
        schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
        masked = client.chat.completions.create(model="smollm2-135m-instruct", messages=QUESTION, max_tokens=20, response_format=form)  # type: ignore[call-overload]
        assert json.loads(masked.choices[0].message.content)["city"] in ("Paris", "Rome")
        assert gauges(server.url)["llmx:jit_compiles_total"] == 0
        engine = [pid for pid in children(server.process) if "jaxlib" in Path(f"/proc/{pid}/maps").read_text()]
        assert engine and "jaxlib" not in Path(f"/proc/{server.process.pid}/maps").read_text(), "JAX lives in the engine's process alone"
