"""Every body field that works shows its effect: in a table here, against live servers, or in the test that the table names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmx_server.protocol.api_fields import CHAT, COMPLETIONS, FIELDS, RESPONSES
from tests.cases.conftest import Api

ROOT = Path(__file__).parents[2]
LINE = "red lemon sky"  # the echo model answers it in three tokens, then ends
PROMPT = "The best thing about the sea is"

Check = Callable[[dict[str, Any], dict[str, Any]], object]  # answers without and with the field


def text(answer: dict[str, Any]) -> str:
    choice = answer["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def texts(answer: dict[str, Any]) -> set[str]:
    return {text({"choices": [choice]}) for choice in answer["choices"]}


def end(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["finish_reason"])


def tokens(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["completion_tokens"])


def differs(plain: dict[str, Any], changed: dict[str, Any]) -> bool:
    return text(plain) != text(changed)


SAMPLED = {"temperature": 1.5, "seed": 7}
GREEDY: dict[str, Any] = {}

# server, further fields of both requests, the field, what must hold
ON_BOTH: dict[str, tuple[str, dict[str, Any], Any, Check]] = {
    "temperature": ("real", {"seed": 7}, 1.9, differs),
    "top_p": ("real", SAMPLED, 0.01, differs),
    "top_k": ("real", SAMPLED, 1, differs),
    "min_p": ("real", SAMPLED, 1.0, differs),
    "seed": ("real", {"temperature": 1.5}, 3, differs),
    "presence_penalty": ("real", {"max_tokens": 60, "ignore_eos": True}, 2.0, differs),
    "frequency_penalty": ("real", {"max_tokens": 60, "ignore_eos": True}, 2.0, differs),
    "repetition_penalty": ("real", GREEDY, 3.0, differs),
    "logit_bias": ("echo", GREEDY, {"260": 100}, differs),
    "allowed_token_ids": ("echo", GREEDY, [260, 2], lambda plain, changed: set(text(changed).split()) == {"the"} or differs(plain, changed)),
    "bad_words": ("echo", GREEDY, ["sky"], lambda plain, changed: "sky" in text(plain) and "sky" not in text(changed)),
    "n": ("echo", GREEDY, 3, lambda plain, changed: [choice["index"] for choice in changed["choices"]] == [0, 1, 2] and tokens(changed) == 3 * tokens(plain)),
    "max_tokens": ("echo", GREEDY, 2, lambda plain, changed: tokens(changed) == 2 and end(changed) == "length"),
    "min_tokens": ("echo", GREEDY, 9, lambda plain, changed: tokens(plain) == 4 and tokens(changed) >= 9),
    "ignore_eos": ("echo", {"max_tokens": 12}, True, lambda plain, changed: (tokens(changed), end(changed)) == (12, "length")),
    "stop": ("echo", GREEDY, ["on sk"], lambda plain, changed: (text(changed), end(changed)) == ("red lem", "stop")),
    "stop_token_ids": ("echo", GREEDY, [6376], lambda plain, changed: "sky" not in text(changed) and changed["choices"][0]["stop_reason"] == 6376),
    "include_stop_str_in_output": ("echo", {"stop": ["on sk"]}, True, lambda plain, changed: text(changed) == text(plain) + "on sk"),
    "skip_special_tokens": ("echo", {"include_stop_str_in_output": True}, False, lambda plain, changed: text(changed) == text(plain) + "<|im_end|>"),
    "prompt_logprobs": ("real", GREEDY, 2, lambda plain, changed: "prompt_logprobs" in str(changed) and "prompt_logprobs" not in str(plain)),
    "return_token_ids": ("echo", GREEDY, True, lambda plain, changed: len(changed["choices"][0]["token_ids"]) == tokens(changed)),
    "request_id": ("echo", GREEDY, "mine", lambda plain, changed: changed["id"].endswith("-mine")),
    "service_tier": ("echo", GREEDY, "auto", lambda plain, changed: changed["service_tier"] == "default" and "service_tier" not in plain),
    "truncate_prompt_tokens": ("real", GREEDY, 3, lambda plain, changed: changed["usage"]["prompt_tokens"] == 3 < plain["usage"]["prompt_tokens"]),
    "truncation_side": ("real", {"truncate_prompt_tokens": 3}, "right", differs),
    "use_beam_search": ("real", {"n": 3, "max_tokens": 6}, True, lambda plain, changed: (len(texts(plain)), len(texts(changed))) == (1, 3)),
    "length_penalty": (
        "real",
        {"use_beam_search": True, "n": 3, "stop": [",", ".", " the"]},
        -8.0,
        lambda plain, changed: tokens(changed) < tokens(plain) and end(changed) == "stop",
    ),
    "model": ("echo", GREEDY, "smollm2-135m-instruct", lambda plain, changed: changed["model"] == "smollm2-135m-instruct"),
}
ON_COMPLETIONS: dict[str, tuple[str, dict[str, Any], Any, Check]] = {
    "prompt": ("echo", GREEDY, "other words", lambda plain, changed: text(changed) == "other words"),
    "logprobs": ("real", GREEDY, 2, lambda plain, changed: len(changed["choices"][0]["logprobs"]["top_logprobs"][0]) == 2),
    "logprob_token_ids": (
        "real",
        {"logprobs": 0},
        [9999, 5],
        lambda plain, changed: [len(at) for at in changed["choices"][0]["logprobs"]["top_logprobs"]][:2] == [3, 3],
    ),
    "echo": ("echo", GREEDY, True, lambda plain, changed: text(changed) == LINE + text(plain)),
    "best_of": ("real", {**SAMPLED, "max_tokens": 6}, 16, lambda plain, changed: differs(plain, changed) and tokens(changed) > 3 * tokens(plain)),
}
ON_CHAT: dict[str, tuple[str, dict[str, Any], Any, Check]] = {
    "messages": ("echo", GREEDY, [{"role": "user", "content": "other words"}], lambda plain, changed: text(changed) == "other words"),
    "logprobs": ("real", GREEDY, True, lambda plain, changed: changed["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []),
    "top_logprobs": ("real", {"logprobs": True}, 3, lambda plain, changed: len(changed["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 3),
    "logprob_token_ids": (
        "real",
        {"logprobs": True, "top_logprobs": 1},
        [9999, 5],
        lambda plain, changed: [len(at["top_logprobs"]) for at in changed["choices"][0]["logprobs"]["content"]][:2] == [3, 3],
    ),
    "max_completion_tokens": ("echo", GREEDY, 2, lambda plain, changed: tokens(changed) == 2 and end(changed) == "length"),
    "add_generation_prompt": ("real", GREEDY, False, lambda plain, changed: changed["usage"]["prompt_tokens"] < plain["usage"]["prompt_tokens"]),
}
EXTRAS = "tests/server/test_extras.py"
ELSEWHERE = {
    "stream": f"{EXTRAS}::test_pacing_makes_fewer_chunks_of_the_same_text",
    "stream_options": f"{EXTRAS}::test_usage_in_every_chunk",
    "stream_interval": f"{EXTRAS}::test_pacing_makes_fewer_chunks_of_the_same_text",
    "echo": f"{EXTRAS}::test_echo_in_chat",
    "return_tokens_as_token_ids": f"{EXTRAS}::test_tokens_named_by_id",
    "return_prompt_text": f"{EXTRAS}::test_the_prompts_text",
    "documents": f"{EXTRAS}::test_documents_and_effort_reach_the_template",
    "reasoning_effort": f"{EXTRAS}::test_documents_and_effort_reach_the_template",
    "continue_final_message": "tests/server/test_chat.py::test_generation_prompt_and_continuation",
    "chat_template_kwargs": "tests/server/test_chat.py::test_template_arguments",
    "chat_template": "tests/server/test_request_template.py::test_it_makes_the_prompt",
    "add_special_tokens": "tests/server/test_chat.py::test_chat_ignores_special_tokens_of_the_tokenizer",
    "priority": "tests/sched/test_scheduler.py::test_priority_runs_first_and_is_preempted_last",
    "spaces_between_special_tokens": "tests/tokens/test_detokenizer.py::test_special_tokens_lose_the_space_between_them",
    "response_format": "tests/cases/test_b_structured.py::test_b049_an_answer_cut_short",
    "structured_outputs": "tests/cases/test_b_structured.py::test_b030_the_grammar_wins_over_min_tokens",
    "tools": "tests/cases/test_a_tools.py::test_calls_in_the_models_own_format",
    "tool_choice": "tests/cases/test_a_tools.py::test_b019_forced_calls_end_alike_in_both_modes",
    "parallel_tool_calls": "tests/cases/test_a_tools.py::test_calls_in_the_models_own_format",
    "include_reasoning": "tests/cases/test_a_tools.py::test_b120_reasoning_then_a_call",
    "cache_salt": "tests/cases/test_c_sampling.py::test_b093_salts_keep_prefixes_apart",
    "thinking_token_budget": "tests/server/test_thinking_budget.py::test_chat_reasons_no_longer_than_its_budget",
    "logits_processors": "tests/server/test_logits_processors.py::test_a_processor_holds_on_every_route_for_text",
}
RESPONSE = "tests/server/test_responses.py"
SAMPLING = "tests/server/test_response_state.py::test_sampling_fields_reach_the_engine_as_from_chat"
# of /v1/responses, where the same name may mean something else than for chat; priority, salt and template arguments take chat's way
ON_RESPONSES = {
    **dict.fromkeys(
        "temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty seed logit_bias allowed_token_ids bad_words min_tokens "
        "stop stop_token_ids include_stop_str_in_output ignore_eos skip_special_tokens structured_outputs".split(),
        SAMPLING,
    ),
    **{name: ELSEWHERE[name] for name in ("priority", "cache_salt", "chat_template_kwargs", "logits_processors")},
    "thinking_token_budget": "tests/server/test_thinking_budget.py::test_other_doors",
    "reasoning": ELSEWHERE["reasoning_effort"],
    **dict.fromkeys(("model", "input", "instructions", "metadata"), f"{RESPONSE}::test_a_plain_answer"),
    **dict.fromkeys(("request_id", "service_tier"), "tests/server/test_response_state.py::test_ids_and_tiers"),
    **dict.fromkeys(("include_reasoning", "tools", "parallel_tool_calls"), f"{RESPONSE}::test_thoughts_and_calls_whole_and_streamed"),
    **dict.fromkeys(("include", "top_logprobs"), f"{RESPONSE}::test_logprobs_of_the_text_alone"),
    "previous_response_id": f"{RESPONSE}::test_a_conversation_goes_on",
    "store": f"{RESPONSE}::test_stored_fetched_deleted",
    "background": f"{RESPONSE}::test_in_the_background",
    "max_output_tokens": f"{RESPONSE}::test_b018_how_an_answer_ends",
    "truncation": f"{RESPONSE}::test_turns_are_left_out_when_asked",
    "text": f"{RESPONSE}::test_json_is_held_to",
    "tool_choice": f"{RESPONSE}::test_calls_that_are_forced",
    "stream": f"{RESPONSE}::test_the_events_of_a_text",
    "stream_options": f"{RESPONSE}::test_the_events_of_a_text",
}


def rows() -> list[Any]:
    tables = [(COMPLETIONS, {**ON_BOTH, **ON_COMPLETIONS}), (CHAT, {**ON_BOTH, **ON_CHAT})]
    return [pytest.param(route, name, row, id=f"{name}-{route}") for route, table in tables for name, row in table.items()]


@pytest.mark.parametrize(("route", "name", "row"), rows())
def test_the_field_has_its_effect(request: pytest.FixtureRequest, route: str, name: str, row: tuple[str, dict[str, Any], Any, Check]) -> None:
    server, both, value, check = row
    api: Api = request.getfixturevalue(server)
    said = LINE if server == "echo" else PROMPT
    start: dict[str, Any] = {"prompt": said} if route == COMPLETIONS else {"messages": [{"role": "user", "content": said}]}
    body = {"temperature": 0, "max_tokens": 24, **start, **both}
    if name in ("max_completion_tokens", "max_tokens"):
        body["max_tokens"] = None
    plain, changed = (api.post(route, one) for one in (body, {**body, name: value}))
    assert plain.status_code == changed.status_code == 200, changed.text
    assert check(plain.json(), changed.json()), (plain.json(), changed.json())


def test_every_field_that_works_has_a_test() -> None:
    for field in FIELDS:
        for route in field.routes if field.state == "works" else ():
            table = ON_RESPONSES if route == RESPONSES else {**ON_BOTH, **(ON_CHAT if route == CHAT else ON_COMPLETIONS), **ELSEWHERE}
            assert field.name in table, f"{field.name} of {route} works, but no test shows its effect: add one to the tables above"
    for name, place in [*ELSEWHERE.items(), *ON_RESPONSES.items()]:
        path, _, function = place.partition("::")
        assert re.search(rf"^(async )?def {function}\(", (ROOT / path).read_text(encoding="utf-8"), re.M), f"{name}: {place} is not there"


def test_a_field_without_a_test_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ON_BOTH, "seed")
    with pytest.raises(AssertionError, match="seed of /v1"):
        test_every_field_that_works_has_a_test()
