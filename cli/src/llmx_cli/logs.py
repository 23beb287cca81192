"""What `llmx serve` logs: lines for people, or one JSON object per line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

__all__ = ["configure", "json_line"]


def configure(level: str, form: str) -> None:
    """Logs of this process go to stderr in `form` (text or json)."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if form == "json" else logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level == "debug":
        logging.getLogger("grpc").setLevel(logging.INFO)  # several lines a call, about its own event loop


def json_line(level: str, logger: str, message: str, time: float | None = None, **more: Any) -> str:
    """One log entry. time: seconds of the epoch, now by default."""
    moment = datetime.now(UTC) if time is None else datetime.fromtimestamp(time, UTC)
    stamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"time": stamp, "level": level, "logger": logger, "message": message, **more}, ensure_ascii=False)


class _JsonFormatter(logging.Formatter):
    """Records as JSON objects; a traceback is one string."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        more = {"exception": self.formatException(record.exc_info)} if record.exc_info else {}
        return json_line(record.levelname.lower(), record.name, record.getMessage(), record.created, **more)
