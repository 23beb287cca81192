"""Several models in one configuration: which options are whose, their names, and how memory is split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmx.config import EngineConfig
from llmx.errors import ConfigError
from llmx.resolve import resolve, resolve_models


def configs(options: dict[str, Any] | None = None, *sources: str, **more: Any) -> list[EngineConfig]:
    return [config for config, _ in resolve_models(options, sources, environ={}, **more)]


def listing(folder: Path, text: str) -> str:
    (folder / "models.yaml").write_text(text)
    return str(folder / "models.yaml")


def test_one_model_is_as_before() -> None:
    assert configs({"model": "a", "memory_fraction": 0.4}) == [resolve({"model": "a", "memory_fraction": 0.4}, environ={})[0]]


def test_options_are_for_all_and_an_entry_goes_before_them(tmp_path: Path) -> None:
    file = listing(tmp_path, "max_model_len: 100\nport: 1\nmodels:\n  - a\n  - {model: b, max-model-len: 200, served_model_name: [x, y]}\n")
    first, second = configs({"max_num_seqs": 3, "max_model_len": 150}, config_file=file)
    assert (first.model.source, first.model.max_model_len, first.server.port, first.scheduler.max_num_seqs) == ("a", 150, 1, 3)
    assert (second.model.source, second.model.max_model_len, second.model.served_names) == ("b", 200, ("x", "y"))


def test_names_of_the_command_line_go_by_order() -> None:
    assert [one.model.served_names for one in configs({"served_model_name": ["x", "y"]}, "a", "a")] == [("x",), ("y",)]
    with pytest.raises(ConfigError, match="3 names are given for 2 models"):
        configs({"served_model_name": ["x", "y", "z"]}, "a", "b")


def test_memory_is_shared_by_those_that_set_nothing(tmp_path: Path) -> None:
    assert [one.cache.memory_fraction for one in configs({"memory_fraction": 0.6}, "a", "b", "c")] == pytest.approx([0.2] * 3)
    assert [one.cache.kv_bytes for one in configs({"kv_cache_memory_bytes": "4Gi"}, "a", "b")] == [2 << 30] * 2
    assert [one.cache.num_blocks for one in configs({"num_blocks": 9}, "a", "b")] == [9, 9]
    file = listing(tmp_path, "models: [a, b, {model: c, gpu_memory_utilization: 0.3}, {model: d, kv_cache_memory_bytes: 1Mi}]")
    assert [(one.cache.memory_fraction, one.cache.kv_bytes) for one in configs(config_file=file)] == [(0.25, None), (0.25, None), (0.3, None), (0.5, 1 << 20)]
    shares = [change for _, changes in resolve_models({}, ["a", "b"], environ={}) for change in changes if change.path == "cache.memory_fraction"]
    assert [(change.value, change.source) for change in shares] == [("0.25", "its share among 2 models")] * 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models: []", "must be a list of models"),
        ("models: [{dtype: float32}]", r"models\[0\] is .* `model` among them"),
        ("models: [a, {model: b, port: 1}]", r"models\[1\] sets port, which is of the whole server"),
        ("models: [a, {model: b, dtpye: x}]", "did you mean 'dtype'"),
        ("models: [a, a]", "two models have the name 'a'.*--served-model-name"),
        ("models: [{model: a, served_model_name: [n]}, {model: b, served_model_name: [n]}]", "two models have the name 'n'"),
        ("models: [{model: a, memory_fraction: 0.6}, {model: b, memory_fraction: 0.6}]", "1.20 in all"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        configs(config_file=listing(tmp_path, text))


def test_a_list_of_models_where_one_is_wanted(tmp_path: Path) -> None:
    file = listing(tmp_path, "models: [a, b]")
    with pytest.raises(ConfigError, match="leave models out"):
        resolve({}, environ={}, config_file=file)
    with pytest.raises(ConfigError, match="named on the command line and in the configuration file"):
        configs({}, "a", "b", config_file=file)
