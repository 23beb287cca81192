"""How much quantised arithmetic costs: KL of next-token distributions against fp32 arithmetic on the same dequantised weights.

    python -m benchmarks.quality llmx DIR                      # with llmx and the CPU platform: reference, auto, int8, int8 KV
    python -m benchmarks.quality own MODELS DIR                # formats made at load from bfloat16: reference, int8, int4; MODELS of make_models.py
    OTHER_PYTHON benchmarks/quality.py llama MODEL.gguf DIR [NAME]   # in an environment that has llama-cpp-python; NAME: llama, llama_q8_0, llama_q4_0
    python -m benchmarks.quality compare DIR                   # the table

The 50 prompts of tests/quality/prompts.json are read in one piece each (teacher-forced); every position counts. The 95% intervals
come from 2,000 resamplings of prompts. DIR takes about 1.2 GB per engine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

PROMPTS = Path(__file__).parents[1] / "tests/quality/prompts.json"
MODES = {"fp32": {"dtype": "float32", "kv": "float32"}, "auto": {"act": "auto"}, "int8": {"act": "int8"}, "kv_int8": {"act": "auto", "kv": "int8"}}
MADE_AT_LOAD = {"fp32": {"dtype": "float32"}, "own_int8": {"quantization": "int8"}, "own_int4": {"quantization": "int4"}}
PEERS = {"auto": "llama", "int8": "llama", "kv_int8": "llama", "own_int8": "llama_q8_0", "own_int4": "llama_q4_0"}  # each beside the other engine's own
RESAMPLINGS = 2000


def llmx(folder: Path) -> None:
    """Logits of all modes of the native executor, and the token ids, which the other engine reads."""
    for name, options in MODES.items():
        _save_native(folder, name, {"dtype": options.get("dtype", "auto")}, options)


def own(models: Path, folder: Path) -> None:
    """The same for the formats that are made while a bfloat16 model loads, and the files for the other engine, made from the same values."""
    from benchmarks.make_models import make_model

    source = str(make_model("bf16", models))
    for name, options in MADE_AT_LOAD.items():
        _save_native(folder, name, {"source": source, **options}, {"dtype": "float32", "kv": "float32"} if name == "fp32" else {})
    print("for llama:", make_model("q8_0", models), make_model("q4_0", models))


def _save_native(folder: Path, name: str, model: dict[str, str], options: dict[str, str]) -> None:
    from tests.cpu.native_model import config_for, native_executor

    from llmx.config import ModelConfig
    from llmx.models.load import load_model

    ids = _prompt_ids(folder)
    executor = native_executor(load_model(ModelConfig(**model)).bundle, config_for(**options))  # type: ignore[arg-type]
    _save(folder / f"{name}.npy", (native_logits(executor, tokens, seq) for seq, tokens in enumerate(ids)), sum(map(len, ids)))
    executor.close()


def _prompt_ids(folder: Path) -> list[list[int]]:
    """Token ids of the prompts, kept in `folder` for the other engine."""
    from llmx.config import ModelConfig
    from llmx.tokens.source import TokenizerSource
    from llmx.tokens.tokenizer import Tokenizer
    from llmx.weights.sources import locate, open_checkpoint

    if not (folder / "ids.json").exists():
        path = locate(ModelConfig().source)
        tokenizer = Tokenizer.load(TokenizerSource(path, open_checkpoint(path).gguf_metadata))
        ids = [tokenizer.encode(text) for text in json.loads(PROMPTS.read_text())]
        (folder / "ids.json").write_text(json.dumps(ids))
        print(f"{len(ids)} prompts of {min(map(len, ids))} to {max(map(len, ids))} tokens")
    kept: list[list[int]] = json.loads((folder / "ids.json").read_text())
    return kept


def native_logits(executor: Any, tokens: list[int], seq: int) -> np.ndarray:
    """One prompt in one step, each token but the first as a draft, so that every row is a sample row whose logits are handed out."""
    from llmx.executor import Joined, Late, SamplingRow, Step

    n, seen = len(tokens), []
    groups = len(executor.kv_needs())
    blocks = np.array([(0, i, 1 + i) for i in range(-(-n // 16) + 1)], np.int32)
    array, one = np.array(tokens, np.int32), np.array([0], np.int32)
    step = Step(
        2 * seq, joined=[Joined(0, array, n, SamplingRow())], slot=one, q=np.array([n], np.int32), start=one, tokens=array,
        head=np.arange(n, dtype=np.int32), samples=np.array([(0, 0, n)], np.int32), new_blocks=(blocks,) * groups, late=True,
    )  # fmt: skip
    ticket = executor.submit(step)
    executor.release(ticket, Late(host_logits=lambda rows: seen.append(rows.copy()) or rows))
    executor.collect(ticket)
    executor.collect(executor.submit(Step(2 * seq + 1, left=one, new_blocks=(np.empty((0, 3), np.int32),) * groups)))
    return seen[0]


def llama(model: str, folder: Path, name: str = "llama") -> None:
    """Logits of llama-cpp-python on the same file and ids, with its defaults."""
    from llama_cpp import Llama  # type: ignore[import-not-found]

    engine = Llama(model, n_ctx=512, n_batch=512, logits_all=True, verbose=False)
    ids = json.loads((folder / "ids.json").read_text())

    def rows() -> Iterator[np.ndarray]:
        for tokens in ids:
            engine.reset()
            engine.eval(tokens)
            yield engine.scores[: len(tokens)]

    _save(folder / f"{name}.npy", rows(), sum(map(len, ids)))


def _save(path: Path, parts: Iterator[np.ndarray], total: int) -> None:
    at, out = 0, None
    for part in parts:
        if out is None:
            out = np.lib.format.open_memmap(path, "w+", np.float32, (total, part.shape[1]))
        out[at : at + len(part)] = part
        at += len(part)
    print(f"{path.name}: {at} rows")


def compare(folder: Path) -> dict[str, dict[str, float]]:
    """Print and give the table: per engine mean KL and the share of rows with the reference's arg-max."""
    lengths = [len(tokens) for tokens in json.loads((folder / "ids.json").read_text())]
    reference = np.load(folder / "fp32.npy", mmap_mode="r")
    names = [name for name in (*PEERS, *dict.fromkeys(PEERS.values())) if (folder / f"{name}.npy").exists()]
    sums = {name: _per_prompt(reference, np.load(folder / f"{name}.npy", mmap_mode="r"), lengths) for name in names}
    draws = np.random.default_rng(0).integers(0, len(lengths), (RESAMPLINGS, len(lengths)))
    rows = np.array(lengths)[draws].sum(axis=1)
    table: dict[str, dict[str, float]] = {}
    for name, (kl, same) in sums.items():
        low, high = np.quantile(kl[draws].sum(axis=1) / rows, (0.025, 0.975))
        table[name] = {"kl": kl.sum() / sum(lengths), "low": low, "high": high, "same": same.sum() / sum(lengths)}
        if (peer := PEERS.get(name)) in sums:
            theirs = sums[peer][0]
            table[name]["ratio"] = kl.sum() / theirs.sum()
            table[name]["ratio_high"] = float(np.quantile(kl[draws].sum(axis=1) / theirs[draws].sum(axis=1), 0.975))
    for name, row in table.items():
        ratio = f"  {row['ratio']:.3f} of {PEERS[name]}'s (upper end {row['ratio_high']:.3f})" if "ratio" in row else ""
        print(f"{name:10} mean KL {row['kl']:.6f} [{row['low']:.6f}, {row['high']:.6f}]  arg-max agreement {100 * row['same']:.2f}%{ratio}")
    return table


def _per_prompt(reference: np.ndarray, other: np.ndarray, lengths: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Sums over each prompt's rows: KL(reference, other) in nats, and rows whose most likely tokens are the same."""
    kl, same, at = np.zeros(len(lengths)), np.zeros(len(lengths)), 0
    for i, n in enumerate(lengths):
        p, q = log_softmax(reference[at : at + n]), log_softmax(other[at : at + n])
        kl[i] = (np.exp(p) * (p - q)).sum()
        same[i] = (p.argmax(axis=1) == q.argmax(axis=1)).sum()
        at += n
    return kl, same


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last of two axes, in float64."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    values: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return values


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["llmx", folder]:
            llmx(Path(folder))
        case ["own", models, folder]:
            own(Path(models), Path(folder))
        case ["llama", model, folder, *name]:
            llama(model, Path(folder), *name)
        case ["compare", folder]:
            compare(Path(folder))
        case _:
            sys.exit(__doc__)
