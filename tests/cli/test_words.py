"""What people type: wrong words, words of other tools, a text without quotes; help, completion, exit codes, settings with their sources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llmx_cli.main import COMMANDS
from tests.cli.conftest import Ran


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("srve",), "did you mean 'llmx serve'"),
        (("explian",), "did you mean 'llmx explain'"),
        (("collect-env",), "use llmx doctor"),
        (("ls",), "use llmx list"),
        (("xyzzy",), "llmx --help"),
        (("serve", "--prot", "1"), "did you mean --port?"),
        (("serve", "--xyzzy"), "--help lists them"),
        (("serve", "--port"), "'--port' requires an argument"),
        (("complete", "The", "capital", "of", "France"), 'llmx complete "The capital of France"'),
        (("complete", "Hello", "big", "world"), 'llmx complete "Hello big world"'),
        (("complete", "gpt2"), 'llmx complete -q "gpt2"'),
        (("chat", "smollm2-135m-instrukt"), "did you mean 'smollm2-135m-instruct'"),
        (("chat", "smollm2-135m-instruct", "a b", "-q", "c"), "the text is given twice"),
        (("chat", "smollm2-135m-instruct", "a b", "--model", "other"), "the model is given twice"),
        (("explain", "smollm2-135m-instrukt", "--platform", "null"), "did you mean 'smollm2-135m-instruct'"),
        (("config", "show", "--config", "/no/such.yaml"), "/no/such.yaml"),
        (("bench", "serve", "--goodput", "fast:1"), "NAME:MS"),
        (("bench", "serve", "--request-rate", "0"), "above 0"),
        (("bench", "serve", "--dataset-name", "custom", "--model", "m", "--tokenizer", "smollm2-135m-instruct"), "--dataset-path FILE"),
        (("explain", "--device-memory", "much"), "a size such as 4G"),
    ],
)
def test_wrong_words_say_what_to_type(words: tuple[str, ...], says: str, llmx: Callable[..., Ran]) -> None:
    ran = llmx(*words)
    assert ran.code == 2 and ran.out == "", ran
    (line,) = ran.err.splitlines()
    assert line.startswith("error: ") and says in line and "Invalid value" not in line, line


def test_chat_and_complete_take_model_and_text(llmx: Callable[..., Ran]) -> None:
    rest = ("--platform", "null", "--max-tokens", "3", "--temperature", "0", "--num-blocks", "600")
    alone = llmx("complete", "Once upon a time", *rest)
    assert alone.code == 0 and alone.out.strip()
    assert llmx("complete", "smollm2-135m-instruct", "Once upon a time", *rest).out == alone.out
    assert llmx("complete", "-q", "Once upon a time", *rest).out == alone.out
    assert llmx("complete", "Once upon a time", "--model", "smollm2-135m-instruct", *rest).out == alone.out
    chat = llmx("chat", "Hello there", *rest)
    assert chat.code == 0 and chat.out.strip() and llmx("run", "smollm2-135m-instruct", "Hello there", *rest).out == chat.out


def test_help_names_every_command_once_and_the_exit_codes(llmx: Callable[..., Ran]) -> None:
    text = llmx("--help").out
    for section in COMMANDS.values():
        for name, (_, purpose) in section.items():
            assert f"  {name} " in text and purpose in text
            own = llmx(name, "--help")
            assert own.code == 0 and f"Usage: llmx {name}" in own.out
    assert "130 Ctrl-C" in text and llmx().out == text


def test_settings_have_their_sources(tmp_path: Path, llmx: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "llmx.yaml"
    file.write_text("threads: 2\nmax-num-seqs: 9\napi_key: [s3cret]\n")
    for name, value in (("LLMX_SEED", "5"), ("LLMX_THREADS", "7"), ("LLMX_CONFIG", str(file)), ("LLMX_CPU_ISA", "portable")):
        monkeypatch.setenv(name, value)
    ran = llmx("config", "show", "--json", "--max-num-seqs", "3")
    found = {one["option"]: (one["value"], one["source"]) for one in ran.json()}
    assert found["threads"] == (2, "file") and found["max_num_seqs"] == (3, "flag") and found["seed"] == (5, "env")
    assert found["port"] == (8000, "default") and found["LLMX_CPU_ISA"] == ("portable", "env")
    assert found["api_key"] == ("(hidden)", "file") and "s3cret" not in ran.out
    assert "threads" in llmx("config", "show", "--changed").out and "port " not in llmx("config", "show", "--changed").out


def test_nothing_changed_is_said(llmx: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLMX_CONFIG", raising=False)
    assert llmx("config", "show", "--changed").out == "every option has its default\n"


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("LLMX_MAX_MODL_LEN", "1", "did you mean LLMX_MAX_MODEL_LEN?"),
        ("LLMX_XYZZY", "1", "unset it"),
        ("LLMX_PORT", "tcp://10.0.0.1:80", "Kubernetes"),
        ("LLMX_PORT", "abc", "LLMX_PORT is 'abc'"),
        ("LLMX_PIPELINE_PARALLEL_SIZE", "2", "LLMX_PIPELINE_PARALLEL_SIZE is '2'"),
        ("LLMX_FULLY_SHARDED_LORAS", "1", "adapters are cut as their base matrices are"),
    ],
)
def test_variables_that_cannot_be_meant(variable: str, value: str, says: str, llmx: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    ran = llmx("config", "show")
    assert ran.code == 2 and says in ran.err, ran.err


def test_a_file_may_not_hold_unknown_or_doubled_names(tmp_path: Path, llmx: Callable[..., Ran]) -> None:
    file = tmp_path / "llmx.yaml"
    for text, says in (
        ("pipeline_parallel_size: 4\n", "start one server per device"),
        ("max_num_sex: 4\n", "'max_num_seqs'"),
        ("memory_fraction: 0.3\ngpu-memory-utilization: 0.4\n", "given twice"),
    ):
        file.write_text(text)
        ran = llmx("config", "show", "--config", str(file))
        assert ran.code == 2 and says in ran.err, ran.err
    file.write_text("enforce_eager: true\nseed: 3\n")
    assert llmx("config", "show", "--config", str(file)).code == 0


def test_completion_of_bash(tmp_path: Path) -> None:
    """The script that --show-completion prints completes commands and flags in a real bash."""
    bin_ = tmp_path / "llmx"
    bin_.write_text(f'#!/bin/sh\nexec {sys.executable} -m llmx "$@"\n')
    bin_.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SHELL": "/bin/bash", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = subprocess.run([str(bin_), "--show-completion", "bash"], capture_output=True, text=True, env=environ, timeout=120, check=True).stdout
    program = f"""{script}
        ask() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _llmx_completion llmx; echo "${{COMPREPLY[@]}}"; }}
        complete -p llmx; ask llmx e; ask llmx serve --max-model"""
    lines = subprocess.run(["bash", "-c", program], capture_output=True, text=True, env=environ, timeout=120, check=True).stdout.splitlines()
    assert "llmx" in lines[0] and lines[1:] == ["explain", "--max-model-len"]


def test_an_engine_that_cannot_start_leaves_no_traceback(llmx: Callable[..., Ran]) -> None:
    ran = llmx("explain", "/no/such.gguf", "--platform", "null", "--verbose")
    assert ran.code == 2 and "Traceback" in ran.err
    assert "Traceback" not in llmx("explain", "/no/such.gguf", "--platform", "null").err


def test_json_log_lines() -> None:
    import logging

    from llmx_cli.logs import _JsonFormatter

    try:
        raise ValueError("böse\nline")
    except ValueError:
        record = logging.LogRecord("llmx.server", logging.ERROR, "f.py", 1, "it %s", ("broke",), sys.exc_info())
    line = _JsonFormatter().format(record)
    found = json.loads(line)
    assert "\n" not in line and found["message"] == "it broke" and found["level"] == "error" and "böse" in found["exception"]


def test_a_server_logs_json_lines_only(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "llmx", "serve", "--platform", "null", "--num-blocks", "600", "--port", "0", "--log-format", "json", "--log-level", "info"]
    err = tmp_path / "err"
    with err.open("wb") as file, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        process.terminate()
        assert process.wait(60) == 0
    assert ready["message"] == "ready" and ready["url"].startswith("http://127.0.0.1:") and any(line.startswith("model: ") for line in ready["summary"])
    lines = [json.loads(line) for line in err.read_text().splitlines()]
    assert any("SIGTERM" in line["message"] for line in lines) and all(set(line) >= {"time", "level", "logger", "message"} for line in lines)


@pytest.mark.parametrize("command", ["chat", "complete"])
@pytest.mark.parametrize("option", ["--url", "--base-url"])
def test_a_server_is_named_in_both_ways(command: str, option: str, llmx: Callable[..., Ran]) -> None:
    ran = llmx(command, option, "http://127.0.0.1:1", "-q", "x")
    assert ran.code != 0 and "http://127.0.0.1:1/v1" in ran.err and "no such option" not in ran.err
