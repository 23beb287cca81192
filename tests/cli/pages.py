"""docs/configuration.md and docs/from-vllm-flags.md, made of the tables of options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from llmx.config import EngineConfig
from llmx.foreign_options import FOREIGN, REFUSED
from llmx.hooks.types import EnvVar
from llmx.options import OPTIONS, Option, PluginOption

__all__ = ["PAGES", "configuration", "flags"]

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("configuration.md", "from-vllm-flags.md")

_TITLES = {"model": "Model", "cache": "KV cache", "scheduler": "Scheduler", "platform": "Platform and kernels", "server": "Server"}
_WRITTEN = "Written by `tests/cli`; after a deliberate change: `python -m pytest tests/cli --write-docs`."

_HEAD = f"""# Configuration

{_WRITTEN}

Every option has one name. It is a flag of `llmx serve` (`--max-model-len`), a line of a configuration file (`max_model_len`), an environment
variable (`LLMX_MAX_MODEL_LEN`) and a keyword of `llmx.LLM(...)`. What is given in several places is taken from the first of these:

1. the flag or keyword;
2. the file that `--config` or `LLMX_CONFIG` names;
3. the environment variable;
4. the default. "auto" is worked out from the model and the machine when the engine starts.

Nothing is ignored: an unknown name, a misspelt `LLMX_` variable and a wrong value each end with one line that says what was probably meant. `llmx config show`
prints every option with its value and its source; `llmx config show --changed` only what is not the default.

A file in YAML (or TOML):

```yaml
model: smollm2-135m-instruct
max_model_len: 4k
kv_cache_memory_bytes: 2G
api_key: [first-key, second-key]
port: 9000
```

Sizes take k, M, G, T (powers of 1,000) and Ki, Mi, Gi, Ti (powers of 1,024). A flag of a list may be given several times; its variable takes commas.
"""

_TAIL = """## Other variables

| variable | what |
|---|---|
| `LLMX_CONFIG` | configuration file, where no `--config` is given |
| `HF_TOKEN`, `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_HUB_OFFLINE` | of huggingface_hub, for models of the hub |
| `XDG_CACHE_HOME` | its folder `llmx` holds tokenizers that take long to build |
| `NO_COLOR` | no colours on the terminal |

## Exit codes

| code | meaning |
|---|---|
| 0 | done; for a server: ended by a signal, after what ran was answered |
| 1 | something failed while it ran; `llmx doctor`: something is wrong; `llmx bench serve`: a request failed |
| 2 | it did not start: an option, the model, the platform or a plugin is wrong, and the message says what to do |
| 130 | Ctrl-C |

Errors are one line; `--verbose` adds the traceback.

## Logs

`--log-level` says how much a server writes to stderr; `--log-format json` makes each line an object with `time`, `level`, `logger` and `message`, and the
summary at the start one more. Answers and tables go to stdout.

## Completion in the shell

`llmx --install-completion` sets it up for bash, zsh or fish; `llmx --show-completion` prints what it would add.
"""


def configuration(variables: Mapping[str, Iterable[EnvVar]], plugins: Iterable[PluginOption] = ()) -> str:
    """The page of options. variables: those of each platform, by its name. plugins: options of plugins."""
    parts = [_HEAD]
    for section, options in groupby(OPTIONS, key=lambda option: option.path.partition(".")[0]):
        parts.append(f"## {_TITLES.get(section, section.capitalize())}\n\n| option | default | what |\n|---|---|---|")
        parts[-1] += "".join("\n" + _row(option) for option in options) + "\n"
    for platform, own in variables.items():
        parts.append(f"## Variables of the platform {platform}\n\n| variable | default | what |\n|---|---|---|")
        parts[-1] += "".join(f"\n| `{one.name}` | {_code(one.default)} | {_cell(one.doc)} |" for one in dict.fromkeys(own)) + "\n"
    for plugin, own_options in groupby(plugins, key=lambda option: option.plugin):
        parts.append(f"## Options of the plugin {plugin}\n\nThey are there where `llmx-{plugin}` is installed.\n\n| option | default | what |\n|---|---|---|")
        parts[-1] += "".join("\n" + _row(option) for option in own_options) + "\n"
    return "\n".join((*parts, _TAIL))


def _row(option: Option) -> str:
    more = [f"one of {', '.join(option.choices)}"] if option.choices else []
    if option.aliases:
        more.append("also " + ", ".join(f"`--{alias.replace('_', '-')}`" for alias in option.aliases))
    if option.synonyms:
        more.append("; ".join(f"{other} means {value}" for other, value in option.synonyms))
    flags = [option.flag, *filter(None, [option.short])] + ([option.flag.replace("--", "--no-", 1)] if option.kind == "bool" else [])
    return f"| {', '.join(f'`{flag}`' for flag in flags)} | {_default(option)} | {_cell('; '.join((option.help, *more)))} |"


def _default(option: Option) -> str:
    section, _, name = option.path.partition(".")
    value: Any = option.default if isinstance(option, PluginOption) else getattr(getattr(EngineConfig(), section), name)
    if value is None:
        return "" if isinstance(option, PluginOption) else "auto"
    return _code(str(value).lower() if isinstance(value, bool) else "" if value in ((), {}) else str(value))


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<PLATFORM>", "PLATFORM")


_FLAGS_HEAD = f"""# Flags of `vllm serve`

{_WRITTEN}

A command line written for vLLM either means here what it meant there, or ends with a line that says why not and what to use. The flags users touch most are a
table of their own in `tests/cli/test_flags.py`. Python is on [its own page](from-vllm.md).

## The same

These work under the same name or the one in brackets; [configuration.md](configuration.md) says what each does. Values of `--max-model-len` and the like take
suffixes as there (`32k`, `1M`). `--dtype` takes auto and float32: weights are computed as they are stored. `--gpu-memory-utilization` is a share of the
free memory, for the KV cache alone. Give `--api-key` and `--served-model-name` once per value.

"""


def flags() -> str:
    """The page of another engine's flags."""
    same = [f"`--{name.replace('_', '-')}`" + ("" if name == option.name else f" (`{option.flag}`)") for option in OPTIONS for name in _there(option)]
    lines = [_FLAGS_HEAD + ", ".join(same) + ".\n", "## Taken with these values\n", "They say what llmx does anyway.\n"]
    lines += ["| flag | values | any other |", "|---|---|---|"]
    for option in FOREIGN:
        accepted = "counts of 0" if option.kind == "counts" else ", ".join(_code(value) or "empty" for value in option.accepts)
        lines.append(f"| `{option.flag}`{f', `{option.short}`' if option.short else ''} | {accepted} | {_cell(option.why)} |")
    lines += ["", "## Refused\n", "| flags | why, and what to use |", "|---|---|"]
    reasons: dict[str, list[str]] = {}
    for name, why in REFUSED.items():
        reasons.setdefault(why, []).append(f"`--{name.replace('_', '-')}`")
    lines += [f"| {', '.join(names)} | {_cell(why)} |" for why, names in reasons.items()]
    return "\n".join(lines) + "\n"


def _there(option: Option) -> tuple[str, ...]:
    """Names that the option has there: its aliases and its own, where both exist."""
    return option.aliases if option.name in _OWN_NAMES else (option.name, *option.aliases)


_OWN_NAMES = {
    *("memory_fraction", "num_blocks", "drain_timeout", "offline", "cache_dir", "interactive", "platform", "device", "threads", "kernel", "disable_kernel"),
    *("allow_plugin", "deny_plugin", "structured_outputs_backend", "grammar_timeout", "log_format", "queue_timeout", "step_timeout", "request_timeout"),
    *("reader_timeout", "response_store_bytes", "response_max_age", "grpc_max_message_bytes", "files_dir", "files_max_bytes", "log_stats_interval"),
}
