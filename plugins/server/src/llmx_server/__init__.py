"""The HTTP server of llmx: `create_app` makes the ASGI application, `serve` runs it, `bind` takes the port first.

Names are imported when used, so that `bind` costs nothing before the engine child has been started.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmx_server.app import create_app
    from llmx_server.lifecycle import serve
    from llmx_server.listen import bind

__all__ = ["bind", "create_app", "serve"]


def __getattr__(name: str) -> Any:
    homes = {"bind": "listen", "create_app": "app", "serve": "lifecycle"}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{homes[name]}"), name)
