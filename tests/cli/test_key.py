"""`llmx key`: the line that it writes, with limits and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llmx_server.keys import KeyRing
from llmx_server.limits import Limits
from tests.cli.conftest import Ran


def test_limits_are_written_and_read(llmx: Callable[..., Ran], tmp_path: Path) -> None:
    file = str(tmp_path / "keys")
    assert llmx("key", "plain", "--file", file).code == 0
    assert llmx("key", "web", "--scope", "generate", "--rpm", "60", "--tpm", "1000", "--file", file).code == 0
    ring = KeyRing((), file)
    plain, web = ring.named("plain"), ring.named("web")
    assert plain and web and (plain.limits, web.limits) == (Limits(), Limits(60, 1000))
    for words in (("--rpm", "0"), ("--tpm", "-1"), ("--tpm", "9" * 16)):
        assert llmx("key", "other", *words).code == 2, words
