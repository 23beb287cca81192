"""The forty flags that users of other engines touch most: each works, or is refused with the reason and what to use."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmx.foreign_options import FOREIGN, REFUSED
from llmx.options import OPTIONS
from tests.cli.conftest import Ran

# flag and value as typed -> (option, value that it has then), or None where it says what llmx does anyway
WORKS = {
    "--host 0.0.0.0": ("host", "0.0.0.0"),
    "--port 9000": ("port", 9000),
    "--chat-template x.jinja": ("chat_template", "x.jinja"),
    "--model m.gguf": ("model", "m.gguf"),
    "--served-model-name a": ("served_model_name", ["a"]),
    "--tokenizer t": ("tokenizer", "t"),
    "--dtype float": ("dtype", "float32"),
    "--dtype auto": ("dtype", "auto"),
    "--max-model-len 32k": ("max_model_len", 32_000),
    "--max-model-len 1M": ("max_model_len", 1_000_000),
    "--quantization gguf": ("quantization", "gguf"),
    "-q gguf": ("quantization", "gguf"),
    "--seed 7": ("seed", 7),
    '--hf-overrides {"rope_theta":5}': ("hf_overrides", {"rope_theta": 5}),
    "--load-format safetensors": ("load_format", "safetensors"),
    "--load-format hf": ("load_format", "safetensors"),
    "--download-dir /d": ("download_dir", "/d"),
    "--gpu-memory-utilization 0.9": ("memory_fraction", 0.9),
    "--device-memory-utilization 0.9": ("memory_fraction", 0.9),
    "--kv-cache-dtype bfloat16": ("kv_cache_dtype", "bfloat16"),
    "--enable-prefix-caching": ("enable_prefix_caching", True),
    "--no-enable-prefix-caching": ("enable_prefix_caching", False),
    "--max-num-batched-tokens 4k": ("max_num_batched_tokens", 4_000),
    "--max-num-seqs 64": ("max_num_seqs", 64),
    # not of the forty, but as well known
    "--kv-cache-memory-bytes 4G": ("kv_cache_memory_bytes", 4_000_000_000),
    "--num-gpu-blocks-override 99": ("num_blocks", 99),
    "--revision main": ("revision", "main"),
    "--scheduling-policy priority": ("scheduling_policy", "priority"),
    "--generation-config vllm": ("generation_config", "none"),
    '--override-generation-config {"top_p":0.5}': ("override_generation_config", {"top_p": 0.5}),
    "--max-num-queued-reqs 9": ("max_num_queued_reqs", 9),
    "--uvicorn-log-level trace": ("log_level", "debug"),
    "--shutdown-timeout 3": ("drain_timeout", 3.0),
    "--root-path /p": ("root_path", "/p"),
    # what llmx does anyway
    "--api-key secret": ("api_key", "(hidden)"),
    "--runner generate": ("runner", "generate"),
    "--runner pooling": ("runner", "pooling"),
    "--convert embed": ("convert", "embed"),
    '--pooler-config {"pooling_type":"MEAN"}': ("pooler_config", {"pooling_type": "MEAN"}),
    "--tokenizer-mode auto": None,
    "--no-trust-remote-code": None,
    "--enforce-eager": ("enforce_eager", True),
    "--no-enforce-eager": ("enforce_eager", False),
    "--enable-chunked-prefill": None,
    "--tensor-parallel-size 2": ("tensor_parallel_size", 2),
    "-tp 2": ("tensor_parallel_size", 2),
    "-tp=2": ("tensor_parallel_size", 2),
    "-pp 1": None,
    "-dp 1": None,
    "--no-enable-expert-parallel": None,
    "--distributed-executor-backend mp": None,
    '--limit-mm-per-prompt {"image":0,"video":{"count":0}}': None,
    "--enable-lora": ("enable_lora", True),
    "--lora-modules a=b": ("lora_modules", [["a", "b"]]),
    '--lora-modules {"name":"a","path":"b","base_model_name":"c"}': ("lora_modules", [["a", "b"]]),
    "--max-loras 2": ("max_loras", 2),
    "--max-lora-rank 16": ("max_lora_rank", 16),
    "--lora-dtype auto": None,
    "--enable-auto-tool-choice": None,
    "--tool-call-parser hermes": ("tool_call_parser", "hermes"),
    "--reasoning-parser deepseek_r1": ("reasoning_parser", "deepseek_r1"),
    "--attention-backend auto": None,
    "--disable-log-stats": None,
    '--speculative-config {"method":"ngram"}': ("speculative_config", {"method": "ngram"}),
    "--spec-method suffix": ("spec_method", "suffix"),
    "--num-speculative-tokens 4": ("spec_tokens", 4),
    "--max-logprobs 20": None,
    "--block-size 16": None,
}

# flag and value as typed -> words of the answer: the reason, and what to use
REFUSES = {
    "--runner draft": "one of auto, generate, pooling",
    "--convert reward": "one of auto, none, embed, classify",
    "--tokenizer-mode mistral": "--tokenizer",
    "--trust-remote-code": "a plugin can add an architecture",
    "--dtype bfloat16": "one of auto, float32",
    "--no-enable-chunked-prefill": "raise that above the longest prompt",
    "--pipeline-parallel-size 2": "start one server per device",
    "--tensor-parallel-size 0": "in 1..64",
    "--data-parallel-size 2": "start one server per device",
    "--enable-expert-parallel": "start one server per device",
    "--distributed-executor-backend ray": "give mp or uni",
    '--limit-mm-per-prompt {"image":1}': "set every count to 0",
    "--lora-modules a": "NAME=FOLDER",
    '--lora-modules {"name":"a","path":"b","rank":4}': "name, path and base_model_name",
    "--max-loras 0": "in 1..256",
    "--max-lora-rank 1024": "in 1..512",
    "--no-enable-auto-tool-choice": "tool_choice none",
    "--attention-backend FLASH_ATTN": "--kernel attention=PROVIDER",
    "--spec-model draft-135m": "--speculative-config",
    "--spec-tokens 17": "in 1..16",
    "--speculative-config ngram": "a JSON object",
    "--kv-transfer-config {}": "every server computes its own prompts",
    "--no-disable-log-stats": "/metrics",
    "--kv-cache-dtype fp8_e5m2": "one of auto",
    "--load-format dummy": "one of auto, safetensors, gguf",
    "--hf-overrides [1]": "a JSON object",
    "--compilation-config 3": "--kernel",
    "--ssl-ciphers x": "reverse proxy",
    "--allow-credentials": "keys are sent in headers",
    "--gpu-memory-utilization 1.5": "0.01..0.95",
    "--max-model-len 0": "at least 1",
    "--max-model-len x": "4096 or 8k",
}

STARRED = """host port api-key lora-modules chat-template enable-auto-tool-choice tool-call-parser model served-model-name runner tokenizer
    trust-remote-code dtype max-model-len quantization seed enforce-eager hf-overrides load-format download-dir gpu-memory-utilization
    kv-cache-dtype enable-prefix-caching max-num-batched-tokens max-num-seqs enable-chunked-prefill tensor-parallel-size
    pipeline-parallel-size data-parallel-size enable-expert-parallel distributed-executor-backend limit-mm-per-prompt enable-lora max-loras
    max-lora-rank attention-backend speculative-config reasoning-parser kv-transfer-config disable-log-stats""".split()


def test_the_table_has_all_forty() -> None:
    assert len(STARRED) == 40
    typed = " ".join((*WORKS, *REFUSES)).replace("--no-", "--")
    assert [flag for flag in STARRED if f"--{flag}" not in typed.split()] == []


@pytest.mark.parametrize("typed", WORKS)
def test_works(typed: str, llmx: Callable[..., Ran]) -> None:
    ran = llmx("config", "show", "--json", "--changed", *typed.split(" ", 1))
    assert ran.code == 0, ran.err
    found = {one["option"]: one["value"] for one in ran.json() if one["source"] == "flag"}
    expected = WORKS[typed]
    assert found == ({} if expected is None else dict([expected]))


@pytest.mark.parametrize("typed", REFUSES)
def test_refused_with_the_reason(typed: str, llmx: Callable[..., Ran]) -> None:
    ran = llmx("config", "show", *typed.split(" ", 1))
    flag = typed.split()[0].removeprefix("--no-").lstrip("-")
    assert ran.code == 2 and ran.out == "" and len(ran.err.splitlines()) == 1
    assert REFUSES[typed] in ran.err and (len(flag) < 3 or flag in ran.err), ran.err


def test_serve_takes_what_config_show_takes(llmx: Callable[..., Ran]) -> None:
    ran = llmx("serve", "-pp", "2")
    assert ran.code == 2 and "start one server per device" in ran.err


def test_a_name_is_in_one_table_only() -> None:
    own = {name for option in OPTIONS for name in (option.name, *option.aliases)}
    foreign = {name for option in FOREIGN for name in (option.name, *option.aliases)}
    assert not own & foreign and not (own | foreign) & set(REFUSED)
    assert all(len(why) > 20 for why in REFUSED.values())
