"""Small JSON files of a model directory: config.json, generation_config.json, tokenizer_config.json, ..."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llmx.errors import ModelError

__all__ = ["read_json", "read_json_object"]


def read_json(path: Path) -> Any:
    """The JSON value in a file. Raises ModelError naming the file when there is none."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror or error}", path=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"is not JSON: {error}", path=str(path)) from error


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ModelError naming the file when there is none."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise ModelError(f"holds a JSON {type(value).__name__}, an object is needed", path=str(path))
    return value
