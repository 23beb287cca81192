"""StructuredOutputsParams: what form an answer must have. Checked once, at the border, for what can be seen without a tokenizer."""

from __future__ import annotations

import json as json_module
from dataclasses import dataclass
from typing import Any, NoReturn

__all__ = ["FORMS", "MAX_CHOICES", "MAX_GRAMMAR_CHARS", "MAX_NESTING", "MAX_REGEX_CHARS", "MAX_SCHEMA_CHARS", "ReasoningSpan", "StructuredOutputsParams"]

FORMS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
MAX_SCHEMA_CHARS = 512 * 1024  # of a JSON schema or a structural tag, as JSON
MAX_REGEX_CHARS = 16 * 1024
MAX_GRAMMAR_CHARS = 128 * 1024
MAX_CHOICES = 10_000
MAX_NESTING = 64  # levels of a schema


@dataclass(slots=True, frozen=True)
class ReasoningSpan:
    """Where an answer's reasoning is: from `start` to `end`, both texts that are not empty. inside: the answer begins behind the start marker.

    budget: tokens that it may have at most, markers not counted; None: any number.
    """

    start: str
    end: str
    inside: bool = False
    budget: int | None = None


@dataclass(slots=True, frozen=True)
class StructuredOutputsParams:
    """The form of an answer: exactly one of FORMS; none where only the reasoning before it has a budget.

    json: a JSON schema (dict, its text, or true for any JSON value). json_object: any JSON object. regex: the whole answer matches it.
    choice: the answer is one of these. grammar: Lark, or GBNF/EBNF with `::=`. structural_tag: free text in which tagged parts have a form.
    disable_any_whitespace: JSON without whitespace between its tokens; whitespace_pattern: a regex for it; by default at most 8 characters.
    disable_additional_properties: objects have only the properties that the schema lists, unless it says otherwise.
    field_name: the request field that this came from; errors name it. after: reasoning that comes first, without a form.
    """

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    field_name: str = "structured_outputs"
    after: ReasoningSpan | None = None

    def __post_init__(self) -> None:
        if self.json_object is not None and not isinstance(self.json_object, bool):
            self._refuse(f"json_object is {self.json_object!r}: it must be true or false")
        given = [name for name in FORMS if getattr(self, name) is not None and not (name == "json_object" and self.json_object is False)]
        if not given and self.after is not None and self.after.budget is not None:
            return
        if len(given) != 1:
            self._refuse(f"exactly one of {', '.join(FORMS)} must be given, found {', '.join(given) or 'none'}")
        if self.whitespace_pattern is not None and given[0] not in ("json", "json_object"):
            self._refuse(f"whitespace_pattern is for json and json_object, not for {given[0]}")
        if self.whitespace_pattern is not None:
            self._text("whitespace_pattern", self.whitespace_pattern, MAX_REGEX_CHARS)
        if given[0] in ("json", "structural_tag"):
            object.__setattr__(self, given[0], self._json_text(given[0], getattr(self, given[0])))
        elif given[0] == "choice":
            object.__setattr__(self, "choice", self._choices())
        elif given[0] != "json_object":
            self._text(given[0], getattr(self, given[0]), MAX_REGEX_CHARS if given[0] == "regex" else MAX_GRAMMAR_CHARS)

    @property
    def form(self) -> str:
        """Which of FORMS it is; "" where only the reasoning has a budget."""
        return next((name for name in FORMS if getattr(self, name) not in (None, False)), "")

    def _refuse(self, why: str) -> NoReturn:
        from llmx.errors import GrammarError  # here, so that SamplingParams stands no further from the ground

        raise GrammarError(f"{self.field_name}: {why}", field=self.field_name)

    def _text(self, name: str, value: Any, limit: int) -> None:
        if not isinstance(value, str) or not value:
            self._refuse(f"{name} must be a non-empty string, found {type(value).__name__}")
        if len(value) > limit:
            self._refuse(f"{name} has {len(value)} characters: at most {limit} are allowed")

    def _choices(self) -> tuple[str, ...]:
        choice: Any = self.choice
        if not isinstance(choice, list | tuple) or not choice or not all(isinstance(one, str) for one in choice):
            self._refuse("choice must be a list of one or more strings")
        if len(choice) > MAX_CHOICES:
            self._refuse(f"choice has {len(choice)} entries: at most {MAX_CHOICES} are allowed")
        return tuple(choice)

    def _json_text(self, name: str, value: Any) -> str:
        """The value as JSON text with its keys in their order; what it holds is checked when it is compiled."""
        try:
            text = value if isinstance(value, str) else json_module.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            self._text(name, text, MAX_SCHEMA_CHARS)
            parsed = json_module.loads(text, parse_constant=lambda word: self._refuse(f"{name} holds {word}, which is no JSON"))
            text = json_module.dumps(parsed, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except RecursionError:
            self._refuse(f"{name} is nested too deeply: at most {MAX_NESTING} levels are allowed")
        except (TypeError, ValueError) as error:
            self._refuse(f"{name} is not valid JSON: {error}")
        if not isinstance(parsed, dict | bool) or (name != "json" and isinstance(parsed, bool)):
            self._refuse(f"{name} must be a JSON object, found {type(parsed).__name__}")
        return text
