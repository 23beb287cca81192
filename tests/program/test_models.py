"""The model registry, reading of configurations, and the llama family's variants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmx.errors import ModelError
from llmx.models.builtin import builtin_models
from llmx.models.fields import Fields
from llmx.models.llama import build_llama, llama_models
from llmx.models.registry import ModelRegistry, TensorLayout, facts_from
from llmx.models.rope import rope_spec
from llmx.program.ops import Model, Op, Transform
from llmx.program.verify import verify
from tests.program.tiny import LLAMA, llama


def ops(model: Model, kind: str) -> list[Op]:
    return [op for op in model.programs["main"].ops if op.kind == kind]


def test_found_by_architecture_model_type_and_gguf_name() -> None:
    models = builtin_models()
    assert models.find({"architectures": ["Qwen3ForCausalLM"]}).name == "qwen3"
    assert models.find({"model_type": "mistral"}).name == "mistral"
    assert models.find({"architectures": ["Unknown", "LlamaForCausalLM"]}).name == "llama"
    assert models.find_gguf("qwen2").name == "qwen2"
    assert "LlamaForCausalLM" in models.architectures()


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"architectures": ["LlamaForCausalLLM"]}, r"^dir/config.json: architecture 'LlamaForCausalLLM' is not supported; nearest supported: LlamaForCausalLM"),
        ({"architectures": ["Zzz"], "model_type": "llama"}, "architecture 'Zzz' is not supported; nearest supported: BertForMaskedLM"),
        ({"model_type": "lama"}, "model_type 'lama' is not supported; nearest supported: llama"),
        ({}, "neither 'architectures' nor 'model_type'"),
    ],
)
def test_an_unknown_model_is_told_the_nearest(config: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        builtin_models().find(config, path="dir/config.json")


def test_an_unknown_gguf_architecture() -> None:
    with pytest.raises(ModelError, match=r"^m.gguf: GGUF architecture 'qwen33' is not supported; nearest supported: qwen3, qwen2"):
        builtin_models().find_gguf("qwen33", path="m.gguf")


def test_merge_adds_and_refuses_names_that_are_taken() -> None:
    models, mine = builtin_models(), replace(llama_models()[0], name="mine", architectures=("MineForCausalLM",), model_types=(), gguf=())
    models.merge([mine])
    assert models.find({"architectures": ["MineForCausalLM"]}) is mine
    assert "MineForCausalLM" not in builtin_models().architectures()
    with pytest.raises(ModelError, match="'LlamaForCausalLM' of model 'other' is registered already, by 'llama'"):
        models.merge([replace(mine, name="other", architectures=("LlamaForCausalLM",))])
    assert ModelRegistry().architectures() == []


def test_ignored_tensors() -> None:
    definition = llama_models()[0]
    assert definition.ignores("model.layers.0.self_attn.rotary_emb.inv_freq")
    assert not definition.ignores("model.layers.0.self_attn.q_proj.weight")
    assert not replace(definition, ignored=()).ignores("anything")


def test_facts() -> None:
    facts = facts_from({**LLAMA, "eos_token_id": [2, 7], "bos_token_id": 1})
    assert (facts.vocab_size, facts.max_model_len, facts.eos_ids, facts.bos_id, facts.pad_id) == (512, 128, (2, 7), 1, None)
    assert facts_from({**LLAMA, "eos_token_id": None}).eos_ids == ()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hidden_size": None}, "config field 'hidden_size' is None; a whole number of at least 1"),
        ({"num_hidden_layers": "two"}, "config field 'num_hidden_layers' is 'two'"),
        ({"vocab_size": 0}, "config field 'vocab_size' is 0"),
        ({"num_attention_heads": True}, "config field 'num_attention_heads' is True"),
        ({"rms_norm_eps": "1e-5"}, "config field 'rms_norm_eps' is '1e-5'; a number"),
        ({"attention_bias": "yes"}, "config field 'attention_bias' is 'yes'; true or false"),
        ({"hidden_act": "mish"}, "config field 'hidden_act' is 'mish'; known: gelu"),
        ({"model_type": "mistral", "sliding_window": 8, "layer_types": ["full_attention"]}, "'layer_types' is .* a list of 2 entries"),
        ({"rope_scaling": {"rope_type": "ntk", "factor": 2.0}}, "rope type 'ntk' is not supported; supported: none, linear"),
        ({"rope_scaling": {"type": "linear"}}, "rope type 'linear' needs 'factor'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope type 'llama3' needs 'low_freq_factor'"),
        ({"rope_scaling": ["linear"]}, "a mapping is needed"),
    ],
)
def test_a_wrong_configuration_names_the_field(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        llama(**changes)


def test_rope_of_old_and_new_configurations() -> None:
    old = {"rope_theta": 5e5, "rope_scaling": {"type": "yarn", "factor": 4.0}, "max_position_embeddings": 4096}
    new = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 4096}}
    assert rope_spec(old, 64) == rope_spec(new, 64)
    assert rope_spec(old, 64).params == (("factor", 4.0), ("original_max_position_embeddings", 4096))
    assert rope_spec({}, 64).theta == 10000.0 and rope_spec({}, 64).scaling == "none" and rope_spec({}, 64, theta=3.0).theta == 3.0
    assert rope_spec({"partial_rotary_factor": 0.25}, 64).rotary_dim == 16
    with_sections = rope_spec({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, 128)
    assert (with_sections.mrope_sections, with_sections.scaling) == ((16, 24, 24), "none")


def test_longrope_keeps_its_factors_and_derives_its_ratio() -> None:
    config = {
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0, 2], "long_factor": [3.0, 4.0]},
    }
    spec = rope_spec(config, 4)
    assert dict(spec.params) == {"factor": 32.0, "long_factor": (3.0, 4.0), "original_max_position_embeddings": 4096, "short_factor": (1.0, 2.0)}
    hash(spec)


def test_rope_per_layer_type() -> None:
    config = {"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4, "rope_type": "linear", "factor": 8.0}}}
    assert rope_spec(config, 64, layer_type="full_attention").theta == 1e6
    assert rope_spec(config, 64, layer_type="sliding_attention").scaling == "linear"


def test_rows_of_pairs_are_put_back_in_halves_for_q_and_k_only() -> None:
    model = build_llama({**LLAMA, "attention_bias": True}, None, TensorLayout(rope_pairs=True))
    q, k, v = ops(model, "linear")[0].weights["w"]
    assert q.weight.transforms == q.bias.transforms == (Transform("permute_rows", (4,)),)  # type: ignore[union-attr]
    assert k.weight.transforms == (Transform("permute_rows", (2,)),) and v.weight.transforms == ()
    assert all(op.attrs.spec.rope.style == "neox" for op in ops(model, "qkv_prep"))


def test_tied_head_is_one_weight() -> None:
    tied, own = llama(tie_word_embeddings=True), llama()
    assert len(own.weights()) == len(tied.weights()) + 1
    assert ops(tied, "linear")[-1].weights["w"][0].weight.name == "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("model_type", "fields", "windows"),
    [
        ("llama", {"sliding_window": 8}, [None, None]),
        ("mistral", {"sliding_window": 8}, [8, 8]),
        ("mistral", {"sliding_window": None}, [None, None]),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": False}, [None, None]),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}, [None, 8]),
        ("qwen3", {"sliding_window": 8, "use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]}, [8, None]),
    ],
)
def test_windows(model_type: str, fields: dict[str, Any], windows: list[int | None]) -> None:
    model = llama(model_type=model_type, **fields)
    verify(model)
    assert [op.attrs.spec.window for op in ops(model, "attention")] == windows
    assert [state.spec.kind for state in model.states.values()] == ["sliding" if w else "full" for w in windows]
    assert [state.spec.window for state in model.states.values()] == windows


@pytest.mark.parametrize(
    ("model_type", "qkv", "o", "norms"), [("llama", False, False, "none"), ("qwen2", True, False, "none"), ("qwen3", False, False, "head")]
)
def test_biases_and_norms_of_the_family(model_type: str, qkv: bool, o: bool, norms: str) -> None:
    model = llama(model_type=model_type)
    first, out = ops(model, "linear")[:2]
    assert [p.bias is not None for p in first.weights["w"]] == [qkv] * 3 and (out.weights["w"][0].bias is not None) == o
    assert ops(model, "qkv_prep")[0].attrs.spec.qk_norm == norms


def test_a_null_field_is_an_absent_one() -> None:
    assert Fields({"head_dim": None}).integer("head_dim", 7) == 7
    assert ops(llama(head_dim=None), "attention")[0].attrs.spec.head_dim == 16
    assert ops(llama(head_dim=24), "attention")[0].attrs.spec.head_dim == 24
