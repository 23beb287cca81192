"""The command line: options, errors and exit codes, and every command on the null platform or against a small server."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import llmx
from test_process import server

from llmx.options import OPTIONS
from llmx_cli.options import Settings

ENGINE_COMMANDS = (("serve",), ("chat",), ("complete",), ("explain",), ("bench", "throughput"))
WIDE = {"COLUMNS": "300"}


@pytest.mark.parametrize("command", ENGINE_COMMANDS)
def test_every_engine_option_is_there_once(command: tuple[str, ...]) -> None:
    text = llmx(*command, "--help", environ=WIDE).stdout
    for option in OPTIONS:
        expected = 1 if command == ("serve",) or not option.server else 0
        if option.name == "api_key" and command in (("chat",), ("complete",)):
            expected = 1  # their own: the key of the server that --url names
        assert len(re.findall(rf"(?<![\w-]){option.flag}(?![\w-])", text)) == expected, option.flag
    assert "--config" in text and "--verbose" in text


def test_help_imports_nothing_heavy_and_is_quick() -> None:
    code = "import sys; from llmx_cli.main import run; run(['--help']); print(sorted({'numpy', 'zmq', 'starlette', 'tokenizers', 'jinja2'} & set(sys.modules)))"
    start = time.monotonic()
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"
    assert time.monotonic() - start < 4  # ten times the limit of 0.4 s


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("serv",), 2, "'llmx serve'"),
        (("serve", "--prot", "1"), 2, "--port"),
        (("serve", "--port", "x"), 2, "--port is 'x'"),
        (("serve", "--port", "70000"), 2, "0..65535"),
        (("serve", "--dtype", "int3"), 2, "auto, float32"),
        (("serve", "--kernel", "linear"), 2, "KIND=PROVIDER"),
        (("serve", "a", "--model", "b"), 2, "given twice"),
        (("serve", "--config", "/no/such.yaml"), 2, "/no/such.yaml"),
        (("serve", "/no/such.gguf", "--platform", "null", "--port", "0"), 2, "/no/such.gguf"),
        (("explain", "/no/such.gguf", "--platform", "null"), 2, "/no/such.gguf"),
        (("explain", "--platform", "nope"), 2, "'nope' is not installed"),
        (("serve", "--platform", "nope", "--port", "0"), 2, "'nope' is not installed"),
        (("chat", "--platform", "nope", "-q", "x"), 2, "'nope' is not installed"),
        (("chat", "--url", "http://127.0.0.1:1", "-q", "x"), 1, "cannot be reached"),
        (("bench", "throughput", "--num-prompts", "0"), 2, "--num-prompts"),
    ],
)
def test_errors_are_one_line_with_an_exit_code(arguments: tuple[str, ...], code: int, says: str) -> None:
    result = llmx(*arguments)
    assert result.returncode == code, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ") and says in line and result.stdout == ""


def test_verbose_adds_the_traceback() -> None:
    result = llmx("explain", "/no/such.gguf", "--platform", "null", "--verbose")
    assert result.returncode == 2 and "Traceback" in result.stderr and "ModelError" in result.stderr


def test_no_command_shows_help_and_version_is_known() -> None:
    assert "serve" in llmx().stdout and llmx().returncode == 0
    for arguments in (("version",), ("--version",)):
        assert llmx(*arguments).stdout.startswith("llmx 0.1.0\n")


def test_settings_from_command_line_file_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "llmx.yaml"
    file.write_text("max-num-seqs: 7\nthreads: 3\nmodel: from-file\nkernel: ['linear=a,b']\n")
    monkeypatch.setenv("LLMX_THREADS", "5")
    monkeypatch.setenv("LLMX_MAX_MODEL_LEN", "2k")
    settings = Settings({"model": "from-line", "kv_cache_memory_bytes": "1Mi"}, str(file))
    sizes = {"max_num_seqs": 7, "threads": 3, "max_model_len": 2000, "kv_cache_memory_bytes": 1 << 20}
    expected = {"model": "from-line", "kernel": (("linear", ("a", "b")),), **sizes}
    assert settings.merged() == expected
    again = Settings(settings.merged()).merged()  # what LLM(**merged) resolves to is the same
    assert again == expected


def test_config_file_with_an_unknown_name(tmp_path: Path) -> None:
    file = tmp_path / "llmx.toml"
    file.write_text("max_num_sex = 7\n")
    result = llmx("serve", "--config", str(file))
    assert result.returncode == 2 and "'max_num_seqs'" in result.stderr


def test_platforms_shows_the_choice() -> None:
    result = llmx("platforms", "--platform", "null")
    assert result.returncode == 0 and re.search(r"^null +llmx-core +yes +\* +\S", result.stdout, re.MULTILINE)
    assert llmx("platforms", "--platform", "nope").returncode == 2


def test_explain_names_a_kernel_for_every_op() -> None:
    text = llmx("explain", "--platform", "null", "--device-memory", "4G").stdout
    assert re.search(r"linear 576x1536 q4_1 +null +null/1", text) and "embed" in text
    data = json.loads(llmx("explain", "--platform", "null", "--json").stdout)
    assert data["platform"] == "null" and data["plan"]["hash"]
    covered = sum(len(row["op"].split("; ")) for row in data["rows"])
    assert covered == len(data["rows"]) > 300
    program = llmx("explain", "--platform", "null", "--device-memory", "4G", "--program").stdout
    assert program.startswith(text) and len(program.splitlines()) > len(text.splitlines()) + 300


def test_explain_into_a_closed_pipe() -> None:
    command = f"set -o pipefail; {sys.executable} -m llmx explain --platform null --program | head -1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert result.stderr == "" and result.returncode in (0, 1) and len(result.stdout.splitlines()) == 1


def test_no_colour_codes_in_a_pipe_nor_with_no_color() -> None:
    for environ in ({}, {"NO_COLOR": "1"}):
        for arguments in (("explain", "--platform", "null"), ("--help",)):
            assert "\x1b[" not in llmx(*arguments, environ=environ).stdout


def test_bench_throughput() -> None:
    sizes = ("--num-prompts", "3", "--input-len", "5", "--output-len", "7", "--platform", "null")
    result = json.loads(llmx("bench", "throughput", *sizes, "--json").stdout)
    assert result["num_requests"] == 3 and result["total_num_tokens"] == 3 * (5 + 7)
    assert result["output_tokens_per_second"] == pytest.approx(21 / result["elapsed_time"])
    assert "tokens/s" in llmx("bench", "throughput", *sizes).stdout


def test_chat_in_process() -> None:
    one = llmx("chat", "--platform", "null", "-q", "hi", "--max-tokens", "4")
    assert one.returncode == 0 and one.stdout.strip() and one.stderr == ""
    lines = "hi\n\n/what\n/reset\nhi\n/quit\nnever\n"
    out = llmx("chat", "--platform", "null", "--max-tokens", "4", "--temperature", "0", stdin=lines).stdout.splitlines()
    first, unknown, reset, second = out
    assert first == second and unknown.startswith("/what is no command") and "starts again" in reset
    assert llmx("complete", "--platform", "null", "--max-tokens", "4", "-q", "x").stdout.strip()


def test_chat_and_complete_with_a_server() -> None:
    with server(tokens=5) as (url, _):
        for base in (url, f"{url}/v1/"):
            assert llmx("chat", "--url", base, "-q", "hi").stdout == "xxxxx\n"
        assert llmx("complete", "--url", url, "--max-tokens", "3", stdin="a\nb\n").stdout == "xxx\nxxx\n"
        bad = llmx("chat", "nope", "--url", url, "-q", "hi")
        assert bad.returncode == 1 and "404" in bad.stderr and "fake-model" in bad.stderr
        refused = llmx("chat", "--url", url, "--temperature", "9", stdin="hi\n/quit\n")
        assert refused.returncode == 0 and "temperature is 9" in refused.stderr  # the conversation goes on


def test_port_in_use_is_told_before_anything_loads() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = llmx("serve", "--platform", "null", "--port", str(port))
    assert result.returncode == 2 and result.stderr == f"error: port {port} on 127.0.0.1 is in use by another process: stop it or choose another with --port\n"
