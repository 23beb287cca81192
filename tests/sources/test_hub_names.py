"""What a user may call a model of the hub, and which files that means."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llmx.errors import ConfigError, ModelError
from llmx.weights.hub_name import HubName, gguf_models, parse_hub_name, quant_label, safe_file_name, select_files
from llmx.weights.sources import hub_name
from tests.sources.conftest import SIDE


@pytest.mark.parametrize(("source", "name"), [
    ("org/name", HubName("org/name")),
    ("Qwen/Qwen2.5-0.5B", HubName("Qwen/Qwen2.5-0.5B")),
    ("org/name@v1.0", HubName("org/name", "v1.0")),
    ("org/name@refs/pr/3", HubName("org/name", "refs/pr/3")),
    ("org/name-GGUF:Q4_K_M", HubName("org/name-GGUF", "main", "Q4_K_M")),
    ("org/name@v1:Q4_K_M", HubName("org/name", "v1", "Q4_K_M")),
    ("org/name:some-file.gguf", HubName("org/name", "main", "some-file.gguf")),
    *((path, None) for path in ("name", "./org/name", "../org/name", "/org/name", "~/org/name", "org/name/more", "org/name.gguf")),
    *((wrong, None) for wrong in ("org/na..me", "org/a--b", "org /name", "org/", "")),
])  # fmt: skip
def test_names(source: str, name: HubName | None) -> None:
    assert parse_hub_name(source) == name


def test_the_revision_option() -> None:
    assert parse_hub_name("org/name", "v1") == parse_hub_name("org/name@v1", "v1") == HubName("org/name", "v1")
    with pytest.raises(ConfigError, match="the revision is given twice, in 'org/name@v1' and with --revision 'v2': leave one out"):
        parse_hub_name("org/name@v1", "v2")
    for wrong in ("../../etc", "a..b", "/abs", "-x", "a b"):
        with pytest.raises(ConfigError, match="it must be a branch, a tag or a commit"):
            parse_hub_name("org/name", wrong)


def test_what_exists_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert hub_name("org/name") is None and hub_name("smollm2-135m-instruct") is None
    assert hub_name("org/other") == HubName("org/other")


def test_other_sources_do_not_load_the_library() -> None:
    code = (
        "import sys; from llmx.weights.sources import locate; from llmx.engine import async_engine, llm; from llmx_cli import main;"
        "locate('smollm2-135m-instruct'); print('huggingface_hub' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize(("file", "label"), [
    ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"), ("m-Q4_K_M.gguf", "Q4_K_M"), ("m-IQ2_XXS.gguf", "IQ2_XXS"), ("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
    ("qwen2.5-0.5b-instruct-fp16.gguf", "FP16"), ("m-q8_0.gguf", "Q8_0"), ("BF16/m-BF16-00001-of-00002.gguf", "BF16"), ("m-F32.gguf", "F32"),
    ("m-MXFP4_MOE.gguf", "MXFP4_MOE"), ("q4_0-tuned-Q8_0.gguf", "Q8_0"), ("plain.gguf", "plain"),
])  # fmt: skip
def test_labels(file: str, label: str) -> None:
    assert quant_label(file) == label


def test_models_among_files() -> None:
    files = ["b-00002-of-00002.gguf", "a.gguf", "b-00001-of-00002.gguf", "mmproj-a.gguf", "a.imatrix.gguf", "config.json"]
    assert gguf_models(files) == {"a.gguf": ["a.gguf"], "b.gguf": ["b-00001-of-00002.gguf", "b-00002-of-00002.gguf"]}


def test_which_files() -> None:
    both = [*SIDE, "model.safetensors", "m-Q4_0.gguf"]
    assert select_files(HubName("o/m"), both).weights == ("model.safetensors",)
    assert select_files(HubName("o/m", quant="q4_0"), both).weights == ("m-Q4_0.gguf",)
    assert select_files(HubName("o/m"), [*SIDE, "weights.safetensors", "consolidated.00.pth"]).weights == ("weights.safetensors",)
    assert select_files(HubName("o/m"), [*SIDE, "model.safetensors.index.json"]).weights == ()
    assert select_files(HubName("o/m"), ["config.json", "m-Q4_0.gguf"]).kind == "gguf"
    unsloth = ["m-UD-Q4_K_XL.gguf", "m-Q8_0.gguf"]
    assert select_files(HubName("o/m", quant="Q4_K_XL"), unsloth).weights == ("m-UD-Q4_K_XL.gguf",)
    twice = ["a-Q8_0.gguf", "b-Q8_0.gguf"]
    assert select_files(HubName("o/m", quant="b-q8_0.gguf"), twice).weights == select_files(HubName("o/m", quant="b-Q8_0"), twice).weights == ("b-Q8_0.gguf",)


@pytest.mark.parametrize(("files", "quant", "message"), [
    (["a-Q8_0.gguf", "b-Q8_0.gguf"], "Q8_0", "o/m has 2 GGUF models that are Q8_0: give the file's name after the colon, one of a-Q8_0.gguf, b-Q8_0.gguf"),
    (["a-Q8_0.gguf", "a-Q4_0.gguf"], "Q9", "o/m has no 'Q9'.*; there are Q4_0, Q8_0"),
    (["config.json", "model.safetensors"], "Q8_0", "o/m has no GGUF file, so there is no 'Q8_0' to pick: name it without :Q8_0"),
    (["config.json", "pytorch_model-00001-of-00002.bin"], None, "only as pickled files"),
    (["model.pt"], None, "only as pickled files .model.pt."),
    (["adapter_config.json", "adapter_model.safetensors"], None, "o/m is an adapter"),
    (["README.md", "data.parquet"], None, "holds no model that llmx can read"),
    (["config.json", "a.safetensors", "b.safetensors"], None, "holds no model that llmx can read"),
])  # fmt: skip
def test_what_is_refused(files: list[str], quant: str | None, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        select_files(HubName("o/m", quant=quant), files)


@pytest.mark.parametrize(("name", "safe"), [("a/b.gguf", True), ("a", True), *((wrong, False) for wrong in ("../a", "/a", "a//b", "a/./b", "", "a\\b"))])
def test_names_from_a_server(name: str, safe: bool) -> None:
    assert safe_file_name(name) is safe
