"""Adapters on two ranks: the tokens of one rank, mixed and alone, for every module that is cut and for those that are whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch").set_num_threads(1)
pytest.importorskip("transformers")

from llmx import LLM, LoRARequest, RequestError, SamplingParams  # noqa: E402
from llmx.executor import Control, Reply  # noqa: E402
from llmx.executor.distributed import mp  # noqa: E402
from tests.distributed.test_mp import PROMPTS  # noqa: E402
from tests.lora.adapters import ALL, random_modules, tiny_checkpoint, write_adapter  # noqa: E402

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
TABLE = "base_model.model.model.embed_tokens"
NAMES = ["", "every", "whole", "attention", "", "every"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model, and adapters."""
    made = tmp_path_factory.mktemp("lora")
    weights = tiny_checkpoint(made / "model")
    rng = np.random.default_rng(4)
    vocab, width = weights["model.embed_tokens.weight"].shape
    table = {f"{TABLE}.lora_embedding_A": (4, vocab), f"{TABLE}.lora_embedding_B": (width, 4)}
    small = {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in table.items()}
    write_adapter(made / "every", random_modules(weights, 1, ends=(*ALL, "lm_head"), size=0.1), tensors=small)
    saved = ("layers.0.self_attn.v_proj", "layers.1.self_attn.o_proj", "layers.0.mlp.up_proj", "layers.1.mlp.down_proj", "lm_head", "embed_tokens")
    whole = {f"base_model.model.{name}": rng.normal(0, 0.05, w.shape).astype(np.float32) for name, w in weights.items() if name[:-7].endswith(saved)}
    assert len(whole) == len(saved)
    write_adapter(made / "whole", random_modules(weights, 2, ends=("q_proj",), size=0.1), tensors=whole, modules_to_save=list(saved))
    write_adapter(made / "attention", random_modules(weights, 3, ends=ALL[:4], size=0.1))
    dora = {f"base_model.model.{name}.lora_magnitude_vector": np.ones(len(b), np.float32) for name, (_, b) in random_modules(weights, 3).items()}
    write_adapter(made / "dora", random_modules(weights, 3), tensors=dora, use_dora=True)
    return made


@contextmanager
def llm_of(folder: Path, platform: str, size: int, **options: Any) -> Iterator[LLM]:
    given = {"platform": platform, "tensor_parallel_size": size, "dtype": "float32", "threads": 2, "max_num_seqs": 6, "max_model_len": 128}
    with LLM(str(folder / "model"), **{**given, "max_num_batched_tokens": 32, "num_blocks": 60, "enable_lora": True, "max_loras": 3, **options}) as llm:
        yield llm


def adapter(folder: Path, name: str) -> LoRARequest | None:
    return LoRARequest(name, 1, str(folder / name)) if name else None


def mixed(llm: LLM, folder: Path) -> list[list[int]]:
    outputs = llm.generate([*PROMPTS], GREEDY, lora_request=[adapter(folder, name) for name in NAMES])
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("platform", ["cpu", "torch"])
def test_two_ranks_give_the_tokens_of_one(folder: Path, platform: str) -> None:
    with llm_of(folder, platform, 1) as llm:
        wanted = mixed(llm, folder)
        plain = [output.outputs[0].token_ids for output in llm.generate([*PROMPTS], GREEDY)]
    assert [one == other for one, other in zip(wanted, plain, strict=True)] == [not name for name in NAMES]
    with llm_of(folder, platform, 2) as llm:
        assert mixed(llm, folder) == wanted
        alone = [llm.generate(prompt, GREEDY, lora_request=adapter(folder, name))[0] for prompt, name in zip(PROMPTS, NAMES, strict=True)]
        assert [output.outputs[0].token_ids for output in alone] == wanted
        assert llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].token_ids == wanted[0]
        if platform == "cpu":
            with pytest.raises(RequestError, match="DoRA needs the length of whole rows.*--tensor-parallel-size 1"):
                llm.generate(PROMPTS[0], GREEDY, lora_request=adapter(folder, "dora"))


def test_a_copy_that_fails_on_one_rank_leaves_the_slot_empty_on_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with llm_of(folder, "cpu", 2) as llm:
        wanted = mixed(llm, folder)
        engine: Any = llm.llm_engine.engine
        local = engine.executor._local
        right = local.control
        monkeypatch.setattr(local, "control", lambda command: Reply(False, error="full") if command.kind == "lora_add" else right(command))
        reply = engine.executor.control(Control("lora_add", {"slot": 2, "parts": engine.adapters.find("every").parts}))
        assert not reply.ok and reply.error == "rank 0: full"

        def out_of_memory(*given: object) -> Any:
            raise MemoryError

        monkeypatch.setattr(local, "control", lambda command: out_of_memory() if command.kind == "lora_add" else right(command))
        reply = engine.executor.control(Control("lora_add", {"slot": 2, "parts": engine.adapters.find("every").parts}))
        assert not reply.ok and reply.error == "rank 0: host memory ran out"
        monkeypatch.setattr(local, "control", right)
        with monkeypatch.context() as patch:
            patch.setattr(mp, "packed", out_of_memory)
            with pytest.raises(MemoryError):  # nobody was told anything
                engine.executor.control(Control("lora_add", {"slot": 2, "parts": engine.adapters.find("every").parts}))
        reply = engine.executor.control(Control("lora_add", {"slot": 5000, "parts": engine.adapters.find("every").parts}))
        assert not reply.ok and "rank 0: " in reply.error and "rank 1: native executor: LoRA slots are" in reply.error
        for slot in range(3):
            engine.executor.control(Control("lora_remove", {"slot": slot}))
        engine.adapters.slots._resident.clear()
        engine.adapters.slots._free = [2, 1, 0]
        assert mixed(llm, folder) == wanted
