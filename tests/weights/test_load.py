"""load_model: a source becomes Programs and accounted weights, or an error that names file and reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmx.config import ModelConfig
from llmx.errors import ConfigError, ModelError
from llmx.models.load import load_model, read_model_info
from llmx.weights.quant import dequantize, quantize

WriteGguf = Callable[..., Path]
WriteHf = Callable[..., Path]


def weights_of(source: str) -> dict[str, np.ndarray]:
    bundle = load_model(ModelConfig(source)).bundle
    return {ref.name: dequantize(bundle.weights.get(ref)) for ref in bundle.model.weights().values()}


def test_gguf_and_safetensors_of_one_model_are_the_same_model(write_gguf: WriteGguf, write_hf: WriteHf, tiny_tensors: dict) -> None:
    """The GGUF file is written as llama.cpp's converter does, rows of q and k as rotary pairs."""
    heads = {"attn_q": 4, "attn_k": 2}

    def stored(name: str, values: np.ndarray) -> np.ndarray:
        count = next((n for part, n in heads.items() if f".{part}." in name), None)
        return values if count is None else values.reshape(count, 2, -1, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)

    gguf = write_gguf(tensors={name: (stored(name, values), "f32") for name, (values, _) in tiny_tensors.items()})
    left, right = weights_of(str(gguf)), weights_of(str(write_hf(dtype="float32")))
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def test_quantised_types_are_kept_part_by_part(write_gguf: WriteGguf, tiny_tensors: dict) -> None:
    tensors = dict(tiny_tensors)
    tensors["blk.1.attn_v.weight"] = (tensors["blk.1.attn_v.weight"][0], "q8_0")
    bundle = load_model(ModelConfig(str(write_gguf(tensors=tensors)))).bundle
    stored = {ref.name: ref.quant.scheme for ref in bundle.model.weights().values()}
    assert stored["model.layers.1.self_attn.v_proj.weight"] == "q8_0" and stored["model.layers.1.self_attn.q_proj.weight"] == "q4_1"
    ref = next(ref for ref in bundle.model.weights().values() if ref.name == "model.layers.1.self_attn.v_proj.weight")
    np.testing.assert_array_equal(bundle.weights.get(ref).data, quantize(tensors["blk.1.attn_v.weight"][0], "q8_0").data)


def test_the_embedded_model_loads_every_weight() -> None:
    loaded = load_model(ModelConfig(max_model_len=512, served_names=("a", "b")))
    bundle, summary = loaded.bundle, loaded.summary
    assert (bundle.name, bundle.architecture, bundle.vocab_size, bundle.max_model_len) == ("smollm2-135m-instruct", "LlamaForCausalLM", 49152, 512)
    assert (summary.served_names, summary.eos_ids, summary.bos_id, summary.context_length) == (("a", "b"), (2,), 1, 8192)
    assert len(bundle.model.weights()) == 272 and loaded.warnings == () and len(bundle.digest) == 64


def test_read_model_info_says_the_same_and_builds_nothing(write_gguf: WriteGguf, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(str(write_gguf("tiny-model.gguf")))
    loaded = load_model(config)
    monkeypatch.setattr("llmx.models.decoder.ModelBuilder", None)
    summary = read_model_info(config)
    assert (summary.name, summary.max_model_len, summary.path) == ("tiny-model", 256, config.source)
    assert replace(summary, tokenizer=loaded.summary.tokenizer) == loaded.summary


def test_end_ids_of_all_files_count(write_hf: WriteHf) -> None:
    directory = write_hf(eos_token_id=2)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2, 96, -1], "temperature": 0.5}))
    summary = read_model_info(ModelConfig(str(directory)))
    assert summary.eos_ids == (2, 7)  # 96 is the size of the vocabulary
    assert summary.generation["temperature"] == 0.5 and summary.tokenizer.eos_ids == (2, 7)


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        (None, 256),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}, 400),
        ({"type": "linear", "factor": 2.0}, 512),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}, 256),
    ],
)
def test_context_follows_rope_scaling(write_hf: WriteHf, scaling: dict | None, length: int) -> None:
    source = str(write_hf(rope_scaling=scaling))
    assert read_model_info(ModelConfig(source)).max_model_len == length
    with pytest.raises(ConfigError, match=f"max_model_len is {length + 1}.*give 1 to {length}"):
        read_model_info(ModelConfig(source, max_model_len=length + 1))


@pytest.mark.parametrize("asked", [0, -1])
def test_senseless_lengths_are_refused(write_hf: WriteHf, asked: int) -> None:
    with pytest.raises(ConfigError, match=f"max_model_len is {asked}"):
        load_model(ModelConfig(str(write_hf()), max_model_len=asked))


def test_unknown_architecture_names_file_and_nearest(write_hf: WriteHf) -> None:
    directory = write_hf(architectures=["LlamaForCasualLM"])
    with pytest.raises(ModelError, match=f"{directory}.*'LlamaForCasualLM' is not supported; nearest supported: LlamaForCausalLM"):
        load_model(ModelConfig(str(directory)))


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ..., "model_type": ...},
        {"hidden_size": "64"},
        {"num_hidden_layers": 0},
        {"num_hidden_layers": 10**9},
        {"vocab_size": ...},
        {"head_dim": 15},
        {"num_key_value_heads": 3},
    ],
)
def test_a_senseless_configuration_is_refused_with_its_file(write_hf: WriteHf, changes: dict) -> None:
    directory = write_hf(**changes)
    with pytest.raises(ModelError, match=str(directory)):
        load_model(ModelConfig(str(directory)))


def test_a_missing_tensor_is_named(write_gguf: WriteGguf, tiny_tensors: dict) -> None:
    del tiny_tensors["blk.1.ffn_up.weight"]
    with pytest.raises(ModelError, match=r"model\.gguf: tensor 'model.layers.1.mlp.up_proj.weight' is missing"):
        load_model(ModelConfig(str(write_gguf(tensors=tiny_tensors))))


def test_a_tensor_of_another_shape_is_named(write_gguf: WriteGguf, tiny_tensors: dict) -> None:
    tiny_tensors["blk.1.ffn_up.weight"] = (np.zeros((64, 64), np.float32), "q4_1")
    with pytest.raises(ModelError, match=r"'model.layers.1.mlp.up_proj.weight' is q4_1 \[64, 64\].*\[96, 64\]"):
        load_model(ModelConfig(str(write_gguf(tensors=tiny_tensors))))


def test_tensors_without_a_place_are_refused(write_gguf: WriteGguf, tiny_tensors: dict) -> None:
    tiny_tensors["blk.2.attn_q.weight"] = tiny_tensors["blk.1.attn_q.weight"]
    with pytest.raises(ModelError, match="1 tensors have no place.*model.layers.2.self_attn.q_proj.weight"):
        load_model(ModelConfig(str(write_gguf(tensors=tiny_tensors))))


def test_rotary_buffers_are_ignored_and_a_tied_head_is_warned_of(write_hf: WriteHf, tiny_tensors: dict) -> None:
    from llmx.weights.names import canonical_name

    tensors = {canonical_name(name): values for name, (values, _) in tiny_tensors.items()}
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    loaded = load_model(ModelConfig(str(write_hf(tensors=tensors, bools=("model.layers.1.self_attn.rotary_emb.inv_freq",)))))
    assert len(loaded.warnings) == 1 and "lm_head.weight" in loaded.warnings[0]


def test_digest_follows_content(write_hf: WriteHf, tiny_tensors: dict) -> None:
    def digest(folder: str, **options: object) -> str:
        return load_model(ModelConfig(str(write_hf(folder=folder, **options)))).bundle.digest

    from llmx.weights.names import canonical_name

    tensors = {canonical_name(name): values.copy() for name, (values, _) in tiny_tensors.items()}
    same, sharded, typed = digest("a"), digest("b", shards=2), digest("c", dtype="float32")
    tensors["model.norm.weight"][-1] += 1
    assert same == sharded and len({same, typed, digest("d", tensors=tensors)}) == 3


def test_another_tokenizer(write_hf: WriteHf, write_gguf: WriteGguf, tmp_path: Path) -> None:
    source, other = str(write_hf()), write_gguf("tok.gguf", extra={"tokenizer.ggml.model": "gpt2"})
    assert read_model_info(ModelConfig(source)).tokenizer.path == source
    assert read_model_info(ModelConfig(source, tokenizer=str(other))).tokenizer.gguf["tokenizer.ggml.model"] == "gpt2"
    with pytest.raises(ConfigError, match="tokenizer is 'nowhere'"):
        read_model_info(ModelConfig(source, tokenizer="nowhere"))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_families_of_gguf(write_gguf: WriteGguf, tiny_tensors: dict, architecture: str) -> None:
    """Qwen 2 has biases on q, k and v, Qwen 3 norms of q and k; their rows lie as in Hugging Face files. None is tied here."""
    tensors = tiny_tensors | {"output.weight": (np.full((96, 64), 0.5, np.float32), "q8_0")}
    for layer in range(2):
        parts = {"qwen2": ("attn_q.bias", "attn_k.bias", "attn_v.bias"), "qwen3": ("attn_q_norm.weight", "attn_k_norm.weight"), "llama": ()}[architecture]
        sizes = {"attn_q.bias": 64, "attn_k.bias": 32, "attn_v.bias": 32, "attn_q_norm.weight": 16, "attn_k_norm.weight": 16}
        tensors |= {f"blk.{layer}.{part}": (np.arange(sizes[part], dtype=np.float32), "f32") for part in parts}
    loaded = load_model(ModelConfig(str(write_gguf(tensors=tensors, architecture=architecture))))
    refs = list(loaded.bundle.model.weights().values())
    assert len(refs) == len(tensors) and loaded.hf_config["tie_word_embeddings"] is False
    assert {ref.name for ref in refs if ref.transforms} == (
        {f"model.layers.{i}.self_attn.{p}_proj.weight" for i in range(2) for p in "qk"} if architecture == "llama" else set()
    )
    for ref in refs:
        assert loaded.bundle.weights.get(ref).shape == ref.shape


def test_nothing_is_read_twice_or_copied_at_load(write_gguf: WriteGguf) -> None:
    bundle = load_model(ModelConfig(str(write_gguf()))).bundle
    views = [bundle.weights.get(ref).data for ref in bundle.model.weights().values() if not ref.transforms]
    assert views and all(not view.flags.owndata and not view.flags.writeable for view in views)
