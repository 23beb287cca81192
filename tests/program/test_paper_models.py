"""Paper models: built from configuration alone, accepted by verify, each parameter of the transformers model used exactly once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

from llmx.models.gemma import build_gemma  # noqa: E402
from llmx.models.gpt2 import build_gpt2  # noqa: E402
from llmx.models.gptj import build_gptj  # noqa: E402
from llmx.models.granite import build_granite  # noqa: E402
from llmx.models.llama import build_llama  # noqa: E402
from llmx.models.olmo2 import build_olmo2  # noqa: E402
from llmx.models.opt import build_opt  # noqa: E402
from llmx.models.phi3 import build_phi3  # noqa: E402
from llmx.models.qwen import build_qwen  # noqa: E402
from llmx.models.smollm3 import build_smollm3  # noqa: E402
from llmx.program.kinds import core_registry  # noqa: E402
from llmx.program.ops import Model, Part, Transform  # noqa: E402
from llmx.program.verify import verify  # noqa: E402
from tests.program.paper import bert, deepseek_v3, eagle3, falcon_h1, gemma3n, qwen2_5_vl, qwen3_moe, qwen3_next, whisper  # noqa: E402
from tests.program.paper.coverage import check_coverage  # noqa: E402
from tests.program.paper.oracle import make_config, parameters  # noqa: E402

Build = Callable[[dict[str, Any]], Model]
GEMMA3N = {
    "num_hidden_layers": 6,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "intermediate_size": [128] * 6,
    "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.0, 0.0],
}
CASES: dict[str, tuple[Build, str, str, dict[str, Any]]] = {
    "llama": (build_llama, "LlamaConfig", "LlamaForCausalLM", {}),
    "llama-biased-tied": (build_llama, "LlamaConfig", "LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral": (build_llama, "MistralConfig", "MistralForCausalLM", {"head_dim": 160}),
    "qwen2": (build_qwen, "Qwen2Config", "Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": 3}),
    "qwen3": (build_qwen, "Qwen3Config", "Qwen3ForCausalLM", {}),
    "gemma-2": (build_gemma, "Gemma2Config", "Gemma2ForCausalLM", {}),
    "gemma-3": (build_gemma, "Gemma3TextConfig", "Gemma3ForCausalLM", {}),
    "phi-3": (build_phi3, "Phi3Config", "Phi3ForCausalLM", {"num_key_value_heads": 8}),
    "granite-3": (build_granite, "GraniteConfig", "GraniteForCausalLM", {}),
    "smollm3": (build_smollm3, "SmolLM3Config", "SmolLM3ForCausalLM", {}),
    "gpt-2": (build_gpt2, "GPT2Config", "GPT2LMHeadModel", {}),
    "opt": (build_opt, "OPTConfig", "OPTForCausalLM", {}),
    "opt-350m": (build_opt, "OPTConfig", "OPTForCausalLM", {"word_embed_proj_dim": 512, "do_layer_norm_before": False}),
    "deepseek-v3": (deepseek_v3.build, "DeepseekV3Config", "DeepseekV3ForCausalLM", {"num_hidden_layers": 5, "n_routed_experts": 16}),
    "deepseek-v3-full-q": (
        deepseek_v3.build,
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        {"q_lora_rank": None, "num_hidden_layers": 4, "n_routed_experts": 16},
    ),
    "falcon-h1": (falcon_h1.build, "FalconH1Config", "FalconH1ForCausalLM", {}),
    "falcon-h1-normed": (falcon_h1.build, "FalconH1Config", "FalconH1ForCausalLM", {"mamba_rms_norm": True, "mamba_proj_bias": True, "num_hidden_layers": 2}),
    "whisper": (whisper.build, "WhisperConfig", "WhisperForConditionalGeneration", {}),
    "gemma-3n": (gemma3n.build, "Gemma3nTextConfig", "Gemma3nForCausalLM", GEMMA3N),
    "olmo-2": (build_olmo2, "Olmo2Config", "Olmo2ForCausalLM", {}),
    "gpt-j": (build_gptj, "GPTJConfig", "GPTJForCausalLM", {}),
    "qwen3-moe": (qwen3_moe.build, "Qwen3MoeConfig", "Qwen3MoeForCausalLM", {"num_hidden_layers": 4, "mlp_only_layers": [1]}),
    "qwen3-next": (qwen3_next.build, "Qwen3NextConfig", "Qwen3NextForCausalLM", {"num_hidden_layers": 8, "num_experts": 32}),
    "qwen2.5-vl": (qwen2_5_vl.build, "Qwen2_5_VLConfig", "Qwen2_5_VLForConditionalGeneration", {}),
    "bert": (bert.build, "BertConfig", "BertModel", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_parameter_is_used_once(case: str) -> None:
    build, config_class, model_class, fields = CASES[case]
    config = make_config(config_class, **fields)
    model = build(config.to_dict())
    verify(model, core_registry())
    check_coverage(model, *parameters(model_class, config))


def test_gemma3n_shares_the_pages_of_the_last_layer_of_each_type() -> None:
    model = gemma3n.build(make_config("Gemma3nTextConfig", **GEMMA3N).to_dict())
    assert sorted(model.states) == [f"layers.{i}.attn" for i in range(4)]
    reads = [op.states[0] for op in model.programs["main"].ops if op.kind == "attention"]
    assert reads == ["layers.0.attn", "layers.1.attn", "layers.2.attn", "layers.3.attn", "layers.2.attn", "layers.3.attn"]


def test_whisper_reads_in_main_what_cross_kv_wrote() -> None:
    model = whisper.build(make_config("WhisperConfig").to_dict())
    assert list(model.programs) == ["encode.audio", "cross_kv", "main"]
    owners = {name: state.owner for name, state in model.states.items()}
    assert owners["layers.0.cross"] == "cross_kv" and owners["layers.0.attn"] == "main"
    assert str(model.programs["encode.audio"].outputs()["encoded"].shape[0]) == "E.audio//2"


def test_eagle3_reads_three_hidden_rows_of_its_target() -> None:
    llama = make_config("LlamaConfig", num_hidden_layers=8).to_dict()
    model = eagle3.build(llama, {**llama, "num_hidden_layers": 1, "draft_vocab_size": 3200})
    verify(model, core_registry())
    wanted = set(model.programs["draft.fuse"].inputs)
    assert wanted == {"hidden.2", "hidden.4", "hidden.5"} <= set(model.programs["main"].outputs())
    assert model.states["draft.0.attn"].owner == "draft"
    q_proj = next(p for p in model.programs["draft"].parts() if p.target.endswith("q_proj"))
    assert q_proj.weight.shape == (4096, 2 * 4096)


def test_a_fixed_head_scale_is_yarns_twice() -> None:
    rope = {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "rope_theta": 10000.0}
    config = make_config("DeepseekV3Config", num_hidden_layers=1, n_routed_experts=16).to_dict() | {"rope_parameters": rope}
    spec = next(op.attrs.spec for op in deepseek_v3.build(config).programs["main"].ops if op.kind == "mla")
    assert spec.scale == pytest.approx(192**-0.5 * 1.36888794541139**2)  # 0.1 ln 40 + 1
    assert spec.rope.scaling == "yarn" and spec.rope.style == "gptj"


def drop_last_weight(model: Model) -> Model:
    main = model.programs["main"]
    return replace(model, programs={"main": replace(main, ops=main.ops[:-2])})


def edit_experts(role: str, parts: Callable[[tuple[Part, ...]], tuple[Part, ...]]) -> Callable[[Model], Model]:
    def edit(model: Model) -> Model:
        main = model.programs["main"]
        ops = [replace(op, weights={**op.weights, role: parts(op.weights[role])}) if op.kind == "moe_experts" else op for op in main.ops]
        return replace(model, programs={"main": replace(main, ops=tuple(ops))})

    return edit


def rename(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return (replace(parts[0], weight=replace(parts[0].weight, name="ghost")), *parts[1:])


def overlap(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The first expert's part reaches one row too far."""
    w = parts[0].weight
    row, cut = w.transforms
    longer = replace(w, shape=(w.shape[0] + 1, w.shape[1]), transforms=(row, Transform("slice_rows", (0, cut.args[1] + 1))))
    return (replace(parts[0], weight=longer), *parts[1:])


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (drop_last_weight, "parameters not used: \\['lm_head.weight'\\]"),
        (edit_experts("down", rename), "the checkpoint has no tensor ghost"),
        (edit_experts("up", lambda parts: parts[1:]), "gate_up_proj: rows are used 0 to 1 times"),
        (edit_experts("gate", overlap), "gate_up_proj: rows are used 1 to 2 times"),
    ],
)
def test_the_coverage_check_finds_planted_faults(fault: Callable[[Model], Model], why: str) -> None:
    config = make_config("Qwen3MoeConfig", num_hidden_layers=1, num_local_experts=8)
    model, stored = qwen3_moe.build(config.to_dict()), parameters("Qwen3MoeForCausalLM", config)
    check_coverage(model, *stored)
    with pytest.raises(AssertionError, match=why):
        check_coverage(fault(model), *stored)
