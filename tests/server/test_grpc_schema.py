"""The .proto: its descriptor is what protoc makes of it, it has every field of the HTTP bodies, and statuses say what HTTP's say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from grpc import StatusCode
from processes import HANG_S

from llmx.errors import EngineDead, LlmxError, ModelNotFound, PromptTooLong, QueueFull, QueueTimeout, RequestError, RequestFailed, RequestTimeout
from llmx_server.errors import BodyTooLarge, GenerationFailed, ModelAsleep, NotFound, NotReady, RateLimited, failure_body, failure_status
from llmx_server.protocol.chat import ChatRequest
from llmx_server.protocol.completions import CompletionRequest
from llmx_server.protocol.pooling import EmbeddingRequest
from llmx_server.rpc import schema
from llmx_server.rpc.answers import generate_response
from llmx_server.rpc.status import details_of, status_of, status_of_event

PROTOS = Path(schema.__file__).with_name("protos")

# field of a body -> why GenerateRequest has none of that name
OTHERWISE = {
    "prompt": "text or token_ids",
    "max_completion_tokens": "max_tokens",
    "top_logprobs": "logprobs is their number",
    "stream": "always",
    "stream_options": "the usage always comes at the end",
    "best_of": "known at the end only",
    "use_beam_search": "as best_of",
    "length_penalty": "of beam search",
    "prompt_logprobs": "not streamed; echo with logprobs has them",
    "return_prompt_text": "echo",
    "service_tier": "changes nothing",
}


def test_the_descriptor_is_what_protoc_makes(tmp_path: Path) -> None:
    made = tmp_path / "made.binpb"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", f"--descriptor_set_out={made}", "llmx_v1.proto"]
    subprocess.run(command, check=True, timeout=HANG_S)
    assert made.read_bytes() == (PROTOS / "llmx_v1.binpb").read_bytes(), f"changed on purpose? {' '.join(command[1:])}, then copy it"


def test_every_field_of_the_bodies_is_there() -> None:
    there = set(schema.message_type("GenerateRequest").DESCRIPTOR.fields_by_name)
    wanted = set(CompletionRequest.model_fields) | set(ChatRequest.model_fields)
    assert wanted - there == set(OTHERWISE), "a new field of a body: give it a number in llmx_v1.proto (JSON: also rpc/bodies.py), or say in OTHERWISE why not"
    assert there - wanted == {"text", "token_ids"}
    there = set(schema.message_type("EmbedRequest").DESCRIPTOR.fields_by_name)
    assert set(EmbeddingRequest.model_fields) ^ there == {"input", "texts", "token_ids", "encoding_format"}


ERRORS: list[tuple[LlmxError, StatusCode]] = [
    (RequestError("no", field="x"), StatusCode.INVALID_ARGUMENT),
    (PromptTooLong("no"), StatusCode.INVALID_ARGUMENT),
    (ModelNotFound("no"), StatusCode.NOT_FOUND),
    (NotFound("no"), StatusCode.NOT_FOUND),
    (BodyTooLarge("no"), StatusCode.RESOURCE_EXHAUSTED),
    (RateLimited("no", kind="tokens", retry_after_s=3), StatusCode.RESOURCE_EXHAUSTED),
    (QueueFull("no"), StatusCode.UNAVAILABLE),
    (QueueTimeout("no"), StatusCode.UNAVAILABLE),
    (NotReady("no"), StatusCode.UNAVAILABLE),
    (ModelAsleep("no"), StatusCode.UNAVAILABLE),
    (EngineDead("no"), StatusCode.UNAVAILABLE),
    (RequestTimeout("no"), StatusCode.DEADLINE_EXCEEDED),
    (RequestFailed("no"), StatusCode.INTERNAL),
    (GenerationFailed("no"), StatusCode.INTERNAL),
]


@pytest.mark.parametrize(("error", "status"), ERRORS, ids=lambda one: type(one).__name__)
def test_an_error_has_one_status_before_the_first_token_and_after_it(error: LlmxError, status: StatusCode) -> None:
    assert status_of(failure_status(error)[0]) is status_of_event(failure_body(error)["error"]) is status


def test_other_http_statuses() -> None:
    assert status_of(401) is StatusCode.UNAUTHENTICATED and status_of(403) is StatusCode.PERMISSION_DENIED
    assert status_of(418) is StatusCode.INVALID_ARGUMENT and status_of(500) is status_of(502) is StatusCode.INTERNAL


def test_long_messages_are_cut_to_what_clients_take() -> None:
    assert details_of("short: ä") == "short: ä"
    assert details_of("a" * 5000) == "a" * 4096 + "..."
    assert details_of("ä" * 5000) == "ä" * 682 + "..."


def test_chunks_that_are_due_together_are_one_message() -> None:
    head = {"id": "i", "model": "m", "created": 1, "system_fingerprint": "f"}

    def chunk(delta: dict[str, object], reason: str | None = None, stop: object = None) -> dict[str, object]:
        return {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason, "stop_reason": stop}]}

    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "look", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": '{"a": 1}'}}
    events = [chunk({"role": "assistant", "content": ""}), chunk({"reasoning": "hm", "reasoning_content": "hm"}), chunk({"content": "yes"})]
    events += [chunk({"tool_calls": [call]}), chunk({"tool_calls": [more]}), chunk({}, "tool_calls", 7)]
    assert generate_response(events[:1]) is None  # a role alone is nothing new
    (choice,) = generate_response(events).choices
    assert (choice.reasoning, choice.text, choice.finish_reason, choice.stop_token_id) == ("hm", "yes", "tool_calls", 7)
    assert [(one.id, one.name, one.arguments) for one in choice.tool_calls] == [("c", "look", ""), ("", "", '{"a": 1}')]
