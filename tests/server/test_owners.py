"""What is kept belongs to the key that made it: files, batches and responses, for two users, an admin, and a server without keys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from in_process import serving
from processes import HANG_S

from llmx_server.caller import Caller
from llmx_server.keys import SCOPES, KeyRing, new_key

pytestmark = pytest.mark.anyio
USER = ("generate", "embed")


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    """name -> key; their file is tmp_path/keys."""
    made = {name: new_key(name, SCOPES if name == "root" else USER) for name in ("ann", "ben", "root")}
    (tmp_path / "keys").write_text("\n".join(line for _, line in made.values()) + "\n")
    return {name: key for name, (key, _) in made.items()}


@asynccontextmanager
async def kept(engine: FakeEngine, folder: Path, *, keyed: bool = True, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    engine.info.max_model_len = 4096
    asked = {"api_key_file": str(folder / "keys")} if keyed else {}
    async with serving(engine, files_dir=str(folder / "kept"), **asked, **options) as client:
        batches = client.app.state.batches  # type: ignore[attr-defined]
        batches.start()
        try:
            yield client
        finally:
            await batches.close()


async def call(client: httpx.AsyncClient, key: str | None, method: str, path: str, **fields: Any) -> httpx.Response:
    return await client.request(method, path, headers={"authorization": f"Bearer {key}"} if key else {}, **fields)


async def upload(client: httpx.AsyncClient, key: str | None, *bodies: dict[str, Any], url: str = "/v1/responses") -> str:
    lines = [json.dumps({"custom_id": f"r{at}", "method": "POST", "url": url, "body": body}) for at, body in enumerate(bodies)]
    answer = await call(client, key, "POST", "/v1/files", files={"file": ("in.jsonl", "\n".join(lines).encode())}, data={"purpose": "batch"})
    assert answer.status_code == 200 and "owner" not in answer.json(), answer.text
    return str(answer.json()["id"])


async def ran(client: httpx.AsyncClient, key: str | None, file: str, url: str = "/v1/responses") -> dict[str, Any]:
    """The batch of a file, once it has ended."""
    answer = await call(client, key, "POST", "/v1/batches", json={"input_file_id": file, "endpoint": url, "completion_window": "24h"})
    assert answer.status_code == 200 and "owner" not in answer.json(), answer.text
    for _ in range(HANG_S * 50):
        batch = (await call(client, key, "GET", f"/v1/batches/{answer.json()['id']}")).json()
        if batch["status"] == "completed":
            return dict(batch)
        await asyncio.sleep(0.01)
    raise AssertionError(batch)


async def listed(client: httpx.AsyncClient, key: str | None, path: str) -> set[str]:
    found = (await call(client, key, "GET", path)).json()["data"]
    assert not any("owner" in one for one in found)
    return {one["id"] for one in found}


async def test_files_and_batches_of_one_key_are_not_there_for_another(engine: FakeEngine, keys: dict[str, str], tmp_path: Path) -> None:
    async with kept(engine, tmp_path) as client:
        file = await upload(client, keys["ann"], {"input": "hi"})
        batch = await ran(client, keys["ann"], file)
        output, name = batch["output_file_id"], batch["id"]
        for method, path in [
            *((method, f"/v1/files/{one}{end}") for one in (file, output) for method, end in (("GET", ""), ("GET", "/content"), ("DELETE", ""))),
            ("GET", f"/v1/batches/{name}"),
            ("POST", f"/v1/batches/{name}/cancel"),
        ]:
            answer = await call(client, keys["ben"], method, path)
            nothing = await call(client, keys["ben"], method, path.replace(file, "file-x").replace(output, "file-x").replace(name, "batch_x"))
            assert answer.status_code == nothing.status_code == 404, path
            assert {**answer.json()["error"], "message": ""} == {**nothing.json()["error"], "message": ""}, path  # nothing tells that it exists
        body = {"input_file_id": file, "endpoint": "/v1/responses", "completion_window": "24h"}
        refused = await call(client, keys["ben"], "POST", "/v1/batches", json=body)
        assert refused.status_code == 404 and refused.json()["error"]["param"] == "input_file_id"
        after = await call(client, keys["ben"], "GET", f"/v1/files?after={file}")
        assert after.status_code == 400 and "no item" in after.text
        mine = await upload(client, keys["ben"], {"input": "ho"})
        for path, anns, bens in (("/v1/files", {file, output}, {mine}), ("/v1/batches", {name}, set())):
            assert (await listed(client, keys["ann"], path), await listed(client, keys["ben"], path)) == (anns, bens)
            assert await listed(client, keys["root"], path) == anns | bens
        assert (await call(client, keys["root"], "GET", f"/v1/files/{output}/content")).status_code == 200
        assert (await call(client, keys["ann"], "DELETE", f"/v1/files/{file}")).status_code == 200


async def test_responses_belong_to_their_key(engine: FakeEngine, keys: dict[str, str], tmp_path: Path) -> None:
    async with kept(engine, tmp_path) as client:
        made = [await call(client, keys["ann"], "POST", "/v1/responses", json={"input": "hi", **more}) for more in ({}, {"background": True})]
        for name in (one.json()["id"] for one in made):
            for method, path in (("GET", ""), ("GET", "/input_items"), ("GET", "?stream=true"), ("POST", "/cancel"), ("DELETE", "")):
                assert (await call(client, keys["ben"], method, f"/v1/responses/{name}{path}")).status_code == 404, path
            for path in ("/v1/responses", "/v1/responses/input_tokens"):
                refused = await call(client, keys["ben"], "POST", path, json={"input": "what did I say?", "previous_response_id": name})
                assert refused.status_code == 404 and refused.json()["error"]["param"] == "previous_response_id"
            assert [(await call(client, keys[who], "GET", f"/v1/responses/{name}")).status_code for who in ("ann", "root")] == [200, 200]
        # an id that a client chooses does not tell whether another has chosen it, and does not give the other's response
        same = {who: (await call(client, keys[who], "POST", "/v1/responses", json={"input": who, "request_id": "mine"})).json() for who in ("ann", "ben")}
        assert same["ann"]["id"] == same["ben"]["id"] == "resp_mine"
        for who in ("ann", "ben"):
            items = (await call(client, keys[who], "GET", "/v1/responses/resp_mine/input_items")).json()["data"]
            assert items[0]["content"][0]["text"] == who
        assert (await call(client, keys["ben"], "DELETE", "/v1/responses/resp_mine")).status_code == 200
        assert (await call(client, keys["ann"], "GET", "/v1/responses/resp_mine")).status_code == 200
        twice = await call(client, keys["ann"], "POST", "/v1/responses", json={"input": "again", "request_id": "mine"})
        assert twice.status_code == 400 and twice.json()["error"]["param"] == "request_id"


@pytest.mark.parametrize(("who", "status"), [("ann", 200), ("ben", 404), ("root", 404)])
async def test_a_line_of_a_batch_reads_its_owners_responses_only(engine: FakeEngine, keys: dict[str, str], tmp_path: Path, who: str, status: int) -> None:
    async with kept(engine, tmp_path) as client:
        first = (await call(client, keys["ann"], "POST", "/v1/responses", json={"input": "my secret"})).json()["id"]
        file = await upload(client, keys[who], {"input": "what did I say?", "previous_response_id": first})
        await ran(client, keys["ben"], await upload(client, keys["ben"], {"input": "x"}))  # whoever wakes the queue lends it no rights
        batch = await ran(client, keys[who], file)
        text = (await call(client, keys[who], "GET", f"/v1/files/{batch['output_file_id' if status == 200 else 'error_file_id']}/content")).text
        response = json.loads(text)["response"]
        assert response["status_code"] == status
        if status == 200:  # and what it makes is the owner's
            seen = [(await call(client, keys[name], "GET", f"/v1/responses/{response['body']['id']}")).status_code for name in ("ann", "ben", "root")]
            assert seen == [200, 404, 200]


async def test_what_was_made_without_keys_is_for_admins_once_there_are_keys(engine: FakeEngine, keys: dict[str, str], tmp_path: Path) -> None:
    async with kept(engine, tmp_path, keyed=False) as client:
        first = (await call(client, None, "POST", "/v1/responses", json={"input": "hi"})).json()["id"]
        file = await upload(client, None, {"input": "again", "previous_response_id": first})
        batch = await ran(client, None, file)
        assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
    described = tmp_path / "kept" / "files" / f"{file}.json"
    described.write_text(json.dumps({name: value for name, value in json.loads(described.read_text()).items() if name != "owner"}))  # as older versions wrote
    async with kept(engine, tmp_path) as client:
        assert await listed(client, keys["ann"], "/v1/files") == await listed(client, keys["ann"], "/v1/batches") == set()
        assert await listed(client, keys["root"], "/v1/files") == {file, batch["output_file_id"]}
        assert (await call(client, keys["ann"], "GET", f"/v1/files/{file}/content")).status_code == 404
        mine = await upload(client, keys["ann"], {"input": "hi"})
    async with kept(engine, tmp_path, keyed=False) as client:
        assert await listed(client, None, "/v1/files") == {file, batch["output_file_id"], mine}


def test_names_of_keys_that_own(tmp_path: Path) -> None:
    ring = KeyRing(("one", "two"))
    names = [found.name for key in (b"one", b"two") if (found := ring.find(key))]
    assert len(set(names)) == 2
    with pytest.raises(Exception, match="is no name of a key"):  # so that no key of a file can be taken for one of these
        new_key(names[0], USER)
    assert not Caller("", admin=False).sees("") and Caller().sees("ann") and Caller("ann", admin=False).sees("ann")
