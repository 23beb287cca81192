"""Every body field that clients of such servers send, and what happens to it here. docs/api-fields.md is made from this table.

works: it does what `what` says. refused: 400, unless the value asks for nothing (`neutral`). ignored: the answer is the same
without it, and a `Warning` header says so. A field that stands nowhere is unknown: ignored, and named in the header too.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Literal

from llmx.record import record

__all__ = ["ALL", "BOTH", "CHAT", "COMPLETIONS", "FIELDS", "RESPONSES", "ApiField", "Route", "State", "field_of", "is_known", "nearest"]

Route = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
State = Literal["works", "refused", "ignored"]
CHAT: Route = "/v1/chat/completions"
COMPLETIONS: Route = "/v1/completions"
RESPONSES: Route = "/v1/responses"
BOTH = (CHAT, COMPLETIONS)
ALL = (*BOTH, RESPONSES)


@record
class ApiField:
    """One field. what: range and effect; for a refused one what to do instead; for an ignored one why it changes nothing."""

    name: str
    state: State
    what: str
    routes: tuple[Route, ...] = BOTH
    neutral: tuple[Any, ...] = ()  # values that ask for nothing: taken without a word


def _works(name: str, what: str, *routes: Route) -> ApiField:
    return ApiField(name, "works", what, routes or BOTH)


def _refused(name: str, what: str, *neutral: Any, routes: tuple[Route, ...] = BOTH) -> ApiField:
    return ApiField(name, "refused", what, routes, neutral)


def _ignored(name: str, what: str, *neutral: Any, routes: tuple[Route, ...] = BOTH) -> ApiField:
    return ApiField(name, "ignored", what, routes, neutral)


_NO_MEDIA = "the model reads and writes text only"
_NO_CHAT = "use /v1/chat/completions"
_NO_TRANSFER = "KV is not transferred between engines"
_GUIDED = "use structured_outputs"

FIELDS: tuple[ApiField, ...] = (
    # -- what to answer
    _works("model", "a served name, or that of a LoRA adapter (404 otherwise); left out: the first model", *ALL),
    _works("messages", "roles system, developer (as system), user, assistant, tool; content a string or text parts, joined by a newline; name", CHAT),
    _works("prompt", "a string, token ids, or up to 1024 of either; ids inside the vocabulary; not empty", COMPLETIONS),
    _refused("prompt_embeds", "send prompt", routes=(COMPLETIONS,)),
    _refused("suffix", "there is no fill-in-the-middle: leave it out", "", routes=(COMPLETIONS,)),
    _works("add_special_tokens", "the tokenizer adds BOS where the model wants one; default true for completions, false for chat (the template writes it)"),
    _works("truncate_prompt_tokens", "-1 or at least 1: keep that many tokens of the prompt; -1: as many as fit beside max_tokens"),
    _works("truncation_side", "left (default) or right: which end truncate_prompt_tokens cuts"),
    _works("add_generation_prompt", "default true: the prompt ends where the assistant begins; not together with continue_final_message", CHAT),
    _works("continue_final_message", "the answer continues the last message, which must be the assistant's", CHAT),
    _works("chat_template_kwargs", "variables for the chat template; the ones it does not read are named in a Warning", CHAT, RESPONSES),
    _works("chat_template", "with --trust-request-chat-template: jinja text used instead of the model's template, rendered in a process of its own with a "
           "limit of time and memory; 400 without that option", CHAT),
    _refused("chat_template", "use chat_template_kwargs, or /v1/chat/completions", routes=(RESPONSES,)),
    _works("documents", "a list of objects for a chat template that reads `documents`; 400 for one that does not", CHAT),
    _works("reasoning_effort", "none, minimal, low, medium, high, xhigh, max: given to the template, with enable_thinking (false for none)", CHAT),
    _works("include_reasoning", "default true: reasoning is given apart, as reasoning and reasoning_content; false: it is left out", CHAT, RESPONSES),
    _works("thinking_token_budget", "-1 (off) or at least 0: reasoning is ended after so many tokens; 400 where a model's reasoning has no known end", *ALL),
    # -- how to sample
    _works("temperature", "0..2; 0: always the most likely token; default: the model's own, else 1", *ALL),
    _works("top_p", "above 0, at most 1; default: the model's own, else 1 (off)", *ALL),
    _works("top_k", "-1 or 0 (off), or at least 1; default: the model's own, else off", *ALL),
    _works("min_p", "0..1; default: the model's own, else 0 (off)", *ALL),
    _works("presence_penalty", "-2..2, on what was generated, not on the prompt", *ALL),
    _works("frequency_penalty", "-2..2, on what was generated, not on the prompt", *ALL),
    _works("repetition_penalty", "0.01..100, on prompt and answer; default: the model's own, else 1 (off)", *ALL),
    _works("seed", "a 64-bit integer: the same seed gives the same answer, alone or in a batch; choice i uses seed + i; -1: drawn", *ALL),
    _works("logit_bias", "token id -> -100..100, at ids inside the vocabulary", *ALL),
    _works("allowed_token_ids", "only these tokens may be drawn; not empty", *ALL),
    _works("bad_words", "up to 128 texts that are not generated, alone or after a space, as the tokenizer spells them", *ALL),
    _works("min_tokens", "0..max_tokens: no EOS, stop token or stop string before so many tokens", *ALL),
    _works("use_beam_search", "the n most likely answers by a beam search of width n (best_of), best first; not with stream, drawing, penalties or forms"),
    _works("length_penalty", "-10..10, with use_beam_search: scores are divided by new tokens ** length_penalty; default 1"),
    _refused("repetition_detection", "use repetition_penalty or frequency_penalty", routes=ALL),
    _refused("watermarking", "leave it out", False, routes=ALL),
    _works("logits_processors", "up to 8 processors of plugins, each by its name or as {name, args}; 400 for a name that no plugin has", *ALL),
    _refused("vllm_xargs", "give arguments beside a name in logits_processors", {}, routes=ALL),
    # -- when to stop
    _works("max_tokens", "at least 1, with the prompt inside the context (400 otherwise); default: 16 for completions, the rest of the context for chat; "
           "0 for completions with echo"),
    _works("max_completion_tokens", "the newer name of max_tokens; both only with the same value", CHAT),
    _works("stop", "up to 4 strings, none empty; the answer ends before the first that occurs; may span tokens", *ALL),
    _works("stop_token_ids", "tokens that end the answer; stop_reason says which", *ALL),
    _works("include_stop_str_in_output", "the stop string, or the stop token's text, stays in the answer", *ALL),
    _works("ignore_eos", "the model's end token does not end the answer", *ALL),
    _refused("min_new_tokens", "use min_tokens", routes=ALL),
    _refused("max_new_tokens", "use max_tokens", routes=ALL),
    # -- how many
    _works("n", "1..128 choices; also with temperature 0"),
    _works("best_of", "n..128: so many are generated, the n with the highest mean logprob are returned; all count in usage; not with stream", COMPLETIONS),
    # -- what to show
    _works("stream", "server-sent events, closed by `data: [DONE]`"),
    _works("stream_options", "include_usage: a last chunk with usage; continuous_usage_stats: usage so far in every chunk; 400 without stream"),
    _works("stream_interval", "at least 1: tokens that a chunk waits for; the first and the last come at once"),
    _works("echo", "completions: the prompt, with its logprobs when asked for, comes first; chat: the assistant message that is continued comes first"),
    _works("logprobs", "completions: 0..20 most likely tokens per place; chat: true or false"),
    _works("top_logprobs", "0..20, with logprobs", CHAT),
    _works("prompt_logprobs", "0..20 most likely tokens per place of the prompt; not with stream; reads no prefix cache"),
    _works("logprob_token_ids", "up to 128 ids: their logprobs stand beside the most likely ones; with logprobs"),
    _works("return_token_ids", "adds token_ids and prompt_token_ids"),
    _works("return_tokens_as_token_ids", "logprobs name tokens as token_id:N"),
    _works("return_prompt_text", "adds prompt_text, what the chat template made", CHAT),
    _works("skip_special_tokens", "default true: special tokens are not shown in text", *ALL),
    _works("spaces_between_special_tokens", "false: special tokens shown with skip_special_tokens false follow one another without a space"),
    _refused("return_token_offsets", "use return_token_ids", False),
    _refused("return_mm_kwargs", _NO_MEDIA, False),
    _refused("routed_experts_prompt_start", "the choice of experts is not returned", 0),
    # -- how to run it
    _works("priority", "a whole number, lower runs earlier; needs --scheduling-policy priority", *ALL),
    _works("cache_salt", "up to 128 characters: prefix-cache entries are shared only by requests with the same one", *ALL),
    _works("request_id", "1 to 128 printable characters: the answer's id is made of it", *ALL),
    _works("service_tier", "auto or default: answered with default, the only tier; flex, scale and priority: the same, with a Warning", *ALL),
    _ignored("session_id", "requests are not bound to sessions", routes=ALL),
    _ignored("user", "it describes the caller", routes=ALL),
    _ignored("safety_identifier", "it describes the caller", routes=ALL),
    _ignored("metadata", "answers are not kept, so nothing could be found by it", {}),
    _ignored("prompt_cache_key", "equal prompt starts are found by content", routes=ALL),
    _ignored("prompt_cache_retention", "the prefix cache keeps what fits", routes=ALL),
    _refused("store", "answers are not kept", False),
    _refused("kv_transfer_params", _NO_TRANSFER, routes=ALL),
    _refused("ec_transfer_params", _NO_TRANSFER, routes=ALL),
    # -- forms, tools, media
    _works("response_format", "text, json_object, json_schema (name, description, schema, strict) or structural_tag; what cannot be enforced is 400"),
    _works("structured_outputs", "one of json, regex, choice, grammar, json_object, structural_tag; options for whitespace and additional properties", *ALL),
    _refused("guided_json", _GUIDED, routes=ALL),
    _refused("guided_regex", _GUIDED, routes=ALL),
    _refused("guided_choice", _GUIDED, routes=ALL),
    _refused("guided_grammar", _GUIDED, routes=ALL),
    _refused("guided_decoding_backend", _GUIDED, routes=ALL),
    _refused("guided_whitespace_pattern", _GUIDED, routes=ALL),
    _works("tools", "up to 128 functions with name, description, parameters (a JSON schema) and strict; names differ", CHAT),
    _works("tool_choice", "none, auto (default), required, or an object that names a function; the last two hold the answer to the schemas", CHAT),
    _works("parallel_tool_calls", "default true; false: one call at most", CHAT),
    _refused("tools", _NO_CHAT, [], routes=(COMPLETIONS,)),
    _refused("tool_choice", _NO_CHAT, "none", routes=(COMPLETIONS,)),
    _refused("parallel_tool_calls", _NO_CHAT, True, False, routes=(COMPLETIONS,)),
    _refused("functions", "use tools", []),
    _refused("function_call", "use tool_choice", "none"),
    _refused("web_search_options", "the server looks nothing up: give it a tool of your own"),
    _refused("audio", _NO_MEDIA),
    _refused("modalities", _NO_MEDIA, ["text"]),
    _refused("mm_processor_kwargs", _NO_MEDIA, {}, routes=ALL),
    _refused("media_io_kwargs", _NO_MEDIA, {}, routes=ALL),
    _refused("mm_payload", _NO_MEDIA, routes=ALL),
    _refused("prediction", "nothing is predicted: leave it out"),
    _refused("verbosity", "say in the messages how long the answer shall be", "medium"),
    # -- responses alone
    _works("input", "a string, or items: messages (text parts), function_call, function_call_output, reasoning", RESPONSES),
    _works("instructions", "a system message before the input; not taken over by previous_response_id", RESPONSES),
    _works("previous_response_id", "a stored response whose conversation, with its answer, comes before the input; 404 when it is not kept", RESPONSES),
    _works("store", "default true (false with --response-store-bytes 0): keep the response, within --response-store-bytes and --response-max-age", RESPONSES),
    _works("background", "true: answered at once, queued; fetch it, follow it with stream, or cancel it; needs store", RESPONSES),
    _works("metadata", "up to 16 keys (64 characters) with strings (512): kept with the response and shown with it", RESPONSES),
    _works("include", "message.output_text.logprobs: logprobs of the text; other values of OpenAI's: never in an answer here, with a Warning", RESPONSES),
    _works("top_logprobs", "0..20 most likely tokens beside each token of the text; above 0 it asks for logprobs by itself", RESPONSES),
    _works("max_output_tokens", "at least 1, with the prompt inside the context; default: the rest of the context; reasoning counts", RESPONSES),
    _works("truncation", "disabled (default): 400 for what does not fit; auto: the oldest turns are left out, system messages at the start stay", RESPONSES),
    _works("text", "format: text, json_object or json_schema (name, schema, strict); verbosity: only medium", RESPONSES),
    _works("reasoning", "effort: as reasoning_effort of chat; summary: reasoning is given as it is, with a Warning", RESPONSES),
    _works("tools", "functions, with name, description, parameters and strict beside the type; no tools that the server would run", RESPONSES),
    _works("tool_choice", "none, auto (default), required, a function by name, or allowed_tools", RESPONSES),
    _works("parallel_tool_calls", "default true; false: one call at most", RESPONSES),
    _works("stream", "server-sent events with a sequence_number each; the last one has the whole response", RESPONSES),
    _works("stream_options", "include_obfuscation: events are not padded, with a Warning; include_usage is not needed: usage is in the last event", RESPONSES),
    _ignored("max_tool_calls", "it limits tools that the server runs, and it runs none", routes=(RESPONSES,)),
    _ignored("background_options", "background responses run like others", routes=(RESPONSES,)),
    _ignored("prompt_cache_options", "the prefix cache keeps what fits", routes=(RESPONSES,)),
    _ignored("access_programs", "it describes the caller", routes=(RESPONSES,)),
    _refused("prompt", "there are no stored prompts: send instructions and input", routes=(RESPONSES,)),
    _refused("conversation", "use previous_response_id", routes=(RESPONSES,)),
    _refused("context_management", "use truncation auto", [], routes=(RESPONSES,)),
    _refused("moderation", "nothing is moderated: leave it out", routes=(RESPONSES,)),
    _refused("image", _NO_MEDIA, routes=(RESPONSES,)),
    _refused("enable_response_messages", "use GET /v1/responses/{id}/input_items", False, routes=(RESPONSES,)),
    _refused("previous_input_messages", "use previous_response_id, or send all items as input", routes=(RESPONSES,)),
    _refused("messages", "use input, or /v1/chat/completions", routes=(RESPONSES,)),
    _refused("max_tokens", "use max_output_tokens", routes=(RESPONSES,)),
    _refused("max_completion_tokens", "use max_output_tokens", routes=(RESPONSES,)),
    _refused("response_format", "use text.format", routes=(RESPONSES,)),
    _refused("reasoning_effort", "use reasoning.effort", routes=(RESPONSES,)),
    _refused("verbosity", "say in the instructions how long the answer shall be", "medium", routes=(RESPONSES,)),
    _refused("logprobs", "use include and top_logprobs", False, routes=(RESPONSES,)),
    _refused("n", "a response has one answer: send several requests", 1, routes=(RESPONSES,)),
)  # fmt: skip

_BY_NAME = {(route, field.name): field for field in FIELDS for route in field.routes}


def field_of(route: Route, name: str) -> ApiField | None:
    """The entry of a field on a route; None for an unknown one."""
    return _BY_NAME.get((route, name))


def nearest(route: Route, name: str) -> str | None:
    """The field of a route that an unknown one was probably meant to be."""
    found = get_close_matches(name, [known for at, known in _BY_NAME if at == route], 1, 0.8)
    return found[0] if found else None


def is_known(name: str) -> bool:
    """Whether any route has such a field."""
    return any((route, name) in _BY_NAME for route in ALL)
