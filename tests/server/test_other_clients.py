"""LangChain, LiteLLM and lm-eval against `llmx serve`, in an environment of their own: .build/clients, made of requirements-clients.txt."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import HANG_S, Server, serve
from test_live import ARGUMENTS, MODEL, PLATFORM

from llmx.config import ModelConfig
from llmx.models.load import read_model_info
from llmx.tokens.from_gguf import vocabulary_from_gguf

pytestmark = [pytest.mark.slow, pytest.mark.skipif(PLATFORM != "cpu", reason="the CPU platform is not installed")]

REQUIREMENTS = Path(__file__).with_name("requirements-clients.txt")
FOLDER = Path(__file__).parents[2] / ".build" / "clients"
# (context, the continuation that is true, another)
FACTS = [
    ("The capital of France is", " Paris", " banana"),
    ("The sky is", " blue", " seven trees"),
    ("Two and two make", " four", " Paris"),
    ("Water is made of hydrogen and", " oxygen", " lamps"),
]
TASK = """task: tiny_facts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{q}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: gold
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of the clients' environment; it is made once, and anew when the requirements change."""
    stamp, found = FOLDER / "made-of.txt", FOLDER / "bin" / "python"
    if stamp.exists() and stamp.read_text() == REQUIREMENTS.read_text():
        return found
    venv.create(FOLDER, clear=True, with_pip=True)
    done = subprocess.run([found, "-m", "pip", "install", "-q", "-r", REQUIREMENTS], capture_output=True, text=True, timeout=20 * HANG_S)
    if done.returncode and any(word in done.stderr for word in ("NewConnectionError", "ConnectTimeoutError", "name resolution", "No route to host")):
        pytest.skip("no package index can be reached, so the clients cannot be installed")
    assert done.returncode == 0, done.stderr[-2000:]
    stamp.write_text(REQUIREMENTS.read_text())
    return found


@pytest.fixture(scope="module")
def live() -> Iterator[Server]:
    with serve(*ARGUMENTS) as running:
        yield running


def ran(words: list[Any], home: Path) -> str:
    """What the clients print: they reach no host but the server, and keep their files in `home`."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), **offline}
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=5 * HANG_S, cwd=home, env=environ)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.timeout(25 * HANG_S)
def test_langchain_and_litellm(python: Path, live: Server, tmp_path: Path) -> None:
    told = json.loads(ran([python, Path(__file__).with_name("framework_client.py"), f"{live.url}/v1", MODEL], tmp_path).splitlines()[-1])
    chain, lite = told["langchain"], told["litellm"]
    assert "Paris" in chain["text"] and {chain["text"]} == {chain["streamed"], *chain["batch"]}
    assert len(chain["usage"]) == 1 and 0 < chain["usage"][0] <= 48
    ((name, arguments),) = chain["calls"]
    assert name == "weather" and arguments["city"] in ("Paris", "Rome") and chain["streamed_calls"] == chain["calls"] and chain["after"]
    for method in ("json_schema", "function_calling"):
        assert chain[method]["city"] in ("Paris", "Rome") and isinstance(chain[method]["big"], bool)
    assert "this model gives text, no vectors" in chain["no_vectors"]
    assert "Paris" in lite["text"] and lite["text"] == lite["streamed"] and json.loads(lite["call"])["city"] in ("Paris", "Rome")
    assert lite["continued"].strip() and "5000" in lite["too_long"]


def write_tokenizer(folder: Path) -> None:
    """The embedded model's tokenizer as transformers reads it."""
    folder.mkdir()
    vocabulary = vocabulary_from_gguf(read_model_info(ModelConfig()).tokenizer)
    vocabulary.backend.save(str(folder / "tokenizer.json"))
    names = {key: vocabulary.names[key] for key in ("bos_token", "eos_token")}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))


def loglikelihood(live: Server, context: str, continuation: str) -> float:
    """Of the continuation: the tokens behind the context, by the offsets of an echoed prompt of which nothing is continued."""
    body = {"prompt": context + continuation, "echo": True, "max_tokens": 0, "logprobs": 0}
    found = httpx.post(f"{live.url}/v1/completions", json=body, timeout=HANG_S).raise_for_status().json()["choices"][0]["logprobs"]
    return sum(value for value, offset in zip(found["token_logprobs"], found["text_offset"], strict=True) if offset >= len(context))


@pytest.mark.timeout(25 * HANG_S)
def test_lm_eval(python: Path, live: Server, tmp_path: Path) -> None:
    rows = [{"q": context, "choices": [good, bad], "gold": 0} for context, good, bad in FACTS]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "tiny.yaml").write_text(TASK.format(rows=tmp_path / "rows.jsonl"))
    write_tokenizer(tmp_path / "tokenizer")
    model = f"model={MODEL},base_url={live.url}/v1/completions,tokenizer={tmp_path / 'tokenizer'},num_concurrent=2,max_retries=1"
    words: list[Any] = [python, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", model, "--tasks", "tiny_facts"]
    ran([*words, "--include_path", tmp_path, "--output_path", tmp_path / "out", "--log_samples"], tmp_path)
    (samples,) = (tmp_path / "out").rglob("samples_*.jsonl")
    right = 0
    for line in samples.read_text().splitlines():
        sample = json.loads(line)
        context, *continuations = FACTS[sample["doc_id"]]
        found = [float(answer[0][0]) for answer in sample["resps"]]
        assert found == pytest.approx([loglikelihood(live, context, text) for text in continuations], abs=1e-4)
        assert sample["acc"] == float(found[0] > found[1])
        right += found[0] > found[1]
    (results,) = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(results.read_text())["results"]["tiny_facts"]["acc,none"] == right / len(FACTS) >= 0.75
