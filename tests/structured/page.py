"""The text of docs/structured-output.md: prose, and tables that come from the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from llmx.structured.schema import ANNOTATIONS
from llmx_llguidance.formats import FORMATS
from llmx_llguidance.grammars import KEYWORDS

__all__ = ["PAGE", "ROOT", "page"]

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/structured-output.md"

_LIMITS = {
    "oneOf": "alternatives must differ in type, or in a const of a required property; others are refused",
    "allOf": "intersections of most schemas; those that leave nothing are refused",
    "properties": "written in the order of the schema; at most 480 of one object may be optional",
    "patternProperties": "patterns must not overlap",
    "minProperties": "at most one more than required names",
    "maxProperties": "where all of `properties` are required, or 0 or 1",
    "additionalProperties": "such a name may come twice (the last one counts); it comes after those of `properties`",
    "pattern": "no look-around, back-reference or word boundary; `^` first and `$` last",
    "format": ", ".join(FORMATS) + "; others are refused",
    "$ref": "inside the schema only: `#` or `#/...`; nothing is fetched",
    "type": "integers are written without fraction and exponent",
    "multipleOf": "numbers are written without exponent",
    "minLength": "counted in code points, like maxLength",
}

_HEAD = """# Structured output

An answer can be held to a form: a JSON schema, any JSON object, a regular expression, one of several choices, a grammar, or tagged parts in free
text. It works with `n`, streaming, logprobs, penalties, seeds, stop strings and everything else; tokens that the form forbids cannot be
drawn, whatever `logit_bias` says.

```python
from openai import OpenAI
from pydantic import BaseModel

class Person(BaseModel):
    name: str
    age: int

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="unused")
answer = client.chat.completions.parse(
    model="smollm2-135m-instruct",
    messages=[{"role": "user", "content": "Describe a person."}],
    response_format=Person,
    max_tokens=100,
)
print(answer.choices[0].message.parsed)
```

| field | value | the answer |
|---|---|---|
| `response_format` | `{"type": "json_object"}` | a JSON object |
| | `{"type": "json_schema", "json_schema": {"name": ..., "schema": ..., "strict": true}}` | JSON that the schema takes |
| | `{"type": "structural_tag", ...}` | as below |
| `structured_outputs` | `{"json": schema}`, `{"json_object": true}` | the same |
| | `{"regex": "[a-z]+-[0-9]{2}"}` | matches as a whole |
| | `{"choice": ["yes", "no"]}` | one of them |
| | `{"grammar": "start: ..."}` | what the grammar derives: Lark, or GBNF with `::=` |
| | `{"structural_tag": ...}` | free text; where a trigger appears a tag must begin, and its content has a form |

Both fields work on `/v1/chat/completions` and `/v1/completions`; offline it is
`SamplingParams(structured_outputs=StructuredOutputsParams(json=...))`. `structured_outputs` also takes `disable_any_whitespace`,
`whitespace_pattern` and `disable_additional_properties`.

## Rules

- **What is accepted is enforced.** A keyword that cannot be enforced, or is not known, is answered 400 with its name and its place. Annotations
  do nothing and are left out: ANNOTATIONS, and names that begin with `x-`.
- **An answer ends** when the form is complete (`finish_reason` `stop`) or at `max_tokens` (`length`: then the text is the beginning of a valid one).
  The end of the form wins over `min_tokens` and `ignore_eos`.
- **Whitespace** between JSON tokens is at most 8 characters, so that a small model does not go on with it for ever.
- **`strict: true`** also asks what OpenAI asks of a schema: objects have `"additionalProperties": false` and require all their properties. Without it
  the schema is enforced as it is written.
- **Schemas** are read as draft 2020-12, at most 64 levels deep and 512 KiB long. A schema that only endless texts satisfy is refused.
- **Compiling** happens beside the running requests, at most `--grammar-timeout` seconds; 256 compiled grammars are kept.
- **A failure** of a grammar ends its own request, never another one.
- If tokens allowed by the form are excluded by `allowed_token_ids`, nothing is left to draw and the request ends with an error.
- `--structured-outputs-backend` names the backend that is asked first. What it refuses goes to the next one. llguidance comes with llmx and needs no
  torch; `pip install llmx-xgrammar` adds a second one.

## Reasoning first

Where the server knows the model's reasoning format ([which](tool-calling.md#reasoning)), chat answers may think before they answer: the
form holds from the first token behind the end marker on. It is the same for `response_format`, `structured_outputs`, forced tool calls and strict tools.

- The prompt may have opened the reasoning or closed it (a template with `enable_thinking` false): then the answer begins inside, or the form holds at once.
- An answer may leave its reasoning out, where the format allows it: its first tokens begin the start marker or belong to the form.
- Inside, EOS cannot be drawn, so an answer does not end without its form; `max_tokens` counts the reasoning too (`length`). Stop strings and
  `stop_token_ids` work.
- A token that would complete the end marker and carry more than white space past it cannot be drawn there; the model writes the
  marker and then the form.
- Markers of a family's content (`<answer>`, `<response>`) are not part of a form. With `minimax_m2_append_think` reasoning is given apart
  when there is a form.
- gpt-oss (`openai_gptoss`) has channels instead of an end marker: there a form holds from the first token, and there is no reasoning.
- `thinking_token_budget` ends reasoning that gets too long ([tool calling](tool-calling.md)).
- `/v1/completions` and `LLM` know no reasoning, unless a request has a thinking budget: a form holds from the first token.

## Keywords of JSON Schema

"""


def page(counts: Mapping[str, int], refused: Sequence[str], accepted: int) -> str:
    """counts: random schemas that have a keyword. refused: keywords that cannot be enforced."""
    annotations = ", ".join(f"`{word}`" for word in sorted(ANNOTATIONS))
    rows = [f"| `{word}` | {counts[word]} | {_LIMITS.get(word, '')} |" for word in sorted(KEYWORDS)]
    return (
        _HEAD.replace("ANNOTATIONS", annotations)
        + f"With llguidance. `tests/structured` makes random schemas; {accepted} are accepted, and each gives an answer of a random model that the package\n"
        + "jsonschema validates, or the beginning of one.\n\n| enforced | schemas | limits |\n|---|---|---|\n"
        + "\n".join(rows)
        + "\n\nRefused by name: "
        + ", ".join(f"`{word}`" for word in refused)
        + ".\n"
    )
