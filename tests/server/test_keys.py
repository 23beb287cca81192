"""Keys from a file: names, scopes, and what happens when the file changes or is broken."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from in_process import serving

from llmx.config import EngineConfig
from llmx.errors import ConfigError
from llmx_server import create_app
from llmx_server.keys import SCOPES, KeyRing, new_key
from llmx_server.scopes import scopes_of

pytestmark = pytest.mark.anyio


def write(file: Path, *lines: str) -> None:
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text("# keys\n\n" + "\n".join(lines) + "\n")
    os.utime(file, ns=(before + 10**9, before + 10**9))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_scopes(engine: FakeEngine, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    made = {scope: new_key(f"only-{scope}", (scope,)) for scope in SCOPES}
    write(file, *(line for _, line in made.values()))
    assert all(key not in file.read_text() for key, _ in made.values())
    async with serving(engine, api_key_file=str(file)) as client:
        text = {"prompt": "a", "max_tokens": 1}
        for scope, (key, _) in made.items():
            assert (await client.get("/v1/models", headers=bearer(key))).status_code == 200
            answer = await client.post("/v1/completions", json=text, headers=bearer(key))
            assert answer.status_code == (200 if scope == "generate" else 403)
            if scope != "generate":
                error = answer.json()["error"]
                assert error["code"] == "insufficient_scope" and f"'only-{scope}'" in error["message"] and "generate" in error["message"]
            assert (await client.post("/v1/embeddings", json={"input": "a"}, headers=bearer(key))).status_code != 401
            assert ((await client.post("/v1/embeddings", json={"input": "a"}, headers=bearer(key))).status_code == 403) == (scope != "embed")
            assert (await client.post("/a/route/of/tomorrow", headers=bearer(key))).status_code == (404 if scope == "admin" else 403)
        assert (await client.get("/v1/models", headers=bearer("llmx-wrong"))).status_code == 401
        seen = (await client.get("/metrics", headers=bearer(made["embed"][0]))).text
        assert 'reason="insufficient_scope"' in seen and 'reason="invalid_api_key"' in seen


async def test_the_file_is_read_again_and_a_broken_one_changes_nothing(engine: FakeEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    (first, first_line), (second, second_line) = new_key("first", ("generate",)), new_key("second", ("generate",))
    write(file, first_line)
    async with serving(engine, api_keys=("given",), api_key_file=str(file)) as client:

        async def status(key: str) -> int:
            return (await client.get("/v1/models", headers=bearer(key))).status_code

        assert [await status(key) for key in (first, second, "given")] == [200, 401, 200]
        write(file, second_line)
        assert [await status(key) for key in (first, second, "given")] == [401, 200, 200]
        write(file, second_line, "nonsense")
        assert [await status(key) for key in (first, second, "given")] == [401, 200, 200]
        assert "keys:4" in caplog.text and second not in caplog.text
        file.unlink()
        assert [await status(key) for key in (second, "given")] == [200, 200]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["name generate"], "NAME SCOPES SALT"),
        (["na/me generate " + "0" * 32 + "$" + "0" * 64], "is no name of a key"),
        (["name write " + "0" * 32 + "$" + "0" * 64], "no scope 'write': generate, embed, admin"),
        (["name generate 00$00"], "NAME SCOPES SALT"),
        (["a embed " + "0" * 32 + "$" + "0" * 64] * 2, "stands on two lines"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    write(tmp_path / "keys", *lines)
    with pytest.raises(ConfigError, match=re.escape(message)):
        KeyRing((), str(tmp_path / "keys"))


def test_a_file_that_is_not_there_and_words_that_the_file_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        KeyRing((), str(tmp_path / "none"))
    for name, scopes in (("a b", ("embed",)), ("a", ("root",)), ("a", ())):
        with pytest.raises(ConfigError):
            new_key(name, scopes)


def test_every_route_has_its_scope(engine: FakeEngine) -> None:
    """One that is in no list asks for admin: this says which do, so that a new route is put where it belongs."""
    paths = create_app(engine, EngineConfig()).openapi()["paths"]  # type: ignore[arg-type]
    assert len(paths) > 20
    admin = {path for path in paths if scopes_of(path) == {"admin"}} - {"/health", "/ready", "/version"}
    steering = {"/sleep", "/wake_up", "/is_sleeping", "/pause", "/resume", "/is_paused", "/reset_prefix_cache", "/start_profile", "/stop_profile"}
    steering |= {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}
    assert {path for path in admin if not path.startswith("/v1/admin/")} == steering
