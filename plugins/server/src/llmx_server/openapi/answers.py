"""The shapes of answers to completions, chat and messages, and of errors. Nothing is checked with them at run time: they describe."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

__all__ = [
    "AnthropicError",
    "AnthropicTokens",
    "ChatCompletion",
    "CohereError",
    "Completion",
    "Error",
    "Message",
    "Usage",
]

FinishReason = Literal["stop", "length", "tool_calls"]


class ErrorDetail(TypedDict):
    """What went wrong. param: the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(TypedDict):
    """The body of every error but those of Anthropic's and Cohere's routes."""

    error: ErrorDetail


class AnthropicErrorDetail(TypedDict):
    """What went wrong."""

    type: str
    message: str


class AnthropicError(TypedDict):
    """The body of an error of /v1/messages."""

    type: Literal["error"]
    error: AnthropicErrorDetail


class CohereError(TypedDict):
    """The body of an error of /v2/embed."""

    id: str
    message: str


class CachedTokens(TypedDict):
    """Prompt tokens that the prefix cache had."""

    cached_tokens: int


class AnswerTokens(TypedDict):
    """Tokens that are reasoning, where the model reasons, and tokens that were drafted, where these are told."""

    reasoning_tokens: NotRequired[int]
    accepted_prediction_tokens: NotRequired[int]
    rejected_prediction_tokens: NotRequired[int]


class Usage(TypedDict):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: NotRequired[AnswerTokens]


class RankedToken(TypedDict):
    """A token of the prompt, or one that was as likely."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, RankedToken] | None]


class LegacyLogprobs(TypedDict):
    """Logprobs of a completion, a list entry for each token. text_offset: characters from the start of the prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One text."""

    index: int
    text: str
    logprobs: LegacyLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[PromptLogprobs | None]


class Head(TypedDict):
    """What the answers of OpenAI's routes begin with. created: unix time."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[str]


class Completion(Head):
    """The answer of /v1/completions. Choice k of prompt i has the index i * n + k."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage


class ChatToken(TypedDict):
    """A token with its logprob."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprobs(ChatToken):
    """A token of the answer, and the most likely ones at its place."""

    top_logprobs: list[ChatToken]


class ChatLogprobs(TypedDict):
    """Logprobs of a chat choice."""

    content: list[ChatTokenLogprobs]
    refusal: None


class FunctionCall(TypedDict):
    """The function that is called. arguments: JSON as text."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(TypedDict):
    """The assistant's message. content is null where it calls tools and says nothing beside."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]  # in a batch, which has a prompt for each choice
    prompt_text: NotRequired[str]


class ChatCompletion(Head):
    """The answer of /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: NotRequired[PromptLogprobs | None]
    prompt_token_ids: NotRequired[list[int]]
    prompt_text: NotRequired[str]


class TextBlock(TypedDict):
    """Text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(TypedDict):
    """Reasoning."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(TypedDict):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Any


class AnthropicUsage(TypedDict):
    """Token counts. Tokens of the prefix cache are not in input_tokens."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class Message(TypedDict):
    """The answer of /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: AnthropicUsage


class AnthropicTokens(TypedDict):
    """Tokens of a prompt."""

    input_tokens: int
