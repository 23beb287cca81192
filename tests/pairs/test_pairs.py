"""Every pair of features gives what each gives alone; writes and checks docs/compatibility.md.

The real model on the CPU platform. *Request* features change what is asked for; *engine* features must change nothing. The plain
run has no engine feature: whole prompts, no prefix cache, plenty of KV, nobody else. With a pair switched on the answers must equal
the plain ones bit for bit: text, tokens, every logprob, and why it ended.

After a deliberate change: python -m pytest tests/pairs --write-docs
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from llmx import LLM, LoRARequest, SamplingParams, StructuredOutputsParams
from llmx.engine.outputs import RequestOutput
from tests.draft.script import follow
from tests.hooks.vendor import install
from tests.lora.adapters import smollm2_adapter

ROOT = Path(__file__).resolve().parents[2]
REFUSED = tomllib.loads((ROOT / "tests/pairs_refused.toml").read_text())["refused"]

REQUEST: dict[str, dict[str, Any]] = {
    "n > 1": {"n": 3, "temperature": 0.9, "seed": 7},
    "logprobs": {"logprobs": 3},
    "prompt logprobs": {"prompt_logprobs": 2},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4},
    "stop strings": {"stop": ("\n3", "1. :")},  # met after 18 or more tokens, across two of them
    "seed": {"temperature": 0.9, "seed": 11},
    "logit bias": {"logit_bias": {30: -4.0, 28: 2.5, 9860: -3.0}},
    "allowed ids": {"allowed_token_ids": (*range(3, 3000), 9617, 17400)},  # the last two spell, with 46, </think>
    "bans": {"bad_words": ("Atlantic Ocean", "Mediterranean"), "stop_token_ids": (30,), "min_tokens": 20},  # the plain answer has all three
    "cut prompt": {"truncate_prompt_tokens": 33},
    "grammar": {"structured_outputs": StructuredOutputsParams(regex=r"( [A-Z][a-z]{1,9},?){30,60}")},  # longer than max_tokens
    "thinking budget": {"thinking_token_budget": 4},  # the answer begins inside its reasoning
    "LoRA": {},  # an adapter of its own, beside which the base runs: see _lora
    "logits processors": {"logits_processors": ({"name": "no_repeat", "args": {"size": 1}},)},  # no token of the answer comes twice
}
ENGINE = ("prefix cache", "chunked prefill", "preemption", "streaming", "drafting", "steps ahead")
FEATURES = (*REQUEST, *ENGINE)
SamplingKey = frozenset[str]
PAIRS = list(itertools.combinations(FEATURES, 2))

BASE = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
PROMPT = "Here is a list of rivers and the seas they flow into, one per line, with a short remark on each of them:\n1. The Nile flows into"
ADAPTER = TemporaryDirectory(prefix="llmx-pairs-")
OTHER = [1000 + index % 300 for index in range(205)]  # 13 blocks; three steps later it needs a 14th


def _llm(**options: Any) -> LLM:
    options = {"num_blocks": 200, "max_num_seqs": 8, "lora_modules": [f"rivers={ADAPTER.name}"], **options}
    return LLM(platform="cpu", max_model_len=256, reasoning_parser="deepseek_r1", **{"threads": 1, **options})


def _lora(features: set[str] | SamplingKey) -> dict[str, Any]:
    """The argument that names the adapter."""
    return {"lora_request": LoRARequest("rivers")} if "LoRA" in features else {}


@pytest.fixture(scope="module", autouse=True)
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The example plugin with a logits processor is installed, and the adapter is there."""
    smollm2_adapter(Path(ADAPTER.name), seed=4, size=0.2)
    files = {f"llmx_no_repeat/{path.name}": path.read_text() for path in (ROOT / "examples/logits_plugin/src/llmx_no_repeat").glob("*.py")}
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(tmp_path_factory.mktemp("plugin"), monkeypatch, "llmx-no-repeat", files, "[llmx.plugins]\nno_repeat = llmx_no_repeat\n")
        yield


@pytest.fixture(scope="module")
def plain() -> Iterator[LLM]:
    with _llm(enable_prefix_caching=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def plain_results() -> dict[SamplingKey, RequestOutput]:
    """What the plain engine gave, by request features."""
    return {}


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[frozenset[str], LLM]]:
    """One LLM per set of engine features that need their own configuration, made when first used."""
    made: dict[frozenset[str], LLM] = {}
    yield made
    for llm in made.values():
        llm.close()


def _engine_for(engines: dict[frozenset[str], LLM], features: set[str]) -> LLM:
    key = frozenset(features & {"prefix cache", "chunked prefill", "preemption", "drafting", "steps ahead"})
    if key not in engines:
        options: dict[str, Any] = {"enable_prefix_caching": "prefix cache" in key}
        if "chunked prefill" in key:
            options["max_num_batched_tokens"] = 16
        if "preemption" in key:
            options["num_blocks"] = 18  # 17 blocks: OTHER and the prompt fit, their answers do not
        if "steps ahead" in key:
            options["threads"] = 2  # one leads a step while the other does the engine's Python
        engines[key] = _llm(**options)
        assert engines[key]._engine.executor.limits.max_inflight == (2 if "steps ahead" in key else 1)
    return engines[key]


def _params(features: set[str]) -> SamplingParams:
    given: dict[str, Any] = dict(BASE)
    for name in REQUEST:
        if name in features:
            given |= REQUEST[name]
    return SamplingParams(**given)


def _facts(output: RequestOutput) -> dict[str, Any]:
    """Everything that must be equal; numbers of the prefix cache may differ."""
    answers = [(a.text, a.token_ids, a.logprobs, a.finish_reason, a.stop_reason) for a in output.outputs]
    return {"answers": answers, "prompt_logprobs": output.prompt_logprobs, "prompt": output.prompt_token_ids}


def _run(llm: LLM, params: SamplingParams, features: set[str]) -> RequestOutput:
    if "prefix cache" in features:
        llm.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=1), **_lora(features))  # leaves its blocks in the cache
    if "preemption" in features:
        return _run_preempted(llm, params, features)
    return _streamed(llm, params, features) if "streaming" in features else llm.generate(PROMPT, params, **_lora(features))[0]


def _streamed(llm: LLM, params: SamplingParams, features: set[str]) -> RequestOutput:
    texts: dict[int, str] = {}
    tokens: dict[int, list[int]] = {}
    for output in llm.stream(PROMPT, params, **_lora(features)):
        for answer in output.outputs:
            texts[answer.index] = texts.get(answer.index, "") + answer.text_delta
            tokens.setdefault(answer.index, []).extend(answer.new_token_ids)
    assert [(a.text, a.token_ids) for a in output.outputs] == [(texts[a.index], tokens[a.index]) for a in output.outputs]
    return output


def _run_preempted(llm: LLM, params: SamplingParams, features: set[str]) -> RequestOutput:
    """Beside a request that came first and grows until the cache is full, so that ours is preempted."""
    before, output = llm._engine.stats().preemptions, None
    grower = SamplingParams(temperature=0.0, max_tokens=45, ignore_eos=True)
    if "streaming" in features:
        llm.llm_engine.add_request("other", OTHER, grower)
        llm.llm_engine.add_request("ours", PROMPT, params, **_lora(features))
        while llm.llm_engine.has_unfinished_requests():
            output = next((one for one in llm.llm_engine.step() if one.request_id == "ours"), output)
    else:
        _, output = llm.generate([OTHER, PROMPT], [grower, params], lora_request=[None, _lora(features).get("lora_request")])
    assert llm._engine.stats().preemptions > before, "nothing was preempted"
    return output


@pytest.mark.parametrize("pair", PAIRS, ids=" + ".join)
def test_pair_equals_the_plain_result(
    pair: tuple[str, str], plain: LLM, plain_results: dict[SamplingKey, RequestOutput], engines: dict[frozenset[str], LLM]
) -> None:
    features = set(pair)
    if any(set(entry["pair"]) == features for entry in REFUSED):
        pytest.fail("a refused pair needs a test that shows the refusal")
    params = _params(features)
    asked = frozenset(features & set(REQUEST))
    if asked not in plain_results:
        wanted = plain_results[asked] = plain.generate(PROMPT, params, **_lora(asked))[0]
        if "thinking budget" in features:
            assert all("</think>" in answer.text for answer in wanted.outputs)
        assert wanted.outputs[0].token_ids, "the plain run gave nothing to compare"
        if "n > 1" in features and "seed" not in features:
            _answers_equal_single_ones(plain, params, wanted, _lora(asked))
        if asked == {"LoRA"}:
            assert wanted.outputs[0].token_ids != plain.generate(PROMPT, params)[0].outputs[0].token_ids
    llm = _engine_for(engines, features)
    if "drafting" in features:
        known = plain_results[asked]
        follow(llm, [[*known.prompt_token_ids, *answer.token_ids] for answer in known.outputs])
    got = _run(llm, params, features)
    assert _facts(got) == _facts(plain_results[asked])
    if "drafting" in features:
        _drafts_were_verified(got)


def _drafts_were_verified(got: RequestOutput) -> None:
    for answer in got.outputs:
        assert answer.num_draft_tokens > answer.num_accepted_tokens > 4


def _answers_equal_single_ones(plain: LLM, params: SamplingParams, got: RequestOutput, lora: dict[str, Any]) -> None:
    from dataclasses import replace

    for index in range(params.n):
        single = plain.generate(PROMPT, replace(params, n=1, seed=(params.seed or 0) + index), **lora)[0].outputs[0]
        assert (single.token_ids, single.text) == (got.outputs[index].token_ids, got.outputs[index].text)


def _document() -> str:
    rows = [
        "# Compatibility of features",
        "",
        "Every pair runs on SmolLM2-135M on the CPU platform and gives, bit for bit, what each feature gives alone (`tests/pairs`).",
        "= equal, R refused with a reason (`tests/pairs_refused.toml`).",
        "",
        "| | " + " | ".join(FEATURES) + " |",
        "|---|" + "---|" * len(FEATURES),
    ]
    refused = {frozenset(entry["pair"]) for entry in REFUSED}
    for row in FEATURES:
        cells = ["" if row == column else "R" if frozenset((row, column)) in refused else "=" for column in FEATURES]
        rows.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def test_the_document_says_what_is_tested(request: pytest.FixtureRequest) -> None:
    path = ROOT / "docs/compatibility.md"
    if request.config.getoption("--write-docs"):
        path.write_text(_document())
    assert path.read_text() == _document()
    assert len(REFUSED) <= 3
