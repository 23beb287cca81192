"""Programs mean what the reference implementations compute: logits of tiny random models, Program in numpy against transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from llmx.models.gptj import build_gptj  # noqa: E402
from llmx.models.llama import build_llama  # noqa: E402
from llmx.models.olmo2 import build_olmo2  # noqa: E402
from llmx.models.qwen import build_qwen  # noqa: E402
from llmx.program.kinds import core_registry  # noqa: E402
from llmx.program.ops import Model  # noqa: E402
from llmx.program.passes.decompose import decompose  # noqa: E402
from llmx.program.verify import verify  # noqa: E402
from llmx.testing.numpy_programs import Interpreter  # noqa: E402
from tests.program.paper import bert, deepseek_v3, falcon_h1, gemma3n, qwen2_5_vl, qwen3_moe, qwen3_next, whisper  # noqa: E402
from tests.program.paper.oracle import make_config  # noqa: E402

IDS = np.array([3, 17, 250, 3, 99, 42, 7, 3, 501, 8, 11, 60])
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPTJ = {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "vocab_size": 512, "n_positions": 64}
DEEPSEEK = {
    **SMALL,
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
FALCON = {
    **SMALL,
    "mamba_d_ssm": 48,
    "mamba_n_heads": 6,
    "mamba_d_head": 8,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "embedding_multiplier": 1.5,
    "key_multiplier": 0.7,
    "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 1.1,
    "ssm_in_multiplier": 0.8,
    "ssm_out_multiplier": 1.2,
    "ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 0.9],
    "mlp_multipliers": [0.9, 1.3],
    "lm_head_multiplier": 0.4,
}
NEXT = {
    **SMALL,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 3,
}
GEMMA3N = {
    **SMALL,
    "head_dim": 16,
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 4,
    "intermediate_size": [96] * 4,
    "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0],
    "vocab_size_per_layer_input": 400,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 8,
}
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
WHISPER = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": 512,
    "max_source_positions": 20,
    "max_target_positions": 32,
    "num_mel_bins": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
DECODERS: dict[str, tuple[Callable[[dict[str, Any]], Model], str, str, dict[str, Any]]] = {
    "llama": (build_llama, "LlamaConfig", "LlamaForCausalLM", SMALL),
    "llama with biases, tied": (
        build_llama,
        "LlamaConfig",
        "LlamaForCausalLM",
        {**SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 24},
    ),
    "mistral with a window": (build_llama, "MistralConfig", "MistralForCausalLM", {**SMALL, "sliding_window": 4, "hidden_act": "gelu"}),
    "qwen2": (build_qwen, "Qwen2Config", "Qwen2ForCausalLM", {**SMALL, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "qwen3": (build_qwen, "Qwen3Config", "Qwen3ForCausalLM", {**SMALL, "head_dim": 16}),
    "olmo-2": (build_olmo2, "Olmo2Config", "Olmo2ForCausalLM", SMALL),
    "gpt-j": (build_gptj, "GPTJConfig", "GPTJForCausalLM", GPTJ),
    "qwen3-moe": (
        qwen3_moe.build,
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {**SMALL, **EXPERTS, "head_dim": 16, "mlp_only_layers": [1], "norm_topk_prob": True},
    ),
    "deepseek-v3": (deepseek_v3.build, "DeepseekV3Config", "DeepseekV3ForCausalLM", DEEPSEEK),
    "falcon-h1": (falcon_h1.build, "FalconH1Config", "FalconH1ForCausalLM", FALCON),
    "falcon-h1 normed after the gate": (
        falcon_h1.build,
        "FalconH1Config",
        "FalconH1ForCausalLM",
        {**FALCON, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "qwen3-next": (qwen3_next.build, "Qwen3NextConfig", "Qwen3NextForCausalLM", NEXT),
    "gemma-3n": (gemma3n.build, "Gemma3nTextConfig", "Gemma3nForCausalLM", GEMMA3N),
}


def random_model(model_class: str, config: Any) -> Any:
    """A model in float32 whose every parameter and buffer of the checkpoint is random, so that none can be mixed up."""
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    model = getattr(transformers, model_class)(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(0.0, 0.2).add_(1.0 if "norm" in name and name.endswith("weight") and p.ndim == 1 else 0.0)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.normal_(0.0, 0.2)
    return model


def tensors(model: Any) -> dict[str, np.ndarray]:
    return {name: t.detach().double().numpy() for name, t in model.state_dict().items()}


def programs(model: Model) -> dict[str, Any]:
    verify(model)
    return {name: decompose(p, core_registry()) for name, p in model.programs.items()}


def assert_close(got: np.ndarray, want: Any) -> None:
    want = want.detach().double().numpy()
    assert np.isfinite(want).all() and want.std() > 1e-3
    np.testing.assert_allclose(got, want, atol=2e-4 * np.abs(want).max(), rtol=0)


@pytest.mark.parametrize("case", DECODERS)
def test_decoders(case: str) -> None:
    build, config_class, model_class, fields = DECODERS[case]
    config = make_config(config_class, **fields)
    model = random_model(model_class, config)
    main = programs(build(config.to_dict()))["main"]
    got = Interpreter(tensors(model)).run(main, {"ids": IDS, "positions": np.arange(len(IDS)), "head": np.arange(len(IDS))})
    with torch.no_grad():
        assert_close(got["logits"], model(torch.tensor(IDS)[None]).logits[0])


def test_whisper() -> None:
    config = make_config("WhisperConfig", **WHISPER)
    model = random_model("WhisperForConditionalGeneration", config)
    run, parts = Interpreter(tensors(model)), programs(whisper.build(config.to_dict()))
    mel = np.random.default_rng(0).normal(size=(40, 8))
    encoded = run.run(parts["encode.audio"], {"features": mel, "positions": np.arange(20)})["encoded"]
    run.run(parts["cross_kv"], {"encoded": encoded})
    got = run.run(parts["main"], {"ids": IDS, "positions": np.arange(len(IDS)), "head": np.array([2, 11])})
    with torch.no_grad():
        want = model(torch.tensor(mel.T[None], dtype=torch.float32), decoder_input_ids=torch.tensor(IDS)[None])
    assert_close(encoded, want.encoder_last_hidden_state[0])
    assert_close(got["logits"], want.logits[0, [2, 11]])


def test_bert() -> None:
    config = make_config("BertConfig", hidden_size=64, intermediate_size=96, num_attention_heads=4, num_hidden_layers=2, vocab_size=512)
    model = random_model("BertModel", config)
    run, parts, types = Interpreter(tensors(model)), programs(bert.build(config.to_dict())), (IDS > 50).astype(int)
    hidden = run.run(parts["main"], {"ids": IDS, "positions": np.arange(len(IDS)), "token_types": types})["hidden"]
    with torch.no_grad():
        want = model(torch.tensor(IDS)[None], token_type_ids=torch.tensor(types)[None])
    assert_close(hidden, want.last_hidden_state[0])
    assert_close(run.run(parts["pool"], {"hidden": hidden})["pooled"], want.pooler_output)


def vl_config() -> Any:
    text = {**SMALL, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
    vision = {"hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "num_heads": 2, "depth": 3, "fullatt_block_indexes": [1]}
    return make_config("Qwen2_5_VLConfig", text_config=text, vision_config={**vision, "patch_size": 4, "window_size": 16, "spatial_merge_size": 2})


def test_qwen2_5_vl_text_turns_by_three_positions() -> None:
    config = vl_config()
    model = random_model("Qwen2_5_VLForConditionalGeneration", config)
    main = programs(qwen2_5_vl.build(config.to_dict()))["main"]
    rng = np.random.default_rng(0)
    positions, index, embeds = np.sort(rng.integers(0, 30, (3, len(IDS))), -1), np.full(len(IDS), -1), rng.normal(size=(4, 64))
    index[3:7] = np.arange(4)
    inputs = {"ids": IDS, "positions": positions, "head": np.arange(len(IDS)), "vision.embeds": embeds, "vision.index": index}
    got = Interpreter(tensors(model)).run(main, inputs)["logits"]
    with torch.no_grad():
        rows = model.get_input_embeddings()(torch.tensor(IDS))
        rows[3:7] = torch.tensor(embeds, dtype=torch.float32)
        want = model.model.language_model(inputs_embeds=rows[None], position_ids=torch.tensor(positions)[:, None])
        assert_close(got, model.lm_head(want.last_hidden_state[0]))


def test_qwen2_5_vl_vision_sees_windows() -> None:
    config = vl_config()
    model = random_model("Qwen2_5_VLForConditionalGeneration", config)
    encode = programs(qwen2_5_vl.build(config.to_dict()))["encode.vision"]
    height, width, merge, window = 12, 8, 2, 4  # patches; a window is window_size / patch_size patches wide
    pixels = np.random.default_rng(0).normal(size=(height * width, 3 * 2 * 4 * 4))
    # patches come in groups of merge x merge; rows and columns of each group and patch
    groups = [(y, x) for y in range(0, height, merge) for x in range(0, width, merge)]
    order = sorted(range(len(groups)), key=lambda g: (groups[g][0] // window, groups[g][1] // window, g))
    patches = [(y + j, x + i) for g in order for y, x in [groups[g]] for j in range(merge) for i in range(merge)]
    inputs = {
        "pixels": pixels,
        "order": np.array(order),
        "restore": np.argsort(order),
        "positions": np.array(patches).T,
        "windows": np.array([y // window * 100 + x // window for y, x in patches]),
        "frames": np.zeros(len(patches), int),
    }
    got = Interpreter(tensors(model)).run(encode, inputs)["embeds"]
    with torch.no_grad():
        want = model.model.visual(torch.tensor(pixels, dtype=torch.float32), grid_thw=torch.tensor([[1, height, width]]))
    assert_close(got, want.pooler_output)
