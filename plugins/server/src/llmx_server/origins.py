"""Origins: which pages of other servers a browser lets ask this one (CORS)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmx.errors import ConfigError

if TYPE_CHECKING:
    from starlette.applications import Starlette

__all__ = ["allow_origins", "read_origins"]

_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#@\s,]+)")
_PORTS = {"http": ":80", "https": ":443"}
_MAX_AGE_S = 600  # that a browser may keep the answer to a preflight request


def read_origins(given: Sequence[str]) -> tuple[str, ...]:
    """Origins as browsers send them: lower case, without the port that the scheme has anyway. "*" is every page. Raises ConfigError for what is none."""
    return tuple("*" if origin == "*" else _read(origin) for origin in given)


def allow_origins(app: Starlette, origins: Sequence[str]) -> None:
    """Answer pages of these origins; none: nothing changes. Keys come in headers and never as cookies, so credentials are not allowed."""
    if not origins:
        return
    from starlette.middleware.cors import CORSMiddleware  # few need it

    every = ["*"]
    app.add_middleware(CORSMiddleware, allow_origins=read_origins(origins), allow_methods=every, allow_headers=every, expose_headers=every, max_age=_MAX_AGE_S)


def _read(origin: str) -> str:
    found = _ORIGIN.fullmatch(origin.strip().lower().removesuffix("/"))
    if found is None:
        wanted = "it must be * or a scheme, a host and maybe a port, as in https://example.com:8443; give --allowed-origins once for each"
        raise ConfigError(f"allowed_origins has {origin[:80]!r}: {wanted}", field="allowed_origins")
    scheme, host = found.groups()
    return f"{scheme}://{host.removesuffix(_PORTS.get(scheme, ''))}"
