"""Configuration: precedence, types, ranges; every value that is not a default has a source."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmx.errors import ConfigError
from llmx.hooks.types import ConfigPatch
from llmx.options import OPTIONS
from llmx.resolve import apply_patches, resolve


def test_command_line_beats_file_beats_environment(tmp_path: Path) -> None:
    file = tmp_path / "llmx.yaml"
    file.write_text("port: 2\nthreads: 2\n")
    config, changes = resolve({"port": 3}, environ={"LLMX_PORT": "1", "LLMX_THREADS": "1", "LLMX_SEED": "1"}, config_file=str(file))
    assert (config.server.port, config.platform.threads, config.model.seed) == (3, 2, 1)
    assert {change.path: change.source for change in changes} == {"server.port": "flag", "platform.threads": "file", "model.seed": "env"}


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("kv_cache_memory_bytes", "4G", 4 * 10**9),
        ("kv_cache_memory_bytes", "512Mi", 2**29),
        ("max_model_len", "8k", 8000),
        ("max_model_len", 128, 128),
        ("kv_cache_memory_bytes", "1.5gb", 1_500_000_000),
    ],
)
def test_sizes(name: str, raw: object, value: int) -> None:
    config, _ = resolve({name: raw}, environ={})
    assert value in (config.cache.kv_bytes, config.model.max_model_len)


@pytest.mark.parametrize(("options", "message"), [
    ({"port": "http"}, "--port is 'http': it must be a whole number"),
    ({"port": 70000}, "--port is 70000: it must be in 0..65535"),
    ({"threads": 0}, "--threads is 0: it must be in 1..1024"),
    ({"dtype": "int3"}, "one of auto, float32"),
    ({"kv_cache_memory_bytes": "4X"}, "a size such as 4G"),
    ({"kernel": ["linear"]}, "KIND=PROVIDER"),
    ({"enable_prefix_caching": "maybe"}, "true or false"),
    ({"max_num_seqs": True}, "whole number"),
    ({"modle": "x"}, "did you mean 'model'"),
])  # fmt: skip
def test_bad_values_name_option_value_and_limit(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        resolve(options, environ={})


def test_a_bad_variable_is_named_as_the_user_wrote_it() -> None:
    with pytest.raises(ConfigError, match="LLMX_PORT is 'abc'"):
        resolve({}, environ={"LLMX_PORT": "abc"})


def test_broken_files_are_named(tmp_path: Path) -> None:
    for text, message in (("port: [", "cannot be parsed"), ("- 1\n", "must hold"), ("prot: 1\n", "did you mean 'port'")):
        file = tmp_path / "bad.yaml"
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            resolve({}, environ={}, config_file=str(file))
    with pytest.raises(ConfigError, match="No such file"):
        resolve({}, environ={}, config_file=str(tmp_path / "absent.yaml"))
    toml = tmp_path / "good.toml"
    toml.write_text('served_model_name = ["a", "b"]\n')
    assert resolve({}, environ={}, config_file=str(toml))[0].model.served_names == ("a", "b")


def test_api_keys_are_not_shown() -> None:
    _, changes = resolve({"api_key": ["secret"]}, environ={})
    assert "secret" not in str(changes)


def test_platform_patches_respect_the_user() -> None:
    config, changes = resolve({"max_num_seqs": 5}, environ={})
    patches = [ConfigPatch("scheduler.max_num_seqs", 3, "small"), ConfigPatch("cache.kv_dtype", "float32", "no bf16")]
    config, made = apply_patches(config, patches, [change.path for change in changes])
    assert (config.scheduler.max_num_seqs, config.cache.kv_dtype) == (5, "float32")
    assert [(change.path, change.why) for change in made] == [("cache.kv_dtype", "no bf16")]
    with pytest.raises(ConfigError, match=r"scheduler\.lanes"):
        apply_patches(config, [ConfigPatch("scheduler.lanes", 1, "")], [])


def test_every_option_reaches_a_field() -> None:
    samples = {"str": "x", "int": 16, "float": 0.75, "bool": False, "bytes": 12345, "tokens": 123, "list": ["a"], "json": {"a": 1}}
    strange = {"kernel": ["linear=a"], "lora_modules": ["a=b"], "lora_hub": ["a/*"]}
    for option in OPTIONS:
        value = option.choices[-1] if option.choices else strange.get(option.name, samples[option.kind])
        part, name = option.path.split(".")
        if option.kind == "bool":
            value = not getattr(getattr(resolve({}, environ={})[0], part), name)
        config, (change,) = resolve({option.name: value}, environ={})
        assert change.path == option.path
        assert getattr(getattr(config, part), name) != getattr(getattr(resolve({}, environ={})[0], part), name), option.name
