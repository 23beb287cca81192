"""docs/embeddings.md has the table of body fields. After a change: python -m pytest tests/pooling/test_page.py --write-docs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from llmx_server.protocol.pooling_fields import POOLING_FIELDS
from llmx_server.protocol.pooling_routes import PoolingRoute

PAGE = Path(__file__).resolve().parents[2] / "docs/embeddings.md"
BEGIN, END = "<!-- fields: written by tests/pooling/test_page.py -->\n", "<!-- end of fields -->\n"
ROUTES = get_args(PoolingRoute)


def table() -> str:
    lines = ["| field | here | routes | what |", "|---|---|---|---|"]
    for field in POOLING_FIELDS:
        routes = "all" if set(field.routes) == set(ROUTES) else ", ".join(f"`{route}`" for route in field.routes)
        neutral = f" (taken without a word: {', '.join(f'`{json.dumps(value)}`' for value in field.neutral)})" if field.neutral else ""
        lines.append(f"| `{field.name}` | {field.state} | {routes} | {field.what}{neutral} |")
    return "\n" + "\n".join(lines) + "\n\n"


def test_the_page_has_the_table(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = before + BEGIN + table() + END + after
    if request.config.getoption("--write-docs"):
        PAGE.write_text(wanted, encoding="utf-8")
        page = wanted
    assert page == wanted


def test_each_field_stands_once_per_route() -> None:
    seen = [(route, field.name) for field in POOLING_FIELDS for route in field.routes]
    assert len(seen) == len(set(seen)) and all(field.what for field in POOLING_FIELDS)
