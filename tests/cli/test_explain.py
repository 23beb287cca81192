"""`llmx explain`: memory as a start would use it, and what fits; options that change or check a model's files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from llmx import LLM
from llmx.weights.sources import locate
from tests.cli.conftest import Ran

NULL = ("--platform", "null")
MODEL = "smollm2-135m-instruct"


def _memory(ran: Ran) -> dict[str, object]:
    assert ran.code == 0, ran.err
    memory: dict[str, object] = ran.json()["memory"]
    return memory


def test_the_estimate_is_what_a_start_takes(llmx: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    memory = _memory(llmx("explain", *NULL, "--json", "--device-memory", "200M", "--max-model-len", "2k"))
    left = memory["device_bytes"] - memory["weight_bytes"]  # type: ignore[operator]
    monkeypatch.setattr("llmx.engine.start.available_bytes", lambda: left)  # what would be free beside the weights
    with LLM(platform="null", max_model_len=2000) as llm:
        info = llm.info
    assert (memory["kv_bytes"], memory["kv_tokens"], memory["requests"]) == (info.kv_bytes, info.kv_tokens, info.max_full_requests)
    assert memory["requests"] > 0 and memory["kv_bytes"] <= left / 2 and memory["max_model_len"] == 2000


def test_figures_of_the_embedded_model_on_the_cpu_platform(llmx: Callable[..., Ran]) -> None:
    memory = _memory(llmx("explain", "--platform", "cpu", "--json", "--device-memory", "24G", "--max-model-len", "8k"))
    assert memory["kv_bytes_per_token"] == 30 * 2 * 3 * 64 * 2  # layers, k and v, kv heads, head size, bytes of bf16
    assert memory["kv_bytes_per_request"] == 500 * 16 * memory["kv_bytes_per_token"]
    assert memory["requests"] == memory["kv_bytes"] // memory["kv_bytes_per_request"] and memory["advice"] == []  # type: ignore[operator]
    full = _memory(llmx("explain", "--platform", "cpu", "--json", "--device-memory", "24G", "--dtype", "float32"))
    assert full["weight_bytes"] == 4 * 134_515_008 and full["kv_bytes_per_token"] == 2 * memory["kv_bytes_per_token"]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (("--device-memory", "150M"), "set --max-model-len to"),
        (("--device-memory", "300M"), "it fits with --kv-cache-memory-bytes"),
        (("--device-memory", "50M"), "the weights alone need 93 MiB"),
        (("--device-memory", "1G", "--kv-cache-memory-bytes", "2G"), "lower --kv-cache-memory-bytes"),
    ],
)
def test_what_does_not_fit_gets_the_nearest_setting_that_does(options: tuple[str, ...], advice: str, llmx: Callable[..., Ran]) -> None:
    ran = llmx("explain", "--platform", "cpu", *options)
    assert ran.code == 0 and "0 such requests fit" in ran.out and advice in ran.out, ran.out


def test_the_advice_is_true(llmx: Callable[..., Ran]) -> None:
    asked = ("explain", "--platform", "cpu", "--json", "--device-memory")
    (too_long, *_) = _memory(llmx(*asked, "150M"))["advice"]  # type: ignore[misc]
    length = str(too_long).split("--max-model-len to ")[1].split()[0]
    assert _memory(llmx(*asked, "150M", "--max-model-len", length))["requests"] == 1
    (*_, fits) = _memory(llmx(*asked, "300M"))["advice"]  # type: ignore[misc]
    assert _memory(llmx(*asked, "300M", "--kv-cache-memory-bytes", str(fits).split()[-1]))["requests"] == 1


def test_files_and_models_of_the_hub_cache(tmp_path: Path, llmx: Callable[..., Ran]) -> None:
    expected = _memory(llmx("explain", MODEL, *NULL, "--json", "--device-memory", "1G"))
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "models--org--small-GGUF/snapshots" / commit
    snapshot.mkdir(parents=True)
    shutil.copy(locate(MODEL), snapshot / "small.Q4_1.gguf")
    refs = tmp_path / "models--org--small-GGUF/refs"
    refs.mkdir()
    (refs / "main").write_text(commit)
    for model in (str(snapshot / "small.Q4_1.gguf"), "org/small-GGUF:Q4_1"):
        ran = llmx("explain", model, *NULL, "--json", "--device-memory", "1G", "--download-dir", str(tmp_path))
        assert _memory(ran) == expected
    typo = llmx("explain", "org/smal-GGUF:Q4_1", *NULL, "--download-dir", str(tmp_path))
    assert typo.code == 2 and "did you mean 'org/small-GGUF'?" in typo.err, typo.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--quantization", "awq"), "has gguf, q4_1, q8_0: leave it out"),
        (("--load-format", "safetensors"), "holds gguf: give gguf or auto"),
        (("--generation-config", "/no/such"), "give auto, none, a generation_config.json"),
        (("--override-generation-config", '{"temprature": 1}'), "no default of sampling: give temperature"),
        (("--hf-overrides", '{"num_hidden_layers": 29}'), "layers.29"),
        (("--max-model-len", "100k"), "context of 8192 tokens"),
    ],
)
def test_claims_that_the_files_do_not_keep(options: tuple[str, ...], says: str, llmx: Callable[..., Ran]) -> None:
    ran = llmx("explain", *NULL, *options)
    assert ran.code == 2 and says in ran.err, ran.err


def test_overrides_reach_the_model(tmp_path: Path, llmx: Callable[..., Ran]) -> None:
    def digest(*options: str) -> str:
        return str(llmx("explain", *NULL, "--json", "--device-memory", "1G", *options).json()["plan"]["model_digest"])

    longer = _memory(llmx("explain", *NULL, "--json", "--device-memory", "1G", "--hf-overrides", '{"max_position_embeddings": 16384}'))
    assert longer["max_model_len"] == 16384
    assert digest("--quantization", "q4_1", "--load-format", "gguf") == digest() != digest("--hf-overrides", '{"rope_theta": 5.0}')
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.4, "top_k": 7}')
    for options, temperature, top_k in (
        ({}, 0.0, 0),
        ({"generation_config": "none"}, 1.0, 0),
        ({"generation_config": str(tmp_path)}, 0.4, 7),
        ({"generation_config": str(tmp_path), "override_generation_config": {"top_k": 9}}, 0.4, 9),
    ):
        with LLM(platform="null", num_blocks=600, **options) as llm:
            params = llm.get_default_sampling_params()
            assert (params.temperature, params.top_k) == (temperature, top_k) and llm.tokenizer.eos_ids
