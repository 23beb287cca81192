"""One scripted load on a live engine moves every metric, and the numbers equal what was sent and received."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from processes import Server, serve
from prometheus_client.parser import text_string_to_metric_families
from test_live import PLATFORM

SLOTS, QUEUED, BLOCKS = 3, 2, 24  # 23 blocks of 16 tokens: three requests of 9 blocks do not fit
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "step_budget_used_perc", "device_busy_perc", "queue_delay_seconds")
PER_REQUEST = ("queue_time", "prefill_time", "decode_time", "inference_time")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    limits = ("--max-num-seqs", str(SLOTS), "--max-num-queued-reqs", str(QUEUED), "--num-blocks", str(BLOCKS), "--max-model-len", "256")
    with serve("--platform", PLATFORM, "--threads", "1", *limits) as running:
        yield running


class Scrape:
    """One scrape: values by name and labels, model_name left out."""

    def __init__(self, url: str) -> None:
        self.values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for family in text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=60).text):
            for sample in family.samples:
                assert sample.labels.pop("model_name") == "smollm2-135m-instruct" and sample.name.startswith("llmx:")
                self.values[sample.name.removeprefix("llmx:"), tuple(sorted(sample.labels.items()))] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        return self.values.get((name, tuple(sorted(labels.items()))), 0.0)


class Load:
    """Sends, and adds up what came back."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.usage: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.rows = 0  # tokens that had to be computed, without preemption
        self.gaps = 0  # between two tokens of a request's longest answer
        self.params: Counter[str] = Counter()

    def post(self, prompt: list[int] | str, **fields: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/completions", json={"prompt": prompt, "ignore_eos": True, **fields}, timeout=120)

    def take(self, answer: httpx.Response, n: int, max_tokens: int) -> None:
        if answer.status_code != 200:
            self.errors[answer.json()["error"]["code"] or "invalid_request"] += 1
            return
        body = answer.json()
        counts = body["usage"] | {"cached": body["usage"]["prompt_tokens_details"]["cached_tokens"], "requests": 1}
        self.usage.update({name: counts[name] for name in ("prompt_tokens", "completion_tokens", "cached", "requests")})
        self.ends.update(choice["finish_reason"] for choice in body["choices"])
        self.rows += counts["prompt_tokens"] - counts["cached"] + counts["completion_tokens"] - n
        self.gaps += counts["completion_tokens"] // n - 1
        self.params.update({"n": n, "max_tokens": max_tokens})

    def send(self, prompt: list[int] | str, *, n: int = 1, max_tokens: int = 5, **fields: Any) -> None:
        self.take(self.post(prompt, n=n, max_tokens=max_tokens, **fields), n, max_tokens)


def test_a_load_is_reconciled(server: Server) -> None:
    load = Load(server.url)
    prompt = [200 + index for index in range(40)]
    for _ in range(2):
        load.send(prompt)
    load.send(prompt[:20], n=2, max_tokens=4)
    load.send("once", stop_token_ids=list(range(49152)), max_tokens=3)  # any token ends it
    load.send(prompt, top_p=7)
    load.send(prompt * 10)
    load.send("x", model="nope")
    seen = Scrape(server.url)
    assert load.errors == {"invalid_request": 1, "context_length_exceeded": 1, "model_not_found": 1} and load.usage["cached"] == 32 + 16
    _reconcile(load, seen)
    assert seen("iteration_tokens_total_sum") == load.rows and seen("num_preemptions_total") == 0

    highest = _flood(load)
    assert all(highest[name] > 0 for name in GAUGES), highest
    assert load.errors["queue_full"] > 0
    _wait_until_idle(server.url)
    seen = Scrape(server.url)
    _reconcile(load, seen)
    assert seen("num_preemptions_total") == seen("request_num_preemptions_sum") > 0
    assert seen("iteration_tokens_total_sum") >= load.rows  # what was preempted is computed again
    assert {name: seen(name) for name in GAUGES} == dict.fromkeys(GAUGES, 0.0)


def _flood(load: Load) -> dict[str, float]:
    """More and longer requests than there is room for; the highest value of each gauge meanwhile."""
    highest = dict.fromkeys(GAUGES, 0.0)
    with ThreadPoolExecutor(SLOTS + QUEUED + 3) as pool:
        waiting = []
        for index in range(SLOTS + QUEUED + 3):
            waiting.append(pool.submit(load.post, [1000 + 50 * index + at for at in range(40)], max_tokens=100))
            time.sleep(0.02)
        while not all(one.done() for one in waiting):
            now = Scrape(load.url)
            highest = {name: max(value, now(name)) for name, value in highest.items()}
            time.sleep(0.02)
    for one in waiting:
        load.take(one.result(), 1, 100)
    return highest


def _wait_until_idle(url: str) -> None:
    deadline = time.monotonic() + 30
    while Scrape(url)("num_requests_running"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _reconcile(load: Load, seen: Scrape) -> None:
    usage, requests = load.usage, load.usage["requests"]
    assert seen("prompt_tokens_total") == usage["prompt_tokens"] == seen("request_prompt_tokens_sum")
    assert seen("generation_tokens_total") == usage["completion_tokens"] == seen("request_generation_tokens_sum")
    assert seen("prefix_cache_hits_total") >= usage["cached"] and seen("prefix_cache_queries_total") >= usage["prompt_tokens"]
    assert seen("prompt_tokens_cached_total") == seen("prompt_tokens_by_source_total", source="local_cache_hit") == usage["cached"]
    computed = usage["prompt_tokens"] - usage["cached"]
    assert seen("prompt_tokens_by_source_total", source="local_compute") == computed == seen("request_prefill_kv_computed_tokens_sum")
    assert {end: seen("request_success_total", finished_reason=end) for end in load.ends} == dict(load.ends)
    for code, count in load.errors.items():
        assert seen("request_rejections_total", reason=code) == count
    assert seen("admission_rejections_total", reason="max_num_queued_reqs") == load.errors["queue_full"]
    assert seen("request_params_n_sum") == load.params["n"] and seen("request_params_max_tokens_sum") == load.params["max_tokens"]
    for name in ("e2e_request_latency_seconds", "time_to_first_token_seconds", "request_max_num_generation_tokens"):
        assert seen(f"{name}_count") == requests, name
    assert seen("inter_token_latency_seconds_count") == load.gaps
    assert seen("iteration_tokens_total_count") == seen("steps_total") > 0
    times = {name: seen(f"request_{name}_seconds_sum") for name in PER_REQUEST}
    assert all(seen(f"request_{name}_seconds_count") == requests for name in PER_REQUEST)
    assert times["inference_time"] == pytest.approx(times["prefill_time"] + times["decode_time"])
    assert 0 < times["queue_time"] + times["inference_time"] <= seen("e2e_request_latency_seconds_sum")
    assert 0 < seen("request_time_per_output_token_seconds_sum") < times["decode_time"]
    assert seen("forward_seconds_total") > 0 and seen("engine_seconds_total") > 0
    (info,) = [dict(labels) for name, labels in seen.values if name == "cache_config_info"]
    assert info["num_kv_blocks"] and info["max_num_seqs"] == str(SLOTS) and info["max_model_len"] == "256"


def test_an_abort_is_counted(server: Server) -> None:
    with httpx.stream("POST", f"{server.url}/v1/completions", json={"prompt": "a", "max_tokens": 250, "ignore_eos": True, "stream": True}) as answer:
        next(answer.iter_lines())
    _wait_until_idle(server.url)
    deadline = time.monotonic() + 20
    while not (seen := Scrape(server.url))("request_success_total", finished_reason="abort"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert seen("request_failure_total", reason="abort") == 1


def test_more_choices_than_slots(server: Server) -> None:
    """They take turns; tokens that the first ones leave in the prefix cache are not told as found by the request."""
    body = {"prompt": [3000 + at for at in range(40)], "n": 3 * SLOTS, "max_tokens": 4, "ignore_eos": True, "seed": 3, "temperature": 1.0}
    whole = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
    assert [choice["index"] for choice in whole["choices"]] == list(range(3 * SLOTS))
    assert whole["usage"]["completion_tokens"] == 12 * SLOTS and whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    lines = httpx.post(f"{server.url}/v1/completions", json={**body, "stream": True}, timeout=60).text.split("\n\n")
    assert [sum(f'"index":{index},' in line and '"finish_reason":"length"' in line for line in lines) for index in range(3 * SLOTS)] == [1] * (3 * SLOTS)
