"""Lists as OpenAI pages them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmx.errors import RequestError
from llmx_server.body import shorten

__all__ = ["page_of"]


def page_of(oldest_first: Sequence[dict[str, Any]], query: Mapping[str, str], *, most: int, default: int) -> dict[str, Any]:
    """The list object for `limit` items after the one named by `after`, newest first unless `order` is asc. Raises RequestError."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError(f"order is {shorten(order)}: it must be asc or desc", field="order")
    items = oldest_first if order == "asc" else oldest_first[::-1]
    start = 0
    if after := query.get("after"):
        start = next((number + 1 for number, item in enumerate(items) if item["id"] == after), -1)
        if start < 0:
            raise RequestError(f"after is {shorten(after)}: no item has this id", field="after")
    text = query.get("limit", str(default))
    limit = int(text) if text.isdecimal() and len(text) < 10 else 0
    if not 1 <= limit <= most:
        raise RequestError(f"limit is {shorten(text)}: it must be a whole number from 1 to {most}", field="limit")
    page = list(items[start : start + limit])
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, **ends, "has_more": start + limit < len(items)}
