"""A plugin brings options of its own: llmx_add_options."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmx import LLM
from llmx.errors import ConfigError, PluginError
from llmx.resolve import resolve
from tests.cli.conftest import Ran, llmx  # noqa: F401 - a fixture
from tests.hooks.vendor import install, install_acme

ZOO = """
from llmx.hooks import ConfigIssue, ConfigPatch, EnvVar, OptionDef, hookimpl

@hookimpl
def llmx_add_options():
    return [
        OptionDef("speed", "int", "how fast the animals are", default=3, minimum=1, maximum=9, aliases=("animal_speed",)),
        OptionDef("kind", "str", "which animal", default="ape", choices=("ape", "bear")),
        OptionDef("food", "list", "what it eats"),
        OptionDef("key", "str", "of the cage", secret=True),
    ]

@hookimpl
def llmx_env_vars():
    return [EnvVar("LLMX_ZOO_FENCE", "1", "whether there is a fence")]

@hookimpl
def llmx_config_defaults(config, caps):
    return [ConfigPatch("scheduler.max_num_seqs", config.plugins["zoo"]["speed"], "the animals run")]

@hookimpl
def llmx_config_check(config, caps):
    return [ConfigIssue("warn", "plugins.zoo.kind", "bears bite")] if config.plugins["zoo"]["kind"] == "bear" else []
"""


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    install(tmp_path, monkeypatch, "llmx-zoo", {"zoo_llmx.py": ZOO}, "[llmx.plugins]\nzoo = zoo_llmx\n")
    return tmp_path


def test_an_option_reaches_the_engine_and_its_default_does(zoo: Path) -> None:
    with LLM(platform="null", num_blocks=600) as llm:
        assert llm.info.max_num_seqs == 3 and llm.info.warnings == []
    with LLM(platform="null", num_blocks=600, zoo_speed=5, zoo_kind="bear") as llm:
        assert llm.info.max_num_seqs == 5 and llm.info.warnings == ["bears bite"]


def test_every_source_sets_it_in_the_order_of_core(zoo: Path) -> None:
    file = zoo / "llmx.yaml"
    file.write_text("zoo_speed: 4\nzoo_kind: bear\n")
    environ = {"LLMX_ZOO_SPEED": "2", "LLMX_ZOO_KIND": "ape", "LLMX_ZOO_FOOD": "figs,nuts"}
    config, changes = resolve({"animal_speed": "7"}, environ=environ, config_file=str(file))
    assert config.plugins == {"zoo": {"speed": 7, "kind": "bear", "food": ["figs", "nuts"]}} and config.platform.options == ()
    assert {one.path: one.source for one in changes} == {"plugins.zoo.speed": "flag", "plugins.zoo.kind": "file", "plugins.zoo.food": "env"}


def test_wrong_values_and_unknown_names_are_refused(zoo: Path) -> None:
    for options, message in (
        ({"zoo_speed": 0}, "--zoo-speed is 0: it must be in 1..9"),
        ({"zoo_speed": "fast"}, "--zoo-speed is 'fast': it must be a whole number"),
        ({"zoo_kind": "cat"}, "--zoo-kind is 'cat': it must be one of ape, bear"),
        ({"zoo_sped": 3}, "unknown option 'zoo_sped': did you mean 'zoo_speed'"),
        ({"zoo_speed": 3, "deny_plugin": ["zoo"]}, "unknown option 'zoo_speed'"),
        ({"zoo_speed": 3, "animal_speed": 3}, "is given twice"),
    ):
        with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
            resolve(options, environ={})
    resolve({}, environ={"LLMX_ZOO_FENCE": "0"})
    with pytest.raises(ConfigError, match="LLMX_ZOO_SPED is not known to plugin 'zoo'.*did you mean LLMX_ZOO_SPEED"):
        resolve({}, environ={"LLMX_ZOO_SPED": "3"})


def test_a_platform_brings_options_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = '''
    @hookimpl
    def llmx_add_options(self):
        from llmx.hooks import OptionDef
        return [OptionDef("lanes", "int", "lanes of the cube", default=3)]
'''
    install_acme(tmp_path, monkeypatch, extra=extra)
    config, _ = resolve({"acme_lanes": 2, "platform": "acme"}, environ={})
    assert config.plugins == {"acme": {"lanes": 2}}
    with pytest.raises(ConfigError, match="unknown option 'acme_lanes'"):
        resolve({"acme_lanes": 2, "platform": "null"}, environ={})


def test_a_name_that_is_taken_is_refused_with_both_owners(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = """
from llmx.hooks import OptionDef, hookimpl

@hookimpl
def llmx_add_options():
    return [OptionDef("size", "int", "of the yard", aliases=("{alias}",){more})]
"""
    for number, (alias, more, message) in enumerate((
        ("animal_speed", "", "animal_speed.*(plugin 'zoo'|one of)"),
        ("max_model_len", "", "max_model_len.*one of core"),
        ("yard_width", ", default='wide'", "the default of 'yard_size' is 'wide'"),
    )):  # fmt: skip
        monkeypatch.delitem(sys.modules, "yard_llmx", raising=False)
        install(zoo / str(number), monkeypatch, "llmx-yard", {"yard_llmx.py": plugin.format(alias=alias, more=more)}, "[llmx.plugins]\nyard = yard_llmx\n")
        with pytest.raises(PluginError, match=message):
            resolve({"yard_size": 3}, environ={})
        monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(zoo / str(number))])


def test_the_command_line_takes_and_shows_it(zoo: Path, llmx: Callable[..., Ran]) -> None:  # noqa: F811
    shown = {one["option"]: one for one in llmx("config", "show", "--json", "--zoo-speed", "8", "--zoo-key", "hush", "--zoo-food=a", "--zoo-food=b").json()}
    assert (shown["zoo_speed"]["value"], shown["zoo_speed"]["source"], shown["zoo_speed"]["variable"]) == (8, "flag", "LLMX_ZOO_SPEED")
    assert (shown["zoo_kind"]["value"], shown["zoo_kind"]["source"]) == ("ape", "default")
    assert shown["zoo_food"]["value"] == ["a", "b"] and shown["zoo_key"]["value"] == "(hidden)"
    page = llmx("serve", "--help").out
    assert "--zoo-speed" in page and "--animal-speed" in page and "how fast the animals are" in page
    assert "--zoo-speed" not in llmx("serve", "--help", "--deny-plugin", "zoo").out
    assert "did you mean --zoo-speed" in llmx("serve", "--zoo-sped", "3").err
    assert "--zoo-speed is 12: it must be in 1..9" in llmx("config", "show", "--zoo-speed", "12").err


def test_plugins_are_not_imported_for_core_options_alone(zoo: Path, llmx: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    def fail(*args: Any) -> None:
        raise AssertionError("plugins were looked for")

    monkeypatch.setattr("llmx.plugin_options.installed_options", fail)
    resolve({"port": 3}, environ={"LLMX_SEED": "1"})
    assert "--max-model-len is 'x'" in llmx("explain", "--max-model-len", "x").err
    assert "zoo_llmx" not in sys.modules
