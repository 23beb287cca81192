"""--cache-salt-per-key: no key finds what another has asked in the prefix cache, on any door."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from processes import HANG_S, llmx, serve, until
from tests.cases.echo import install

from llmx.config import EngineConfig, ServerConfig
from llmx.errors import ConfigError
from llmx_server import create_app
from llmx_server.caller import Caller
from llmx_server.callers import Callers
from llmx_server.keys import KeyRing, new_key

PROMPT = "the same long prompt of everybody " * 4
BOTH = ("generate", "embed")


def test_a_salt_is_of_one_key_and_cannot_be_asked_for(tmp_path: Path) -> None:
    made = {name: new_key(name, BOTH) for name in ("ann", "ben")}
    (tmp_path / "keys").write_text("".join(f"{line}\n" for _, line in made.values()))
    ring = KeyRing((), str(tmp_path / "keys"))
    callers = Callers(ring, salted=True)
    ann, ben = (callers.of(found) for key, _ in made.values() if (found := ring.find(key.encode())))
    assert ann.salted("") and ann.salted("x") != ann.salted("") and ann.salt not in made["ann"][0]
    assert len({ann.salted(""), ben.salted(""), ann.salted(ben.salted("")), ben.salted(ann.salted(""))}) == 4
    assert callers.owner("ann").salted("x") == ann.salted("x")  # in its batches, too
    assert callers.owner("gone").salted("") not in ("", ann.salted(""), ben.salted(""))
    assert Caller().salted("x") == Callers(ring).owner("ann").salted("x") == "x"


def test_it_needs_keys() -> None:
    with pytest.raises(ConfigError, match="--api-key-file"):
        create_app(FakeEngine(), EngineConfig(server=ServerConfig(cache_salt_per_key=True)))  # type: ignore[arg-type]


@pytest.mark.parametrize("on", [True, False])
def test_hits_within_a_key_and_none_across(tmp_path: Path, on: bool) -> None:
    file = str(tmp_path / "keys")
    keys = {name: llmx("key", name, "--file", file).stdout.split()[1] for name in ("ann", "ben")}
    options = ("--platform", "echo", "--max-model-len", "256", "--num-blocks", "200", "--api-key-file", file, "--files-dir", str(tmp_path / "files"))
    with serve("smollm2-135m-instruct", *options, *(["--cache-salt-per-key"] if on else []), environ=install(tmp_path)) as running:

        def post(who: str, path: str, **fields: Any) -> Any:
            answer = httpx.post(running.url + path, headers={"authorization": f"Bearer {keys[who]}"}, timeout=HANG_S, **fields)
            assert answer.status_code == 200, answer.text
            return answer.json()

        def cached(who: str, path: str = "/v1/completions", **more: Any) -> int:
            body = {"prompt": PROMPT} if path == "/v1/completions" else {"messages": [{"role": "user", "content": PROMPT}]}
            usage = post(who, path, json={**body, "max_tokens": 2, **more})["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        assert cached("ann") == 0
        full = cached("ann")
        assert full > 0 and cached("ben") == (0 if on else full) and cached("ben") == full
        assert cached("ann", cache_salt="x") == 0 and cached("ben", cache_salt="x") == (0 if on else full) and cached("ann", cache_salt="x") == full
        assert cached("ann", "/v1/chat/completions") == 0 and (cached("ben", "/v1/chat/completions") == 0) == on
        line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": PROMPT, "max_tokens": 2}}
        upload = post("ann", "/v1/files", files={"file": ("in.jsonl", json.dumps(line).encode())}, data={"purpose": "batch"})
        batch = post("ann", "/v1/batches", json={"input_file_id": upload["id"], "endpoint": line["url"], "completion_window": "24h"})

        def get(path: str) -> httpx.Response:
            return httpx.get(running.url + path, headers={"authorization": f"Bearer {keys['ann']}"}, timeout=HANG_S)

        until(lambda: get(f"/v1/batches/{batch['id']}").json()["status"] == "completed")
        assert get(f"/v1/batches/{batch['id']}").json()["usage"]["input_tokens_details"]["cached_tokens"] == full
