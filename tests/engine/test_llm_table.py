"""Each argument of LLM, its methods, SamplingParams and BeamSearchParams has an effect or is refused by name; docs/from-vllm.md says which.

After a deliberate change: python -m pytest tests/engine/test_llm_table.py --write-docs
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from llmx import LLM, BeamSearchParams, RequestError, RequestOutput, SamplingParams
from llmx.engine.engine_args import EngineArgs
from llmx.engine.refused_methods import REFUSED_METHODS
from llmx.errors import ConfigError
from llmx.foreign_options import FOREIGN, REFUSED
from llmx.options import OPTIONS
from tests.engine.from_vllm_page import OPTIONS_ELSEWHERE, python_part, with_part
from tests.engine.llm_table import ARGUMENTS, ASKS, BASE, BEAM_FIELDS, LONG, Field, Refused, sampling_fields
from tests.lora.adapters import smollm2_adapter
from tests.pooling.arguments import POOLING_ARGUMENTS

PAGE = Path(__file__).resolve().parents[2] / "docs/from-vllm.md"
ELSEWHERE = ("structured_outputs", "logits_processors")  # tests/structured, tests/hooks/test_vendor_logits.py
FIELDS = [field.name for field in fields(SamplingParams)]
CALLS = [(method, argument) for method, arguments in ARGUMENTS.items() for argument in arguments]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    modules = [f"there={smollm2_adapter(tmp_path_factory.mktemp('adapter'))}"]
    with LLM(platform="null", num_blocks=1000, max_model_len=2048, reasoning_parser="deepseek_r1", lora_modules=modules) as one:
        yield one


@pytest.fixture(scope="module")
def ordered() -> Iterator[LLM]:
    with LLM(platform="null", num_blocks=1000, max_model_len=2048, scheduling_policy="priority", max_num_seqs=1) as one:
        yield one


@pytest.fixture(scope="module")
def plain(llm: LLM) -> RequestOutput:
    llm.generate([LONG], SamplingParams(**BASE))  # its blocks are in the prefix cache from here on
    return llm.generate([LONG], SamplingParams(**BASE))[0]


def _refused(name: str, call: Any) -> None:
    with pytest.raises(RequestError, match=rf"^{name} (is|holds) .+(:|,) .+") as caught:
        call()
    assert caught.value.field == name


# -- SamplingParams ------------------------------------------------------------------------------------------------------


def test_every_field_of_sampling_params_is_in_the_table(plain: RequestOutput) -> None:
    assert sorted({*sampling_fields(plain), *ELSEWHERE}) == sorted(FIELDS)


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in ELSEWHERE])
def test_a_field_has_its_effect_or_is_refused(name: str, llm: LLM, plain: RequestOutput) -> None:
    field = sampling_fields(plain)[name]
    if isinstance(field, Refused):
        _refused(name, lambda: llm.generate([LONG], SamplingParams(**{name: field.value})))
        return
    without = llm.generate([LONG], SamplingParams(**{**BASE, **{key: value for key, value in field.given.items() if key != name}}))[0]
    changed = llm.generate([LONG], SamplingParams(**{**BASE, **field.given}))[0]
    reference = plain if name in ("top_p", "top_k", "min_p", "skip_reading_prefix_cache") else without
    assert field.holds(reference, changed)


def test_a_field_that_is_changed_later_is_checked_when_used(llm: LLM) -> None:
    params = llm.get_default_sampling_params()
    params.max_tokens, params.temperature = 3, 0.0
    assert len(llm.generate([LONG], params)[0].outputs[0].token_ids) == 3
    params.top_p = 3.0
    with pytest.raises(RequestError, match="top_p is 3.0"):
        llm.generate([LONG], params)


def test_params_may_change_once_a_request_is_made(llm: LLM) -> None:
    params = SamplingParams(**BASE)
    llm.enqueue([LONG], params)
    params.max_tokens, params.stop = 1, ("a",)
    assert len(llm.wait_for_completion()[0].outputs[0].token_ids) == BASE["max_tokens"]


# -- methods -------------------------------------------------------------------------------------------------------------


def test_every_method_and_argument_is_in_the_table() -> None:
    public = {name: member for name, member in inspect.getmembers(LLM, inspect.isfunction) if not name.startswith("_")}
    every = {**ARGUMENTS, **POOLING_ARGUMENTS}
    assert sorted(public) == sorted([*every, *REFUSED_METHODS])
    for name, arguments in every.items():
        assert list(inspect.signature(public[name]).parameters)[1:] == sorted(arguments, key=list(inspect.signature(public[name]).parameters).index), name


@pytest.mark.parametrize(("method", "argument"), CALLS, ids=[".".join(call) for call in CALLS])
def test_an_argument_has_its_effect_or_is_refused(method: str, argument: str, llm: LLM, ordered: LLM) -> None:
    check = ARGUMENTS[method][argument]
    if isinstance(check, Refused):
        _refused(argument, lambda: getattr(llm, method)(**ASKS[method], **{argument: check.value}))
        return
    assert check(llm)
    if argument == "priority":
        assert check(ordered)
    assert not llm.llm_engine.has_unfinished_requests() and llm._engine.kv.blocks_held == 0


@pytest.mark.parametrize("name", REFUSED_METHODS)
def test_a_method_that_is_not_there_says_what_to_use(name: str, llm: LLM) -> None:
    with pytest.raises(RequestError, match=rf"^{name}\(\) is not supported: \w.+") as caught:
        getattr(llm, name)("anything", at=1)
    assert caught.value.field == name


@pytest.mark.parametrize("name", [field.name for field in fields(BeamSearchParams)])
def test_a_field_of_beam_search_has_its_effect_or_is_refused(name: str, llm: LLM) -> None:
    check = BEAM_FIELDS[name]
    if isinstance(check, Refused):
        _refused(name, lambda: BeamSearchParams(**{"beam_width": 2, "max_tokens": 2, name: check.value}))
    else:
        assert check(llm)


# -- options -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIONS_ELSEWHERE)
def test_an_option_of_other_engines_is_taken_or_refused_by_name(name: str) -> None:
    own = {key for option in OPTIONS for key in (option.name, *option.aliases)}
    if name in own or name in ("max_logprobs", "disable_log_stats"):
        return  # what each sets: tests/engine/test_resolve.py, and below
    foreign = {key: option for option in FOREIGN for key in (option.name, *option.aliases)}
    if name in foreign:
        for value in foreign[name].accepts:
            EngineArgs(**{name: value})
    assert name in foreign or name in REFUSED, f"{name} is neither an option nor refused with a reason"
    flag = "--" + name.replace("_", "-")
    with pytest.raises(ConfigError, match=rf"{flag} is .*: \w"):
        EngineArgs(**{name: "no such value", "deny_plugin": ["otel"]})  # which takes one of them, where it is installed


def test_options_of_llm_alone() -> None:
    with LLM(platform="null", num_blocks=200, max_model_len=1024, max_logprobs=3, disable_log_stats=False) as limited:
        assert limited.get_metrics()
        limited.generate([LONG], SamplingParams(**BASE, logprobs=3))
        with pytest.raises(RequestError, match="logprobs is -1: at most 3 may be asked for"):
            limited.generate([LONG], SamplingParams(**BASE, logprobs=-1))
        assert limited.beam_search([LONG], BeamSearchParams(3, 2))
    with pytest.raises(ConfigError, match="max_logprobs is 'x'"):
        EngineArgs(max_logprobs="x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean 'max_model_len'"):
        EngineArgs(max_modellen=3)


# -- the page ------------------------------------------------------------------------------------------------------------


def test_the_page_says_what_is_tested(request: pytest.FixtureRequest, plain: RequestOutput) -> None:
    says = {name: field.says for name, field in sampling_fields(plain).items() if isinstance(field, Field)}
    wanted = with_part(PAGE.read_text(encoding="utf-8"), python_part(says, {**ARGUMENTS, **POOLING_ARGUMENTS}, BEAM_FIELDS))
    if request.config.getoption("--write-docs"):
        PAGE.write_text(wanted, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == wanted
