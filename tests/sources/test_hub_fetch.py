"""Fetching from a hub: what is asked for, what is refused, what a break leaves, and that a cached model needs no socket."""

from __future__ import annotations

import errno
import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmx.errors import ModelError
from llmx.weights.hub import Hub, Transfer
from llmx.weights.hub_name import HubName
from tests.sources.conftest import SIDE, safetensors, sharded
from tests.sources.fake_hub import COMMIT, FakeHub, Repo

PLAIN = HubName("org/plain")
OTHER = "f" * 40


def test_only_what_a_model_needs_is_fetched(hub: Hub, hub_server: FakeHub) -> None:
    hub_server.repos["org/plain"].files |= {"pytorch_model.bin": b"x" * 9000, "onnx/model.onnx": b"x", "training_args.pt": b"x", "model-Q8_0.gguf": b"GGUF"}
    path = Path(hub.fetch(PLAIN))
    assert sorted(os.listdir(path)) == ["README.md", "config.json", "model.safetensors", "tokenizer.json"]
    assert all((path / file).read_bytes() == hub_server.repos["org/plain"].files[file] for file in os.listdir(path))
    assert path == hub.cache.folder / "models--org--plain" / "snapshots" / COMMIT
    assert not any(word in asked for word in ("bin", "onnx", "pt", "gguf", "harness") for asked in hub_server.paths() + hub_server.paths("HEAD"))


def test_the_layout_is_that_of_the_library(hub: Hub) -> None:
    """Other tools find the model, and llmx finds theirs."""
    from huggingface_hub import scan_cache_dir, try_to_load_from_cache

    path = Path(hub.fetch(PLAIN))
    assert try_to_load_from_cache("org/plain", "config.json", cache_dir=hub.cache.folder) == str(path / "config.json")
    scan = scan_cache_dir(hub.cache.folder)
    (repo,) = scan.repos
    assert not scan.warnings and repo.repo_id == "org/plain" and set(repo.refs) == {"main"} and repo.nb_files == 4


def test_what_the_library_fetched_is_found(hub: Hub, hub_server: FakeHub, no_network_after: Callable[[], list[Any]]) -> None:
    from huggingface_hub import hf_hub_download

    for file in hub_server.repos["org/plain"].files:
        hf_hub_download("org/plain", file, cache_dir=hub.cache.folder, endpoint=hub_server.url)
    opened = no_network_after()
    assert hub.ensure(PLAIN).endswith(COMMIT) and opened == []


@pytest.fixture
def no_network_after(request: pytest.FixtureRequest) -> Callable[[], list[Any]]:
    """Call it to cut the network off."""
    return lambda: request.getfixturevalue("no_network")


def test_sharded(hub: Hub, hub_server: FakeHub) -> None:
    hub_server.repos["org/big"] = Repo({**sharded(), "model-extra.safetensors": safetensors(seed=9)})
    path = hub.fetch(HubName("org/big"))
    assert sorted(file for file in os.listdir(path) if "safetensors" in file) == sorted(file for file in sharded() if "safetensors" in file)
    del hub_server.repos["org/big"].files["model-00002-of-00003.safetensors"]
    hub_server.repos["org/big"].refs["main"] = OTHER
    with pytest.raises(ModelError, match="org/big lacks model-00002-of-00003.safetensors, which its model.safetensors.index.json names"):
        hub.fetch(HubName("org/big"))


def test_a_sharded_model_without_all_shards_is_not_there(hub: Hub, hub_server: FakeHub) -> None:
    hub_server.repos["org/big"], name = Repo(sharded(), corrupt={"model-00002-of-00003.safetensors"}), HubName("org/big", COMMIT)
    with pytest.raises(ModelError, match="model-00002-of-00003.safetensors of org/big did not arrive"):
        hub.fetch(name)
    assert hub.cache.find(name) is None and hub.cache.models() == []
    with pytest.raises(ModelError, match=r"of its revision 0123456789ab only 5 files are in .*model-00002-of-00003.safetensors: this shard is missing"):
        replace(hub, offline=True).ensure(name)
    hub_server.repos["org/big"].corrupt.clear()
    assert hub.ensure(name)


@pytest.mark.parametrize("status", [401, 403])
def test_gated(hub: Hub, hub_server: FakeHub, status: int) -> None:
    hub_server.repos["org/plain"].gated = status
    wanted = rf"org/plain is gated \(status {status}\): accept its conditions at {hub_server.url}/org/plain with your account, then set HF_TOKEN"
    with pytest.raises(ModelError, match=wanted + " .or give --hf-token."):
        hub.fetch(PLAIN)
    with pytest.raises(ModelError, match="the token that was sent .--hf-token, LLMX_HF_TOKEN, HF_TOKEN.* may not read it") as caught:
        replace(hub, token="bad-secret").fetch(PLAIN)
    assert "bad-secret" not in str(caught.value)
    assert replace(hub, token="good").fetch(PLAIN).endswith(COMMIT)


def test_the_token_goes_to_the_hub_only(hub: Hub, hub_server: FakeHub) -> None:
    replace(hub, token="good").fetch(PLAIN)
    sent = {(one.host, one.authorization) for one in hub_server.seen}
    assert sent == {("hub", "Bearer good"), ("storage", None)}


def test_no_such_model(hub: Hub, hub_server: FakeHub) -> None:
    with pytest.raises(ModelError, match=rf"there is no model 'org/nothing' at {hub_server.url} \(status 404\), or it is private: check the name at"):
        hub.fetch(HubName("org/nothing"))
    with pytest.raises(ModelError, match="org/plain has no revision 'v9'"):
        hub.fetch(HubName("org/plain", "v9"))
    assert not hub.cache.folder.exists()


@pytest.mark.parametrize("revision", ["v1", "refs/pr/7", OTHER])
def test_revisions(hub: Hub, hub_server: FakeHub, revision: str) -> None:
    hub_server.repos["org/plain"].refs |= {"v1": OTHER, "refs/pr/7": OTHER}
    assert hub.fetch(HubName("org/plain", revision)).endswith(OTHER)
    assert hub.cache.find(HubName("org/plain", revision)) is not None and hub.cache.find(PLAIN) is None


def test_a_break_goes_on_in_the_same_run(hub: Hub, hub_server: FakeHub) -> None:
    data = safetensors(3 << 20)
    hub_server.repos["org/plain"] = Repo({**SIDE, "model.safetensors": data}, cut={"model.safetensors": len(data) // 2})
    path = hub.fetch(PLAIN)
    assert (Path(path) / "model.safetensors").read_bytes() == data
    assert [one.range for one in hub_server.seen if one.host == "storage"] == [None, f"bytes={1 << 20}-"]


def test_a_break_goes_on_in_the_next_run(hub: Hub, hub_server: FakeHub) -> None:
    data = safetensors(3 << 20)
    repo = hub_server.repos["org/plain"] = Repo({**SIDE, "model.safetensors": data}, cut={"model.safetensors": len(data) // 2})

    def break_storage(transfer: Transfer) -> None:
        if transfer.file == "model.safetensors" and transfer.done:
            hub_server.broken = 500

    with pytest.raises(ModelError, match="answers 500 for org/plain: try again later; what was fetched is kept"):
        hub.fetch(PLAIN, break_storage)
    assert not repo.cut and hub.cache.find(PLAIN) is None and hub.cache.commit(PLAIN) is None
    hub_server.broken = None
    hub_server.seen.clear()
    transfers: list[Transfer] = []
    path = hub.fetch(PLAIN, transfers.append)
    assert (Path(path) / "model.safetensors").read_bytes() == data
    assert [one.range for one in hub_server.seen if one.host == "storage"] == [f"bytes={1 << 20}-"]
    assert not any(one.path.endswith("config.json") for one in hub_server.seen), "what is here is not asked for again"
    assert next(one for one in transfers if one.file == "model.safetensors").resumed == 1 << 20
    assert transfers[-1].total_done == transfers[-1].total_size == sum(map(len, repo.files.values()))


def test_an_update_that_breaks_leaves_the_old_one_in_use(hub: Hub, hub_server: FakeHub) -> None:
    old = hub.fetch(PLAIN)
    repo = hub_server.repos["org/plain"]
    repo.refs["main"], repo.files["model.safetensors"] = OTHER, safetensors(seed=5)
    hub_server.broken = 503
    with pytest.raises(ModelError, match="answers 503"):
        hub.fetch(PLAIN)
    assert hub.ensure(PLAIN) == old
    hub_server.broken = None
    assert hub.fetch(PLAIN).endswith(OTHER)


def test_a_repository_that_was_renamed(hub: Hub, hub_server: FakeHub) -> None:
    hub_server.moved["old/name"] = "org/plain"
    path = Path(hub.fetch(HubName("old/name")))
    assert path.parent.parent.name == "models--old--name" and (path / "model.safetensors").read_bytes() == safetensors()


def test_two_at_once_fetch_each_file_once(hub: Hub, hub_server: FakeHub) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: hub.fetch(PLAIN), range(2))
    assert first == second and (Path(first) / "model.safetensors").read_bytes() == safetensors()
    assert len([one for one in hub_server.seen if one.host == "storage"]) == 1
    assert sorted(os.listdir(first)) == sorted(hub_server.repos["org/plain"].files)


def test_a_file_system_without_links(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **named: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuse)
    path = Path(hub.fetch(PLAIN))
    assert (path / "model.safetensors").read_bytes() == safetensors() and not (path / "model.safetensors").is_symlink()
    assert [str(model.name) for model in hub.cache.models()] == ["org/plain"]
    assert hub.cache.removal(HubName("org/plain"), every_revision=False).size > len(safetensors())


def test_no_telemetry(hub: Hub, hub_server: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The library would ask the hub which programs it may report about."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub_server.url)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", hub_server.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr("huggingface_hub.constants.AGENT_HARNESSES_PATH", str(tmp_path / "none.json"), raising=False)
    monkeypatch.setattr("huggingface_hub.utils._detect_agent._registry", None, raising=False)
    hub.fetch(PLAIN)
    assert all(path.startswith(("/api/models/org/plain/", "/org/plain/")) for path in hub_server.paths() + hub_server.paths("HEAD"))


def test_what_arrives_wrong_is_not_kept(hub: Hub, hub_server: FakeHub) -> None:
    hub_server.repos["org/plain"].corrupt.add("model.safetensors")
    with pytest.raises(ModelError, match="model.safetensors of org/plain did not arrive as the hub has it .sha256 differs.: it was deleted"):
        hub.fetch(PLAIN)
    assert not list(hub.cache.folder.rglob("*.incomplete"))
    hub_server.repos["org/plain"].corrupt.clear()
    assert hub.fetch(PLAIN)


def test_a_full_disk_is_seen_before_the_download(hub: Hub, hub_server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1 << 40, 0, 1000))
    with pytest.raises(ModelError, match=r"org/plain needs 8.\d KB \(8\d+ bytes\) more on .*cache, which has 1.0 KB \(1000 bytes\) free: free some space"):
        hub.fetch(PLAIN)
    assert hub_server.paths("HEAD") == [] and not hub.cache.folder.exists()


def test_space_is_counted_for_what_is_missing_only(hub: Hub, hub_server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update that changes a small file needs no room for weights that are here."""
    hub.fetch(PLAIN)
    repo = hub_server.repos["org/plain"]
    repo.refs["main"], repo.files["config.json"] = OTHER, b"{}"
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1 << 40, 0, (16 << 20) + 8000))
    assert hub.fetch(PLAIN).endswith(OTHER)
    repo.refs["main"], repo.files["model.safetensors"] = "e" * 40, safetensors(seed=3)
    with pytest.raises(ModelError, match="free some space"):
        hub.fetch(PLAIN)


def test_a_file_that_the_hub_does_not_send_over_http(hub: Hub, hub_server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmx.weights.hub._MAX_FILE", 8000)
    wanted = "model.safetensors has 8.3 KB, and above 8.0 KB the hub sends files by its Xet protocol only: fetch it with `hf download org/plain`"
    with pytest.raises(ModelError, match=wanted):
        hub.fetch(PLAIN)
    assert hub_server.paths("HEAD") == []


def test_a_disk_that_fills_while_it_downloads(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(transfer: Transfer) -> None:
        if transfer.done:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ModelError, match="the disk is full while org/plain is fetched: free some space and run the same command, which goes on from there"):
        hub.fetch(PLAIN, full)


def test_nobody_there(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the connection to http://127.0.0.1:9 fails .Connect(ion)?Error: .*the same command then goes on"):
        replace(hub, endpoint="http://127.0.0.1:9").fetch(PLAIN)


def test_a_cached_model_needs_no_socket(hub: Hub, no_network_after: Callable[[], list[Any]]) -> None:
    path = hub.fetch(PLAIN)
    opened = no_network_after()
    assert hub.ensure(PLAIN) == hub.find(PLAIN) == path and opened == []


def test_offline(hub: Hub, hub_server: FakeHub, monkeypatch: pytest.MonkeyPatch, no_network_after: Callable[[], list[Any]]) -> None:
    path = hub.fetch(PLAIN)
    opened = no_network_after()
    offline = replace(hub, offline=True)
    assert offline.ensure(PLAIN) == path
    with pytest.raises(ModelError, match=r"org/other is not on this machine: nothing of it is in .*llmx pull org/other \(but not here: --offline is set"):
        offline.ensure(HubName("org/other"))
    with pytest.raises(ModelError, match="revision 'v1' is not in .*, only main.*llmx pull org/plain@v1"):
        offline.ensure(HubName("org/plain", "v1"))
    with pytest.raises(ModelError, match="org/plain cannot be fetched: --offline is set"):
        offline.fetch(PLAIN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set"):
        hub.ensure(HubName("org/other"))
    (Path(path) / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="of its revision 0123456789ab only 3 files are in"):
        hub.ensure(PLAIN)
    assert opened == []


def test_pickled_weights_are_refused_before_anything_is_fetched(hub: Hub, hub_server: FakeHub) -> None:
    hub_server.repos["org/old"] = Repo({**SIDE, "pytorch_model.bin": b"x" * 9000})
    with pytest.raises(ModelError, match="org/old has its weights only as pickled files .pytorch_model.bin., which can run code .*safe_serialization=True"):
        hub.fetch(HubName("org/old"))
    assert hub_server.paths() == ["/api/models/org/old/revision/main"] and hub_server.paths("HEAD") == []


def test_one_gguf_file_of_several(hub: Hub, hub_server: FakeHub, gguf_file: Callable[..., bytes]) -> None:
    files = {"M-Q4_K_M.gguf": gguf_file(1), "M-Q8_0.gguf": gguf_file(2), "mmproj-M-f16.gguf": gguf_file(3), "README.md": b"---\nlicense: mit\n---\n"}
    hub_server.repos["org/M-GGUF"] = Repo(files)
    path = hub.fetch(HubName("org/M-GGUF", quant="q8_0"))
    assert path.endswith("M-Q8_0.gguf") and sorted(os.listdir(Path(path).parent)) == ["M-Q8_0.gguf", "README.md"]
    assert Path(path).read_bytes() == files["M-Q8_0.gguf"]
    with pytest.raises(ModelError, match="has 2 GGUF models: name one of them, e.g. org/M-GGUF:Q4_K_M; there are Q4_K_M, Q8_0"):
        hub.fetch(HubName("org/M-GGUF"))
    with pytest.raises(ModelError, match="org/M-GGUF has no 'Q4_K_S'; did you mean Q4_K_M.; there are Q4_K_M, Q8_0"):
        hub.fetch(HubName("org/M-GGUF", quant="Q4_K_S"))


def test_split_gguf(hub: Hub, hub_server: FakeHub, gguf_file: Callable[..., bytes]) -> None:
    parts = {f"Q8_0/M-Q8_0-{index:05d}-of-00002.gguf": gguf_file(index) for index in (1, 2)}
    hub_server.repos["org/M-GGUF"] = Repo({**parts, "M-Q4_0.gguf": gguf_file(3)})
    path = hub.fetch(HubName("org/M-GGUF", quant="Q8_0"))
    assert path.endswith("Q8_0/M-Q8_0-00001-of-00002.gguf") and len(os.listdir(Path(path).parent)) == 2
    del hub_server.repos["org/M-GGUF"].files["Q8_0/M-Q8_0-00002-of-00002.gguf"]
    with pytest.raises(ModelError, match="has 1 of the 2 parts of M-Q8_0.gguf"):
        hub.fetch(HubName("org/M-GGUF", quant="Q8_0"))


def test_names_that_leave_the_folder_are_not_taken(hub: Hub, hub_server: FakeHub, gguf_file: Callable[..., bytes]) -> None:
    hub_server.repos["org/evil"] = Repo({"../../../evil-Q8_0.gguf": gguf_file(1), "ok-Q4_0.gguf": gguf_file(2)})
    assert hub.fetch(HubName("org/evil")).endswith("ok-Q4_0.gguf")
    assert not list(hub.cache.folder.parent.glob("evil*"))


def test_a_tokenizer_alone(hub: Hub, hub_server: FakeHub) -> None:
    path = Path(hub.ensure(PLAIN, tokenizer=True))
    assert (path / "tokenizer.json").exists() and not (path / "model.safetensors").exists()
    assert hub.cache.find(PLAIN) is None and hub.cache.models() == []
    hub.ensure(PLAIN)
    assert (path / "model.safetensors").exists()
