"""`llmx pull, list, show, rm` as a user runs them, and serving what was pulled with no network at all."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.sources.conftest import SIDE, safetensors
from tests.sources.fake_hub import COMMIT, FakeHub, Repo, fake_hub

_HANG_S = 120


@dataclass
class Machine:
    """A machine with a hub, a cache of its own, and no other settings of a hub."""

    hub: FakeHub
    home: Path
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def environ(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "LLMX_", "TRANSFORMERS_"))}
        return {**clean, "HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.home), "COLUMNS": "200", **self.extra}

    def llmx(self, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """A finished command."""
        command = [sys.executable, "-m", "llmx", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=_HANG_S, env={**self.environ, **extra}, stdin=subprocess.DEVNULL)


@pytest.fixture
def machine(hub_server: FakeHub, tmp_path: Path) -> Machine:
    hub_server.repos["org/plain"] = Repo({**SIDE, "model.safetensors": safetensors()})
    return Machine(hub_server, tmp_path / "home")


def test_pull_list_show_rm(machine: Machine) -> None:
    done = machine.llmx("pull", "org/plain")
    assert done.returncode == 0, done.stderr
    assert f"org/plain: 4 files, 8.4 KB, revision {COMMIT[:12]}" in done.stdout and "start it with: llmx serve org/plain" in done.stdout
    files = ("README.md", "config.json", "tokenizer.json", "model.safetensors")
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [f"fetching {file}" for file in files]
    assert "in all" in done.stderr and "\x1b" not in done.stderr
    listed = json.loads(machine.llmx("list", "--json").stdout)
    assert {"model": "org/plain", "kind": "safetensors", "commit": COMMIT}.items() <= next(one for one in listed if one["model"] == "org/plain").items()
    assert "org/plain " in machine.llmx("list").stdout
    card = json.loads(machine.llmx("show", "org/plain", "--json").stdout)
    assert (card["architecture"], card["quantization"], card["context_length"], card["license"]) == ("LlamaForCausalLM", "bf16", 512, "mit")
    assert "licence       mit" in machine.llmx("show", "org/plain").stdout
    refused = machine.llmx("rm", "org/plain")
    assert refused.returncode == 2 and "add --yes" in refused.stderr
    removed = machine.llmx("rm", "org/plain", "--yes")
    assert removed.returncode == 0 and "become free" in removed.stdout
    assert "org/plain" not in machine.llmx("list").stdout


def test_a_second_pull_fetches_nothing(machine: Machine) -> None:
    assert machine.llmx("pull", "org/plain").returncode == 0
    machine.hub.seen.clear()
    done = machine.llmx("pull", "org/plain", "--json")
    assert json.loads(done.stdout)["commit"] == COMMIT and machine.hub.paths() == ["/api/models/org/plain/revision/main"] and machine.hub.paths("HEAD") == []


@pytest.mark.parametrize(("arguments", "message"), [
    (("pull", "org/none"), "error: there is no model 'org/none'"),
    (("pull", "smollm2-135m-instruct"), "error: a model of the hub is needed"),
    (("pull", "org/plain@v7"), "error: org/plain has no revision 'v7'"),
    (("pull", "org/plain:Q8_0"), "error: org/plain has no GGUF file"),
    (("show", "org/none"), "error: org/none is not on this machine"),
    (("rm", "org/none", "--yes"), "error: org/none is not in"),
    (("explain", "org/none"), "Fetch it with: llmx pull org/none"),
    (("serve", "org/none", "--offline", "--port", "0"), "Fetch it with: llmx pull org/none (but not here: --offline is set"),
    (("chat", "org/none", "--offline", "-q", "x"), "Fetch it with: llmx pull org/none"),
    (("serve", "org/none", "--port", "0"), "error: there is no model 'org/none'"),
])  # fmt: skip
def test_errors_are_one_line_and_exit_code_2(machine: Machine, arguments: tuple[str, ...], message: str) -> None:
    done = machine.llmx(*arguments)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1 and message in done.stderr, done.stderr


def test_offline_by_the_environment(machine: Machine) -> None:
    done = machine.llmx("pull", "org/plain", HF_HUB_OFFLINE="1")
    assert done.returncode == 2 and "HF_HUB_OFFLINE is set" in done.stderr and machine.hub.seen == []


def test_a_token_from_the_environment_and_the_option(machine: Machine) -> None:
    machine.hub.repos["org/plain"].gated = 401
    refused = machine.llmx("pull", "org/plain", "--hf-token", "secret-one")
    assert refused.returncode == 2 and "org/plain is gated" in refused.stderr and "secret-one" not in refused.stderr + refused.stdout
    assert machine.llmx("pull", "org/plain", HF_TOKEN="good", **{"LLMX_DOWNLOAD_DIR": str(machine.home / "elsewhere")}).returncode == 0
    assert (machine.home / "elsewhere" / "models--org--plain").is_dir() and not (machine.home / "hub").exists()


def test_rm_asks_on_a_terminal(machine: Machine) -> None:
    assert machine.llmx("pull", "org/plain").returncode == 0
    for answer, code, left in (("n", 130, True), ("y", 0, False)):
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "llmx", "rm", "org/plain"]
        with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=machine.environ) as process:
            os.close(theirs)
            os.write(ours, f"{answer}\n".encode())
            out, _ = process.communicate(timeout=_HANG_S)
        os.close(ours)
        assert process.returncode == code and "Remove?" in out
        assert (machine.home / "hub" / "models--org--plain").exists() is left


def test_bars_on_a_terminal(machine: Machine) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "llmx", "pull", "org/plain"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, env={**machine.environ, "TERM": "xterm"}) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            shown += piece
        process.communicate(timeout=_HANG_S)
    os.close(ours)
    assert process.returncode == 0 and b"all files" in shown and b"model.safetensors" in shown


# -- a model that runs ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files of a tiny random llama made by transformers, in two shards, with a tokenizer trained on this file."""
    torch = pytest.importorskip("torch")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([Path(__file__).read_text(encoding="utf-8")], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    config = LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        initializer_range=0.2, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="200KB")
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert "model.safetensors.index.json" in files
    return files


@pytest.fixture(scope="module")
def running(tiny: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with fake_hub() as hub:
        hub.repos["org/tiny"], hub.repos["other/tiny"] = Repo(tiny), Repo(tiny)
        yield Machine(hub, tmp_path_factory.mktemp("home"))


def test_pull_then_serve_without_a_network(running: Machine, blocked_environment: dict[str, str]) -> None:
    assert running.llmx("pull", "org/tiny").returncode == 0
    running.hub.seen.clear()
    machine = Machine(running.hub, running.home, blocked_environment)
    blocked = machine.llmx("pull", "org/tiny")
    assert blocked.returncode == 99 and "a connection was tried" in blocked.stderr, "the block itself works"
    command = [sys.executable, "-m", "llmx", "serve", "org/tiny", "--port", "0", "--threads", "1", "--num-blocks", "64"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=machine.environ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("try "):
                    break
            else:
                raise AssertionError(f"the server did not start: {process.stderr.read()}")
            url = next(line for line in lines if line.startswith("ready ")).split()[1]
            body = {"model": "org/tiny", "messages": [{"role": "user", "content": "import json"}], "max_tokens": 8, "temperature": 0}
            answer = _post(f"{url}/v1/chat/completions", body)
        finally:
            process.terminate()
            process.communicate(timeout=_HANG_S)
    assert answer["model"] == "org/tiny" and 1 <= answer["usage"]["completion_tokens"] <= 8
    assert running.hub.seen == []


def test_naming_a_model_fetches_it_and_says_so(running: Machine) -> None:
    """A start with a hub name is a wish to have the model; two of one base name do not meet."""
    done = running.llmx("complete", "other/tiny", "-q", "import", "--max-tokens", "4", "--temperature", "0", "--threads", "1", "--num-blocks", "64")
    assert done.returncode == 0, done.stderr
    assert "fetching model-00001-of-" in done.stderr
    again = running.llmx("complete", "other/tiny", "-q", "import", "--max-tokens", "4", "--temperature", "0", "--threads", "1", "--num-blocks", "64")
    assert again.stdout == done.stdout and "fetching" not in again.stderr
    assert sorted(path.name for path in (running.home / "hub").glob("models--*")) == ["models--org--tiny", "models--other--tiny"]


def test_llm_in_python(running: Machine, blocked_environment: dict[str, str]) -> None:
    """LLM(name) works from the cache without a socket, with a tokenizer of another repository too."""
    assert running.llmx("pull", "org/tiny").returncode == running.llmx("pull", "other/tiny").returncode == 0
    code = (
        "from llmx import LLM, SamplingParams\n"
        "for tokenizer in (None, 'other/tiny'):\n"
        "    with LLM('org/tiny', threads=1, num_blocks=64, tokenizer=tokenizer) as llm:\n"
        "        print(llm.info.name, llm.generate(['import'], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)[0].outputs[0].token_ids)\n"
    )
    for extra in ({}, {"HF_HUB_OFFLINE": "1"}):
        environ = {**running.environ, **blocked_environment, **extra}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=_HANG_S, env=environ)
        assert done.returncode == 0, done.stderr
        first, second = done.stdout.splitlines()
        assert first == second and first.startswith("org/tiny ")


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_HANG_S) as response:
        return dict(json.load(response))
