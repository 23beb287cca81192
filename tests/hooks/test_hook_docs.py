"""Every hookspec has a caller in core or its server, a first-party implementation, a test with a fake vendor, and its signature in docs/hooks.md."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from llmx.hooks.specs import HookSpecs

ROOT = Path(__file__).resolve().parents[2]
HOOKS = [name for name in vars(HookSpecs) if name.startswith("llmx_")]


def _sources(*folders: str) -> str:
    return "\n".join(path.read_text() for folder in folders for path in sorted((ROOT / folder).rglob("*.py")) if path.name != "specs.py")


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_is_whole(hook: str) -> None:
    core, first_party = _sources("core/src", "plugins/server/src"), _sources("core/src", "platforms", "plugins", "examples")
    assert re.search(rf"hooks?\.{hook}\b|\"{hook}\"", core), f"{hook} has no caller in core or its server"
    assert re.search(rf"@hookimpl\s+def {hook}\(", first_party), f"{hook} has no first-party implementation"
    assert hook in _sources("tests/hooks"), f"{hook} has no test with a fake vendor"
    signature = str(inspect.signature(getattr(HookSpecs, hook))).replace("'", "")
    assert f"`{hook}{signature}`" in (ROOT / "docs/hooks.md").read_text(), f"docs/hooks.md lacks `{hook}{signature}`"


def test_docs_name_no_other_hook() -> None:
    documented = set(re.findall(r"#### `(llmx_\w+)\(", (ROOT / "docs/hooks.md").read_text()))
    assert documented == set(HOOKS)
