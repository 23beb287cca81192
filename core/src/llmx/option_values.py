"""Values of options, from text or Python objects, by kind; by the same rules for flags, files, variables and keywords."""

from __future__ import annotations

import json
import os
from typing import Any

from llmx.errors import ConfigError
from llmx.options import Option, PluginOption

__all__ = ["convert", "size_in_bytes"]

_SUFFIXES = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}
_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "bytes": "a size such as 4G or 512Mi",
    "tokens": "a number such as 4096 or 8k",
    "json": 'a JSON object such as {"method": "ngram"} (in single quotes on a shell)',
}


def convert(option: Option, raw: Any, label: str) -> Any:
    """The value of an option. label: how the user wrote its name. Raises ConfigError that says what is expected."""
    try:
        value = _cast(option, raw)
    except (ValueError, TypeError, OverflowError):
        raise ConfigError(f"{label} is {raw!r}: it must be {_EXPECTED.get(option.kind, option.kind)}", field=option.name) from None
    value = dict(option.synonyms).get(value, value) if isinstance(value, str) else value
    if option.choices and value not in option.choices:
        raise ConfigError(f"{label} is {raw!r}: it must be one of {', '.join(option.choices)}", field=option.name)
    if isinstance(option, PluginOption):
        _check_range(option, value, label)
        return list(value) if isinstance(value, tuple) else value  # as it comes out of a message to the engine process
    return value


def _check_range(option: PluginOption, value: Any, label: str) -> None:
    low, high = option.minimum, option.maximum
    if (low is not None and value < low) or (high is not None and value > high):
        wanted = f"in {low:g}..{high:g}" if low is not None and high is not None else f"at least {low:g}" if low is not None else f"at most {high:g}"
        raise ConfigError(f"{label} is {value}: it must be {wanted}", field=option.name)


def size_in_bytes(raw: Any, label: str) -> int:
    """Bytes of a size such as 24G. Raises ConfigError."""
    size = convert(Option("size", "", "bytes", ""), raw, label)
    if size < 1:
        raise ConfigError(f"{label} is {raw!r}: it must be above 0", field=label)
    return int(size)


def _cast(option: Option, raw: Any) -> Any:
    if option.name == "kernel":
        return _kernels(raw)
    if option.name == "lora_modules":
        return _lora_modules(raw)
    if option.name == "lora_hub":
        return _lora_hub(raw)
    match option.kind:
        case "str":
            if not isinstance(raw, str | os.PathLike):
                raise TypeError
            return str(raw)
        case "int":
            return _number(raw, exact=True)
        case "bytes" | "tokens":
            return _number(raw)
        case "float":
            if isinstance(raw, bool):
                raise TypeError
            return float(raw)
        case "bool":
            return _truth(raw)
        case "list":
            return tuple(str(item) for item in ([raw] if isinstance(raw, str) else raw))
        case "json":
            return _object(raw)


def _number(raw: Any, *, exact: bool = False) -> int:
    if isinstance(raw, bool):
        raise TypeError
    if isinstance(raw, int) or exact:
        return int(raw)
    text = str(raw).strip().lower().removesuffix("b")
    digits = text.rstrip("kmgti")
    return int(float(digits) * _SUFFIXES[text[len(digits) :]]) if text[len(digits) :] in _SUFFIXES else int(text)


def _truth(raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    text = str(raw).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ValueError(raw)


def _object(raw: Any) -> dict[str, Any]:
    value = json.loads(raw) if isinstance(raw, str) else raw
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise TypeError
    return dict(value)


def _kernels(raw: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    items = [raw] if isinstance(raw, str) else list(raw)
    result = []
    for item in items:
        if isinstance(item, str):
            kind, equals, providers = item.partition("=")
            if not equals or not providers:
                raise ConfigError(f"--kernel is {item!r}: it must be KIND=PROVIDER[,PROVIDER], e.g. linear=native.portable", field="kernel")
            result.append((kind, tuple(providers.split(","))))
        else:
            result.append((item[0], tuple(item[1])))
    return tuple(result)


def _lora_hub(raw: Any) -> tuple[str, ...]:
    """Patterns of repositories, each ORG/NAME."""
    found = tuple(str(one) for one in ([raw] if isinstance(raw, str) else raw))
    for pattern in found:
        if pattern.count("/") != 1 or not all(pattern.split("/")):
            better = f"{pattern.strip('/').split('/')[0] or 'my-org'}/*"
            why = "it must be ORG/NAME, and * may stand for any text"
            raise ConfigError(f"--lora-hub is {pattern!r}, which names no repository: {why}; did you mean {better!r}?", field="lora_hub")
    return found


def _lora_modules(raw: Any) -> tuple[tuple[str, str], ...]:
    """(name, folder) pairs from name=folder, or from JSON objects with name and path."""
    found: dict[str, str] = {}
    for item in [raw] if isinstance(raw, str | dict) else list(raw):
        if isinstance(item, str) and not item.lstrip().startswith("{"):
            name, _, path = item.partition("=")
        elif isinstance(item, str | dict):
            given = _object(item)
            strange = next((key for key in given if key not in ("name", "path", "base_model_name")), None)
            if strange is not None:
                raise ConfigError(f"--lora-modules has {strange!r}: the keys are name, path and base_model_name", field="lora_modules")
            name, path = str(given.get("name") or ""), str(given.get("path") or "")
        else:
            name, path = item
        if not name or not path:
            raise ConfigError(f'--lora-modules is {item!r}: it must be NAME=FOLDER or {{"name": NAME, "path": FOLDER}}', field="lora_modules")
        if name in found:
            raise ConfigError(f"--lora-modules has {name!r} twice: give each adapter its own name", field="lora_modules")
        found[name] = path
    return tuple(found.items())
