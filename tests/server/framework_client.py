"""What LangChain and LiteLLM get from a server, as JSON: `python framework_client.py URL`, in the environment of requirements-clients.txt."""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

import litellm
import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

QUESTION = "What is the capital of France?"


@tool
def weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather in a city."""
    return f"It rains in {city}."


class City(BaseModel):
    """A city."""

    city: Literal["Paris", "Rome"]
    big: bool


def langchain(url: str, model: str) -> dict[str, Any]:
    llm = ChatOpenAI(base_url=url, api_key="none", model=model, temperature=0, max_retries=0, timeout=60, max_tokens=48, stream_usage=True)
    told: dict[str, Any] = {"text": llm.invoke(QUESTION).content}
    chunks = list(llm.stream(QUESTION))
    told["streamed"] = "".join(chunk.content for chunk in chunks)
    told["usage"] = [chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata]
    bound = llm.bind_tools([weather], tool_choice="required")
    first = bound.invoke("Weather in Rome?")
    told["calls"] = [(call["name"], call["args"]) for call in first.tool_calls]
    whole = None
    for chunk in bound.stream("Weather in Rome?"):
        whole = chunk if whole is None else whole + chunk
    told["streamed_calls"] = [(call["name"], call["args"]) for call in whole.tool_calls]
    result = ToolMessage(weather.invoke(first.tool_calls[0]["args"]), tool_call_id=first.tool_calls[0]["id"])
    told["after"] = llm.bind_tools([weather], tool_choice="none").invoke([HumanMessage("Weather in Rome?"), first, result]).content
    for method in ("json_schema", "function_calling"):
        told[method] = llm.with_structured_output(City, method=method).invoke("Tell about Rome.").model_dump()
    told["batch"] = [answer.content for answer in llm.batch([QUESTION] * 3)]
    try:
        OpenAIEmbeddings(base_url=url, api_key="none", model=model, max_retries=0, check_embedding_ctx_length=False).embed_query("x")
    except openai.BadRequestError as error:
        told["no_vectors"] = str(error)
    return told


def with_litellm(url: str, model: str) -> dict[str, Any]:
    own = {"api_base": url, "api_key": "none", "temperature": 0, "max_tokens": 16}
    asked = [{"role": "user", "content": QUESTION}]
    told: dict[str, Any] = {"text": litellm.completion(model=f"openai/{model}", messages=asked, **own).choices[0].message.content}
    stream = litellm.completion(model=f"hosted_vllm/{model}", messages=asked, stream=True, **own)
    told["streamed"] = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
    one = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    called = litellm.completion(model=f"openai/{model}", messages=asked, api_base=url, api_key="none", temperature=0, **one)
    told["call"] = called.choices[0].message.tool_calls[0].function.arguments
    told["continued"] = litellm.text_completion(model=f"text-completion-openai/{model}", prompt="One, two,", **own).choices[0].text
    try:
        litellm.completion(model=f"openai/{model}", messages=asked, **{**own, "max_tokens": 5000})
    except litellm.exceptions.BadRequestError as error:
        told["too_long"] = str(error)
    return told


if __name__ == "__main__":
    base, name = sys.argv[1:]
    print(json.dumps({"langchain": langchain(base, name), "litellm": with_litellm(base, name)}))
