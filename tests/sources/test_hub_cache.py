"""List, show and remove: what is in the cache, and what removing one model leaves of the others."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from llmx.config import ModelConfig
from llmx.engine.model_fetch import Transfer, TransferLine
from llmx.engine.model_store import list_models, plan_removal, remove_model, show_model
from llmx.errors import ConfigError, ModelError
from llmx.weights.hub import Hub
from llmx.weights.hub_name import HubName
from tests.sources.conftest import SIDE, safetensors, sharded
from tests.sources.fake_hub import COMMIT, FakeHub, Repo

OTHER = "f" * 40


def config(hub: Hub, source: str) -> ModelConfig:
    return ModelConfig(source=source, download_dir=str(hub.cache.folder))


def names(hub: Hub) -> list[str]:
    return [str(model.name) for model in hub.cache.models()]


@pytest.fixture
def filled(hub: Hub, hub_server: FakeHub, gguf_file: Callable[..., bytes]) -> Hub:
    """Two models of one base name, two files of a GGUF repository, a sharded model, and a download that did not end."""
    hub_server.repos["other/plain"] = Repo({**SIDE, "model.safetensors": safetensors(seed=7)})
    hub_server.repos["org/M-GGUF"] = Repo({"M-Q4_0.gguf": gguf_file(1), "M-Q8_0.gguf": gguf_file(2), "README.md": b"# no head\n"})
    hub_server.repos["org/big"] = Repo(sharded())
    hub_server.repos["org/broken"] = Repo({**SIDE, "model.safetensors": safetensors()}, corrupt={"model.safetensors"})
    for name in (HubName("org/plain"), HubName("other/plain"), HubName("org/M-GGUF", quant="Q4_0"), HubName("org/M-GGUF", quant="Q8_0"), HubName("org/big")):
        hub.fetch(name)
    with pytest.raises(ModelError):
        hub.fetch(HubName("org/broken"))
    return hub


def test_list(filled: Hub) -> None:
    assert names(filled) == ["org/big", "org/M-GGUF:Q4_0", "org/M-GGUF:Q8_0", "org/plain", "other/plain"]
    models = {str(model.name): model for model in list_models(config(filled, "any"))}
    assert all(os.path.exists(model.path) and model.commit == COMMIT for model in models.values())
    assert models["org/plain"].path != models["other/plain"].path
    assert models["org/plain"].size == sum(map(len, SIDE.values())) + len(safetensors())
    assert [filled.find(model.name) for model in models.values()] == [model.path for model in models.values()]


def test_two_revisions_are_two_models(filled: Hub, hub_server: FakeHub) -> None:
    hub_server.repos["org/plain"].refs |= {"v1": OTHER}
    filled.fetch(HubName("org/plain", "v1"))
    assert [name for name in names(filled) if "org/plain" in name] == ["org/plain", "org/plain@v1"]
    plan = plan_removal(config(filled, "org/plain@v1"))
    assert plan.size == 0, "the other revision uses the same blobs"
    remove_model(config(filled, "x/y"), plan)
    assert "org/plain@v1" not in names(filled) and filled.find(HubName("org/plain"))


def test_show(filled: Hub) -> None:
    card = show_model(config(filled, "org/plain"))
    assert (card.name, card.architecture, card.quantization, card.context_length, card.license, card.commit, card.problem) == (
        *("org/plain", "LlamaForCausalLM", "bf16", 512, "mit", COMMIT, None),
    )
    assert dict(card.files)["model.safetensors"] == len(safetensors()) and card.size == sum(size for _, size in card.files)
    card = show_model(config(filled, "org/M-GGUF:q8_0"))
    assert (card.architecture, card.quantization, card.context_length, card.license) == ("llama", "q8_0", 256, "apache-2.0")
    assert [file for file, _ in card.files] == ["README.md", "M-Q8_0.gguf"]
    assert [file for file, _ in show_model(config(filled, "org/big")).files if "of-" in file] == [file for file in sharded() if "of-" in file]
    with pytest.raises(ModelError, match="llmx pull org/none"):
        show_model(config(filled, "org/none"))


def test_show_says_what_is_wrong_with_a_file(filled: Hub) -> None:
    path = Path(filled.find(HubName("org/M-GGUF", quant="Q8_0")))
    path.write_bytes(b"<html>")
    card = show_model(config(filled, "org/M-GGUF:Q8_0"))
    assert card.problem is not None and "not a GGUF file" in card.problem and card.quantization == "Q8_0"


def test_show_a_path(filled: Hub) -> None:
    path = filled.find(HubName("org/plain"))
    card = show_model(ModelConfig(source=path))
    assert (card.commit, card.license, card.quantization) == (None, "mit", "bf16") and len(card.files) == 4


def test_remove_a_repository(filled: Hub) -> None:
    plan = plan_removal(config(filled, "org/plain"))
    assert plan.whole and plan.size >= len(safetensors())
    before = sum(path.stat().st_size for path in filled.cache.folder.rglob("*") if path.is_file() and not path.is_symlink())
    remove_model(config(filled, "org/plain"), plan)
    after = sum(path.stat().st_size for path in filled.cache.folder.rglob("*") if path.is_file() and not path.is_symlink())
    assert before - after == plan.size
    assert names(filled) == ["org/big", "org/M-GGUF:Q4_0", "org/M-GGUF:Q8_0", "other/plain"]
    assert not (filled.cache.folder / "models--org--plain").exists()


def test_remove_one_gguf_file(filled: Hub) -> None:
    plan = plan_removal(config(filled, "org/M-GGUF:Q4_0"))
    assert [Path(file).name for file in plan.files] == ["M-Q4_0.gguf"] and plan.size > 8000
    remove_model(config(filled, "org/M-GGUF:Q4_0"), plan)
    assert "org/M-GGUF:Q4_0" not in names(filled) and filled.find(HubName("org/M-GGUF", quant="Q8_0"))
    remove_model(config(filled, "org/M-GGUF:Q8_0"), plan_removal(config(filled, "org/M-GGUF:Q8_0")))
    assert not (filled.cache.folder / "models--org--M-GGUF").exists(), "nothing is left behind a model's last file"


def test_remove_what_a_broken_download_left(filled: Hub) -> None:
    remove_model(config(filled, "org/broken"), plan_removal(config(filled, "org/broken")))
    assert not (filled.cache.folder / "models--org--broken").exists()


@pytest.mark.parametrize(("source", "kind", "message"), [
    ("org/none", ModelError, "org/none is not in .*; `llmx list` shows what is"),
    ("org/plain@v9", ModelError, "revision 'v9' of org/plain is not in"),
    ("org/M-GGUF:Q2_K", ModelError, "has no 'Q2_K'"),
    ("smollm2-135m-instruct", ConfigError, "a model of the hub is needed, .*'smollm2-135m-instruct' comes with a package"),
    (".", ConfigError, "'.' is a path"),
    ("nothing", ConfigError, "'nothing' is none"),
])  # fmt: skip
def test_what_cannot_be_removed(filled: Hub, source: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        plan_removal(config(filled, source))


def test_the_line_about_a_download() -> None:
    """A large file is told in tenths, a small one once, and a download that goes on says from where."""
    stream = io.StringIO()
    with TransferLine(stream) as line:
        for done in range(4_000_000, 20_000_001, 500_000):
            line.show(Transfer("big", done, 20_000_000, 4_000_000, done, 20_000_100))
        line.show(Transfer("small", 0, 100, 0, 20_000_000, 20_000_100))
        line.show(Transfer("small", 100, 100, 0, 20_000_100, 20_000_100))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "fetching big: 4.0 MB of 20.0 MB, 4.0 MB of 20.0 MB in all, goes on from 4.0 MB"
    assert len(lines) == 10 and lines[-1] == "fetching small: 100 B of 100 B, 20.0 MB of 20.0 MB in all"
    with TransferLine(None) as line:
        line.show(Transfer("small", 100, 100, 0, 100, 100))


def test_an_empty_cache(hub: Hub) -> None:
    assert hub.cache.models() == []
