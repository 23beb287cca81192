"""The shapes of what is kept: responses, files, batches, and pages of them."""

from __future__ import annotations

from typing import Any, Generic, Literal, NotRequired, TypeVar

from typing_extensions import TypedDict

from llmx_server.openapi.answers import ChatTokenLogprobs

__all__ = ["Batch", "Deleted", "File", "InputTokens", "Item", "Page", "Response"]

T = TypeVar("T")


class Page(TypedDict, Generic[T]):
    """A part of a list."""

    object: Literal["list"]
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(TypedDict):
    """It is gone."""

    id: str
    object: Literal["response", "file"]
    deleted: Literal[True]


class File(TypedDict):
    """A file that the server keeps. Times are unix times; expires_at null: until it is deleted."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]
    status_details: None


class InputDetails(TypedDict):
    """Tokens of the input that the prefix cache had; cache_write_tokens is always 0."""

    cached_tokens: int
    cache_write_tokens: NotRequired[int]


class OutputDetails(TypedDict):
    """Tokens of the output that are reasoning."""

    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """Token counts."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails
    output_tokens_details: OutputDetails


class RequestCounts(TypedDict):
    """Lines of a batch."""

    total: int
    completed: int
    failed: int


class Batch(TypedDict):
    """A batch. Times are unix times, null until the batch gets there."""

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: dict[str, Any] | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: ResponseUsage
    metadata: dict[str, str] | None


class OutputText(TypedDict):
    """Text of an answer."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ChatTokenLogprobs]


class ReasoningText(TypedDict):
    """Text of the reasoning."""

    type: Literal["reasoning_text"]
    text: str


Status = Literal["in_progress", "completed", "incomplete"]


class MessageItem(TypedDict):
    """What the assistant says."""

    type: Literal["message"]
    id: str
    status: Status
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningItem(TypedDict):
    """How it came to that."""

    type: Literal["reasoning"]
    id: str
    status: Status
    summary: list[Any]
    content: list[ReasoningText]


class CallItem(TypedDict):
    """A call of a tool. arguments: JSON as text."""

    type: Literal["function_call"]
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


class ResponseError(TypedDict):
    """Why a response failed."""

    code: str
    message: str


class Incomplete(TypedDict):
    """Why a response is cut off."""

    reason: Literal["max_output_tokens"]


class Reasoning(TypedDict):
    """What was asked about reasoning."""

    effort: str | None
    summary: None


class TextForm(TypedDict):
    """The form that was asked for."""

    format: dict[str, Any]


class Response(TypedDict):
    """A response, as it stands. What follows `store` repeats the request."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: ResponseError | None
    incomplete_details: Incomplete | None
    model: str
    output: list[MessageItem | ReasoningItem | CallItem]
    usage: ResponseUsage | None
    store: bool
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: Reasoning
    service_tier: str
    temperature: float
    text: TextForm
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str


class Item(TypedDict):
    """An item of the conversation that a response answers, with what its type brings."""

    __pydantic_config__ = {"extra": "allow"}  # type: ignore[misc]  # items are kept as they were sent
    id: str
    type: str
    status: NotRequired[str]


class InputTokens(TypedDict):
    """Tokens of a prompt."""

    object: Literal["response.input_tokens"]
    input_tokens: int
