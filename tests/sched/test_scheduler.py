"""What the scheduler promises, one scene each."""

from __future__ import annotations

import pytest

from llmx.engine.messages import Abort, Add
from llmx.errors import PromptTooLong, QueueFull, RequestError
from llmx.sampling_params import SamplingParams
from tests.sched.harness import EOS, FULL, SLIDING, STATE, Harness, alone


def test_answer_equals_the_model_alone() -> None:
    harness = Harness([FULL])
    harness.add("a", [5, 6, 7], max_tokens=20, ignore_eos=True)
    harness.run()
    assert harness.answers["a", 0] == alone(harness, [5, 6, 7], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    assert harness.ends["a", 0] == "length"


def test_stops_at_eos_unless_ignored_and_not_before_min_tokens() -> None:
    harness = Harness([FULL])
    harness.add("bias", [5, 6], logit_bias={EOS: 100.0}, max_tokens=9)
    harness.add("late", [5, 6], logit_bias={EOS: 100.0}, max_tokens=9, min_tokens=4)
    harness.add("never", [5, 6], logit_bias={EOS: 100.0}, max_tokens=9, ignore_eos=True)
    harness.run()
    assert harness.answers["bias", 0] == [EOS] and harness.ends["bias", 0] == "stop"
    assert len(harness.answers["late", 0]) == 5 and harness.answers["late", 0][-1] == EOS
    assert EOS not in harness.answers["late", 0][:4]
    assert harness.answers["never", 0] == [EOS] * 9


def test_stop_reason_is_none_for_eos_and_the_id_for_a_stop_token() -> None:
    harness = Harness([FULL])
    harness.add("eos", [5], logit_bias={EOS: 100.0})
    harness.add("own", [5], logit_bias={9: 100.0}, stop_token_ids=(9,))
    harness.run()
    reasons = {item.id: item.stop_reason for item in harness.news if item.finish_reason}
    assert reasons == {"eos": None, "own": 9}


def test_parallel_samples_share_the_prompt_blocks() -> None:
    harness = Harness([FULL], num_blocks=40)
    harness.add("n", list(range(4, 52)), n=4, temperature=1.0, seed=11, max_tokens=6, ignore_eos=True)  # 48 tokens: 3 full blocks
    harness.step()
    assert harness.engine.kv.blocks_held == 3
    harness.step()
    assert harness.engine.kv.blocks_held == 3 + 4
    harness.run()
    answers = [harness.answers["n", index] for index in range(4)]
    assert len({tuple(answer) for answer in answers}) > 1
    for index, answer in enumerate(answers):
        assert answer == alone(harness, list(range(4, 52)), harness.added["n"][1], index)


@pytest.mark.parametrize("max_tokens", [0, 6])
def test_more_samples_than_slots_take_turns(max_tokens: int) -> None:
    harness = Harness([FULL], num_blocks=40, slots=4)
    prompt = list(range(4, 40))
    harness.add("n", prompt, n=10, temperature=1.0, seed=11, max_tokens=max_tokens, ignore_eos=True)
    harness.add("beside", prompt)
    harness.run()
    assert sum(key[0] == "n" for key in harness.ends) == 10 and set(harness.ends.values()) <= {"length", "stop"}
    for index in range(10) if max_tokens else ():
        assert harness.answers["n", index] == alone(harness, prompt, harness.added["n"][1], index)


def test_last_shared_block_is_copied_on_write() -> None:
    harness = Harness([FULL], num_blocks=40)
    harness.add("n", list(range(4, 30)), n=3, temperature=1.0, seed=5, max_tokens=20, ignore_eos=True)  # 26 tokens: 1 full, 1 partial
    harness.run()
    for index in range(3):
        assert harness.answers["n", index] == alone(harness, list(range(4, 30)), harness.added["n"][1], index)


def test_prefix_hit_takes_the_blocks_and_recomputes_at_least_one_token() -> None:
    harness = Harness([FULL], num_blocks=40)
    prompt = list(range(4, 52))
    harness.add("first", prompt)
    harness.run()
    harness.add("again", prompt)
    harness.run()
    cached = {item.id: item.num_cached for item in harness.news if item.tokens}
    assert cached == {"first": 0, "again": 32}
    assert harness.answers["again", 0] == harness.answers["first", 0]


def test_cache_salt_separates_prefixes() -> None:
    harness = Harness([FULL], num_blocks=40)
    prompt = list(range(4, 52))
    for name, salt in (("a", "x"), ("b", "y"), ("c", "x")):
        harness.engine.add(Add(name, prompt, SamplingParams(temperature=0, max_tokens=2), 0, salt))
        harness.answers[name, 0] = []
        harness.run()
    assert {item.id: item.num_cached for item in harness.news if item.tokens} == {"a": 0, "b": 0, "c": 32}


def test_window_group_gives_back_passed_blocks() -> None:
    harness = Harness([FULL, SLIDING], num_blocks=40)
    harness.add("w", list(range(4, 14)), max_tokens=120, ignore_eos=True)
    most = 0
    while harness.engine.has_work:
        harness.step()
        most = max(most, harness.engine.kv.pools[1].num_held)
    assert most <= 3  # window 24: at most ceil(24 / 16) + 1 blocks
    assert harness.answers["w", 0] == alone(harness, list(range(4, 14)), harness.added["w"][1])


def test_preempted_requests_finish_with_the_same_tokens() -> None:
    harness = Harness([FULL], num_blocks=12, slots=8)
    for index in range(6):
        harness.add(f"r{index}", [4 + index] * 30, max_tokens=40, ignore_eos=True)
    harness.run()
    assert harness.engine.scheduler.num_preemptions > 0
    for index in range(6):
        assert harness.answers[f"r{index}", 0] == alone(harness, [4 + index] * 30, harness.added[f"r{index}"][1])


def test_a_short_request_starts_while_others_decode() -> None:
    harness = Harness([FULL], num_blocks=200, slots=32, max_tokens=64)
    for index in range(31):
        harness.add(f"r{index}", [4, 5, 6], max_tokens=100, ignore_eos=True)
    for _ in range(4):
        harness.step()
    harness.add("late", [7, 8, 9], max_tokens=1)
    for _ in range(3):
        harness.step()
    assert harness.ends.get(("late", 0)) == "length"


def test_priority_runs_first_and_is_preempted_last() -> None:
    harness = Harness([FULL], num_blocks=12, slots=1, policy="priority")
    harness.add("low", [4] * 20, priority=5, max_tokens=4)
    harness.add("high", [5] * 20, priority=-1, max_tokens=4)
    harness.run()
    order = [item.id for item in harness.news if item.finish_reason]
    assert order == ["high", "low"]


def test_a_large_request_is_passed_but_not_starved() -> None:
    harness = Harness([FULL], num_blocks=13, slots=8, max_tokens=256, max_len=190)
    harness.add("holder", [4] * 90, max_tokens=40, ignore_eos=True)
    harness.step()
    harness.add("large", [5] * 150, max_tokens=2)
    for index in range(5):
        harness.add(f"small{index}", [6 + index] * 8, max_tokens=2, ignore_eos=True)
    harness.run()
    order = [item.id for item in harness.news if item.finish_reason]
    assert order.index("small0") < order.index("large")
    assert "large" in order


def test_abort_in_every_state_frees_everything() -> None:
    harness = Harness([FULL, STATE], num_blocks=40, max_inflight=2)
    harness.add("waiting", [5] * 10)
    harness.abort("waiting")
    harness.add("prefill", [5] * 100)
    harness.step()
    harness.abort("prefill")
    harness.add("decode", [5] * 10, max_tokens=50, ignore_eos=True, n=3)
    for _ in range(5):
        harness.step()
    harness.abort("decode", 1)
    harness.step()
    harness.abort("decode")
    harness.run()
    assert set(harness.ends.values()) == {"abort"}
    assert harness.engine.abort(Abort("decode")) == []


def test_nan_ends_only_its_request() -> None:
    harness = Harness([FULL], max_inflight=2)
    harness.add("bad", [5, 63], max_tokens=5)
    harness.add("good", [5, 6], max_tokens=5, ignore_eos=True)
    harness.run()
    assert harness.ends == {("bad", 0): "error", ("good", 0): "length"}
    assert "NaN" in next(item.error for item in harness.news if item.id == "bad" and item.error)


def test_no_allowed_token_is_an_error_of_that_request() -> None:
    harness = Harness([FULL])
    harness.add("dead", [5, 6], allowed_token_ids=(EOS,), min_tokens=2, max_tokens=5)
    harness.add("good", [5, 6], max_tokens=3, ignore_eos=True)
    harness.run()
    assert harness.ends["dead", 0] == "error" and harness.ends["good", 0] == "length"


@pytest.mark.parametrize("chunk", [16, 64])
def test_prompt_logprobs_cover_every_prompt_token_once(chunk: int) -> None:
    harness = Harness([FULL], max_tokens=chunk, num_blocks=40)
    harness.add("p", list(range(4, 44)), prompt_logprobs=2, max_tokens=1)
    harness.add("score", list(range(4, 44)), prompt_logprobs=0, max_tokens=0)
    harness.run()
    rows = {name: [row for item in harness.news if item.id == name and item.prompt_lp for row in item.prompt_lp] for name in ("p", "score")}
    assert [row[0][0] for row in rows["p"]] == list(range(5, 44))
    assert all(len(row[0]) == 3 for row in rows["p"]) and all(len(row[0]) == 1 for row in rows["score"])
    assert harness.answers["score", 0] == [] and harness.ends["score", 0] == "length"


def test_refusals_name_value_and_limit() -> None:
    harness = Harness([FULL], max_len=64)
    with pytest.raises(PromptTooLong, match="64"):
        harness.add("long", [5] * 64)
    with pytest.raises(RequestError, match="no tokens"):
        harness.add("empty", [])
    with pytest.raises(RequestError, match="64, but the vocabulary is 0..63"):
        harness.add("vocab", [64])
    harness.add("twin", [5])
    with pytest.raises(RequestError, match="running already"):
        harness.add("twin", [5])
    harness.run()


def test_a_full_queue_is_refused_and_free_slots_do_not_count_as_queue() -> None:
    harness = Harness([FULL], slots=2)
    harness.engine.queue._max_requests = 1
    for index in range(3):  # two slots and one place in the queue
        harness.add(f"r{index}", [5])
    with pytest.raises(QueueFull) as caught:
        harness.add("more", [5])
    assert caught.value.retry_after_s >= 1
    harness.run()
    assert len(harness.ends) == 3
