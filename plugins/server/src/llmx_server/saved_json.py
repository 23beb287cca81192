"""Files of JSON that outlive a crash."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from llmx_server.frames import encode

__all__ = ["save_json"]


def save_json(path: Path, value: dict[str, Any]) -> None:
    """Write a file so that it is the old or the new one, whenever the machine stops."""
    beside = path.with_suffix(".new")
    with beside.open("wb") as file:
        file.write(encode(value))
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
