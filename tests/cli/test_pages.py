"""docs/configuration.md and docs/from-vllm-flags.md say what the tables of options say.

After a deliberate change: python -m pytest tests/cli --write-docs
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from llmx.config import PlatformConfig
from llmx.hooks.loader import PluginLoader
from llmx.options import OPTIONS
from llmx.resolve import plugin_options, resolve
from tests.cli.conftest import Ran
from tests.cli.pages import DOCS, configuration, flags


def _variables(platform: str) -> list[object]:
    return [one for found in PluginLoader.discover(PlatformConfig()).activate(platform).hook.llmx_env_vars() for one in found]


@pytest.mark.parametrize("page", ["configuration.md", "from-vllm-flags.md"])
def test_pages_are_what_the_tables_say(page: str, request: pytest.FixtureRequest) -> None:
    text = configuration({"cpu": _variables("cpu")}, plugin_options({"allow_plugin": ["otel"]}, environ={})) if page == "configuration.md" else flags()
    if request.config.getoption("--write-docs"):
        (DOCS / page).write_text(text)
    assert (DOCS / page).read_text() == text, "run: python -m pytest tests/cli --write-docs"


def test_every_option_is_on_the_page_and_the_example_is_valid(tmp_path: Path) -> None:
    text = (DOCS / "configuration.md").read_text()
    assert [option.flag for option in OPTIONS if f"`{option.flag}`" not in text] == []
    example = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert example is not None
    file = tmp_path / "llmx.yaml"
    file.write_text(example[1])
    _, changes = resolve({}, environ={}, config_file=str(file))
    assert len(changes) == len(yaml.safe_load(example[1])) and {change.source for change in changes} == {"file"}


def test_exit_codes_on_the_page(llmx: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "configuration.md").read_text()
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}

    def interrupt() -> None:
        raise KeyboardInterrupt

    found = {llmx("version").code, llmx("chat", "--url", "http://127.0.0.1:1", "-q", "x").code, llmx("serve", "--port", "x").code}
    monkeypatch.setattr("llmx_cli.version.version", interrupt)
    assert found | {llmx("version").code} == codes == {0, 1, 2, 130}
