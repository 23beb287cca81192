"""Formats of strings. Dates and times are patterns written here: llguidance's own take the 29th of every February and a 61st second."""

from __future__ import annotations

from typing import Any

from llmx.structured import subschemas

__all__ = ["FORMATS", "with_own_formats"]

_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
_DATE = f"(?:{_YEAR}-{_DAY}|{_LEAP}-02-29)"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_OWN = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}  # RFC 3339
FORMATS = (*_OWN, "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")


def with_own_formats(schema: Any) -> Any:
    """The schema with our formats as patterns; changed in place."""
    todo = [schema]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo += [one for _, _, one in subschemas(value)]
            if value.get("format") in _OWN:
                pattern = _OWN[value.pop("format")]
                if "pattern" in value:
                    value["allOf"] = [*value.get("allOf", ()), {"pattern": pattern}]
                else:
                    value["pattern"] = pattern
    return schema
